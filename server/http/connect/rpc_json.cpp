#include "server/http/connect/rpc_json.h"

#include <absl/strings/escaping.h>
#include <google/protobuf/io/zero_copy_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/type_resolver.h>
#include <google/protobuf/util/type_resolver_util.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "server/http/connect/values_json.h"
#include "server/http/encoding/bounded_json.h"

namespace lintel {
namespace {

namespace pb = google::protobuf;
using PlainJson = nlohmann::json;

// Deeper than any request, and what protobuf's parser takes.
constexpr int kMostDepth = 100;
// What protobuf's parser and the message hold of an object or a list, and of a value.
constexpr JsonCosts kMessageCosts{.each_container = 96, .each_value = 16};
constexpr const char* kSubject = "the request's JSON";

JsonBounds bounds_of(JsonBudget* budget) { return {.max_depth = kMostDepth, .budget = budget}; }

// Writes what people write as what protobuf reads: fields of bytes that are text become base64.
class SpellText final : public nlohmann::json_sax<PlainJson> {
 public:
  SpellText(const pb::Descriptor* type, std::string& out) : type_(type), out_(out) {}

  bool null() override { return put("null"); }
  bool boolean(bool value) override { return put(value ? "true" : "false"); }
  bool number_integer(std::int64_t value) override { return put(std::to_string(value)); }
  bool number_unsigned(std::uint64_t value) override { return put(std::to_string(value)); }
  bool number_float(double, const std::string& text) override { return put(text); }
  bool binary(PlainJson::binary_t&) override { return false; }  // not in JSON
  bool string(std::string& value) override {
    const pb::FieldDescriptor* const field = field_of_value();
    const bool spells = field != nullptr && field->type() == pb::FieldDescriptor::TYPE_BYTES &&
                        !field->is_map() && is_text(*field);
    return put(PlainJson(spells ? absl::Base64Escape(value) : std::move(value)).dump());
  }
  bool key(std::string& name) override {
    Open& object = open_.back();
    object.field = nullptr;
    if (object.type != nullptr) {
      object.field = object.type->FindFieldByName(name);
      if (object.field == nullptr) object.field = object.type->FindFieldByCamelcaseName(name);
    }
    separate();
    out_ += PlainJson(name).dump();
    out_ += ':';
    object.is_behind_name = true;
    return true;
  }
  bool start_object(std::size_t) override {
    const pb::FieldDescriptor* const field = field_of_value();
    const bool is_message =
        field != nullptr && !field->is_map() && field->type() == pb::FieldDescriptor::TYPE_MESSAGE;
    const pb::Descriptor* const type = open_.empty() ? type_
                                       : is_message  ? field->message_type()
                                                     : nullptr;
    separate();
    out_ += '{';
    open_.push_back({.type = type});
    return true;
  }
  bool end_object() override { return close('}'); }
  bool start_array(std::size_t) override {
    const pb::FieldDescriptor* const field = field_of_value();
    separate();
    out_ += '[';
    open_.push_back({.field = field});
    return true;
  }
  bool end_array() override { return close(']'); }
  bool parse_error(std::size_t, const std::string&, const PlainJson::exception&) override {
    return false;
  }

 private:
  struct Open {
    const pb::Descriptor* type = nullptr;        // of an object; null: there is none
    const pb::FieldDescriptor* field = nullptr;  // that the next value, or each of a list, is of
    bool is_behind_name = false;
    bool has_any = false;
  };

  const pb::FieldDescriptor* field_of_value() const {
    return open_.empty() ? nullptr : open_.back().field;
  }
  // A comma, except for the first of its object or list and after a name.
  void separate() {
    if (open_.empty()) return;
    Open& open = open_.back();
    if (std::exchange(open.is_behind_name, false)) return;
    if (std::exchange(open.has_any, true)) out_ += ',';
  }
  bool put(std::string_view value) {
    separate();
    out_ += value;
    return true;
  }
  bool close(char brace) {
    open_.pop_back();
    out_ += brace;
    return true;
  }

  const pb::Descriptor* const type_;
  std::string& out_;
  std::vector<Open> open_;
};

// The text in pieces, none once the reading is cancelled.
class Pieces final : public pb::io::ZeroCopyInputStream {
 public:
  Pieces(std::string_view text, const JsonBudget* budget) : text_(text), budget_(budget) {}

  bool Next(const void** data, int* size) override {
    if (at_ == text_.size() || (budget_ != nullptr && budget_->cancelled())) return false;
    const std::size_t piece = std::min(kPieceBytes, text_.size() - at_);
    *data = text_.data() + at_;
    *size = static_cast<int>(piece);
    at_ += piece;
    return true;
  }
  void BackUp(int count) override { at_ -= static_cast<std::size_t>(count); }
  bool Skip(int count) override {
    const std::size_t skipped = std::min(static_cast<std::size_t>(count), text_.size() - at_);
    at_ += skipped;
    return skipped == static_cast<std::size_t>(count);
  }
  std::int64_t ByteCount() const override { return static_cast<std::int64_t>(at_); }

 private:
  static constexpr std::size_t kPieceBytes = 256 << 10;

  const std::string_view text_;
  const JsonBudget* const budget_;
  std::size_t at_ = 0;
};

// A sentence of protobuf's, as one of ours.
grpc::Status no_such_message(std::string_view why) {
  return {grpc::INVALID_ARGUMENT, std::string(kSubject) + ": " + std::string(why)};
}

grpc::Status parse_into(const std::string& bytes, pb::Message& message) {
  if (message.ParseFromString(bytes)) return grpc::Status::OK;
  return no_such_message("is no " + message.GetDescriptor()->full_name());
}

}  // namespace

std::unique_ptr<pb::Message> new_message(const pb::Descriptor* type) {
  return std::unique_ptr<pb::Message>(
      pb::MessageFactory::generated_factory()->GetPrototype(type)->New());
}

bool is_text(const pb::FieldDescriptor& field) {
  return field.name() == "text" || field.name() == "strings" || field.name() == "stop_string";
}

grpc::Status json_to_bytes(std::string_view json, const pb::Descriptor* type, JsonBudget* budget,
                           std::string& bytes) {
  static const std::string kUrl = "type.googleapis.com";
  static pb::util::TypeResolver* const resolver =
      pb::util::NewTypeResolverForDescriptorPool(kUrl, pb::DescriptorPool::generated_pool());
  bytes.clear();
  if (json.empty()) return grpc::Status::OK;
  JsonFailure failure;
  if (!check_json_shape(json, bounds_of(budget), kMessageCosts, failure)) {
    return json_refusal(failure, kSubject);
  }
  Pieces in(json, budget);
  pb::io::StringOutputStream out(&bytes);
  const auto read =
      pb::util::JsonToBinaryStream(resolver, kUrl + "/" + type->full_name(), &in, &out);
  if (budget != nullptr && budget->cancelled()) {
    return json_refusal({.kind = JsonFailure::Kind::kCancelled}, kSubject);
  }
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

grpc::Status plain_json_to_bytes(std::string_view json, const pb::Descriptor* type,
                                 JsonBudget* budget, std::string& bytes) {
  std::string spelled;
  if (!json.empty()) {
    // Base64 and escapes make a text longer by a third or so.
    const auto most = 2 * static_cast<std::int64_t>(json.size());
    JsonFailure failure{.kind = JsonFailure::Kind::kNoRoom};
    const bool has_room = budget == nullptr || budget->charge(most);
    SpellText spell(type, spelled);
    if (!has_room || !read_json_events(json, bounds_of(budget), spell, failure)) {
      return json_refusal(failure, kSubject);
    }
  }
  return json_to_bytes(spelled, type, budget, bytes);
}

grpc::Status read_json(const std::string& json, pb::Message& message) {
  std::string bytes;
  grpc::Status read = json_to_bytes(json, message.GetDescriptor(), nullptr, bytes);
  return read.ok() ? parse_into(bytes, message) : read;
}

grpc::Status read_plain_json(const std::string& json, pb::Message& message) {
  std::string bytes;
  grpc::Status read = plain_json_to_bytes(json, message.GetDescriptor(), nullptr, bytes);
  return read.ok() ? parse_into(bytes, message) : read;
}

}  // namespace lintel
