#include "server/web/connect/rpc_json.h"

#include <absl/strings/escaping.h>
#include <google/protobuf/util/json_util.h>

#include <nlohmann/json.hpp>

namespace lintel {
namespace {

namespace pb = google::protobuf;
using Json = nlohmann::ordered_json;

// Deeper than any request, and no stack's trouble.
constexpr int kMostDepth = 32;

void to_base64(Json& value) {
  if (value.is_array()) {
    for (Json& one : value) to_base64(one);
  } else if (value.is_string()) {
    value = absl::Base64Escape(value.get_ref<const std::string&>());
  }
}

// Turns what people write into what protobuf reads, in all of the message.
void spell_text(Json& json, const pb::Descriptor* type) {
  if (json.is_array()) {
    for (Json& one : json) spell_text(one, type);
    return;
  }
  if (!json.is_object()) return;
  for (auto& [name, value] : json.items()) {
    const pb::FieldDescriptor* field = type->FindFieldByName(name);
    if (field == nullptr) field = type->FindFieldByCamelcaseName(name);
    if (field == nullptr || field->is_map()) continue;
    if (field->type() == pb::FieldDescriptor::TYPE_MESSAGE) {
      spell_text(value, field->message_type());
    } else if (field->type() == pb::FieldDescriptor::TYPE_BYTES && is_text(*field)) {
      to_base64(value);
    }
  }
}

// A sentence of protobuf's, as one of ours.
grpc::Status no_such_message(std::string_view why) {
  return {grpc::INVALID_ARGUMENT, "the request's JSON: " + std::string(why)};
}

}  // namespace

std::unique_ptr<pb::Message> new_message(const pb::Descriptor* type) {
  return std::unique_ptr<pb::Message>(
      pb::MessageFactory::generated_factory()->GetPrototype(type)->New());
}

bool is_text(const pb::FieldDescriptor& field) {
  return field.name() == "text" || field.name() == "strings" || field.name() == "stop_string";
}

grpc::Status read_json(const std::string& json, pb::Message& message) {
  const auto read = pb::util::JsonStringToMessage(json.empty() ? "{}" : json, &message);
  if (read.ok()) return grpc::Status::OK;
  return no_such_message({read.message().data(), read.message().size()});
}

std::string write_json(const pb::Message& message) {
  std::string json;
  // What cannot be written would be a message that no service makes.
  (void)pb::util::MessageToJsonString(message, &json);
  return json;
}

grpc::Status read_plain_json(const std::string& json, pb::Message& message) {
  bool too_deep = false;
  const auto watch = [&too_deep](int depth, Json::parse_event_t, Json&) {
    too_deep = too_deep || depth > kMostDepth;
    return !too_deep;
  };
  Json parsed;
  try {
    parsed = Json::parse(json.empty() ? "{}" : json, watch);
  } catch (const Json::parse_error& error) {
    const std::string what = error.what();  // "[json.exception.parse_error.101] ..."
    return no_such_message(what.substr(std::min(what.find("] ") + 2, what.size())));
  }
  if (too_deep) return no_such_message("it is nested too deeply");
  spell_text(parsed, message.GetDescriptor());
  return read_json(parsed.dump(), message);
}

}  // namespace lintel
