#include "server/web/connect/rpc_json.h"

#include <absl/strings/escaping.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "server/web/connect/values_json.h"

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

// Whether more objects and lists than kMostDepth are open at once. By itself, for a parser that
// asks at each of them goes through all that came before in the same list.
bool is_too_deep(std::string_view json) {
  int depth = 0;
  bool in_text = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_text && c == '\\') ++i;
    if (c == '"') in_text = !in_text;
    if (in_text) continue;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > kMostDepth) return true;
  }
  return false;
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
  const auto* const values = dynamic_cast<const v1::GenerateResponse*>(&message);
  if (values != nullptr && values->finished().empty()) return values_json(*values);
  std::string json;
  // What cannot be written would be a message that no service makes.
  (void)pb::util::MessageToJsonString(message, &json);
  return json;
}

grpc::Status read_plain_json(const std::string& json, pb::Message& message) {
  if (is_too_deep(json)) return no_such_message("it is nested too deeply");
  Json parsed;
  try {
    parsed = Json::parse(json.empty() ? "{}" : json);
  } catch (const Json::exception& error) {  // no JSON, or a number that no double holds
    const std::string what = error.what();  // "[json.exception.parse_error.101] ..."
    return no_such_message(what.substr(std::min(what.find("] ") + 2, what.size())));
  }
  spell_text(parsed, message.GetDescriptor());
  return read_json(parsed.dump(), message);
}

}  // namespace lintel
