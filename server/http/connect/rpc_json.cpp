// SPDX-License-Identifier: Apache-2.0
#include "server/http/connect/rpc_json.h"

#include <absl/strings/escaping.h>
#include <google/protobuf/io/zero_copy_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/type_resolver.h>
#include <google/protobuf/util/type_resolver_util.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lintel/v1/generation.pb.h"
#include "server/http/encoding/json_bodies.h"

namespace lintel {

namespace {

namespace pb = google::protobuf;
using Json = nlohmann::ordered_json;

// Messages of tokens as JSON, quickly.

// The reader of the JSON, on whom only the spelling of floats depends.
enum class JsonReader {
  kProgram,  // protobuf's spelling: a float's 6 digits, or 9 where those are another float
  kPerson,   // what nlohmann::json makes of that spelling, as the rest of a line of JSON is
};

template <typename Integer>
void add_integer(std::string& json, Integer value) {
  char text[24];
  json.append(text, std::to_chars(text, text + sizeof text, value).ptr);
}

// protobuf's digits (SimpleFtoa): FLT_DIG of them, or three more where fewer are not the float, or
// where strtof reports a subnormal number as out of range.
std::string_view spell(float value, char (&text)[32]) {
  constexpr int kDigits = std::numeric_limits<float>::digits10;
  const auto with = [&](int digits) {
    char* const end =
        std::to_chars(text, text + sizeof text, value, std::chars_format::general, digits).ptr;
    return std::string_view(text, static_cast<std::size_t>(end - text));
  };
  if (std::fpclassify(value) == FP_SUBNORMAL) return with(kDigits + 3);
  const std::string_view few = with(kDigits);
  float back = 0;
  std::from_chars(few.begin(), few.end(), back);
  return back == value ? few : with(kDigits + 3);
}

void add_float(std::string& json, float value, JsonReader reader) {
  if (!std::isfinite(value)) {
    json += std::isnan(value) ? "\"NaN\"" : value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
    return;
  }
  char text[32];
  const std::string_view spelled = spell(value, text);
  if (reader == JsonReader::kProgram) {
    json += spelled;
  } else if (spelled == "-0") {
    json += '0';  // an integer, which has no sign there
  } else if (spelled.find_first_of(".e") == std::string_view::npos) {
    json += spelled;
  } else {
    double parsed = 0;
    std::from_chars(spelled.begin(), spelled.end(), parsed);
    json += nlohmann::json(parsed).dump();
  }
}

// A field's name, after a comma unless it is the first in its braces.
void add_name(std::string& json, std::string_view name) {
  if (json.back() != '{') json += ',';
  json += '"';
  json += name;
  json += "\":";
}

// Adds a list. An empty one is left out, as in protobuf's JSON.
template <typename Values, typename Add>
void add_list(std::string& json, std::string_view name, const Values& values, Add add) {
  if (values.empty()) return;
  add_name(json, name);
  char before = '[';
  for (const auto& value : values) {
    json += before;
    add(value);
    before = ',';
  }
  json += ']';
}

template <typename Message>
void add_token_bytes(std::string& json, const Message& message) {
  add_list(json, "tokenBytes", message.token_bytes(), [&json](const std::string& bytes) {
    json += '"';
    json += absl::Base64Escape(bytes);
    json += '"';
  });
}

// Adds the tokens of a chunk, or the most likely tokens in place of one of them.
template <typename Message>
void add_tokens(std::string& json, const Message& message, JsonReader reader) {
  add_list(json, "tokens", message.tokens(),
           [&json](std::int32_t token) { add_integer(json, token); });
  add_list(json, "log2Probs", message.log2_probs(),
           [&json, reader](float value) { add_float(json, value, reader); });
}

// A chunk as protobuf's JSON has it, token_bytes if `with_bytes`. By hand, because protobuf's
// printer goes by reflection, which costs more than all else that happens to a message.
void add_chunk(std::string& json, const v1::Chunk& chunk, JsonReader reader, bool with_bytes) {
  json += '{';
  if (chunk.sample() != 0) {
    add_name(json, "sample");
    add_integer(json, chunk.sample());
  }
  if (chunk.first_position() != 0) {  // 64 bits: in quotes
    add_name(json, "firstPosition");
    json += '"';
    add_integer(json, chunk.first_position());
    json += '"';
  }
  if (chunk.source() != 0) {
    add_name(json, "source");
    const std::string& name = v1::ValueSource_Name(chunk.source());
    if (name.empty()) {
      add_integer(json, static_cast<int>(chunk.source()));
    } else {
      json += '"' + name + '"';
    }
  }
  add_tokens(json, chunk, reader);
  add_list(json, "top", chunk.top(), [&json, reader, with_bytes](const v1::TopValues& top) {
    json += '{';
    add_tokens(json, top, reader);
    if (with_bytes) add_token_bytes(json, top);
    json += '}';
  });
  if (with_bytes) add_token_bytes(json, chunk);
  json += '}';
}

// The whole message, as protobuf prints it. REQUIRES: no sample ends in it.
std::string json_of_tokens(const v1::GenerateResponse& message) {
  std::string json = "{";
  add_list(json, "chunks", message.chunks(), [&json](const v1::Chunk& chunk) {
    add_chunk(json, chunk, JsonReader::kProgram, /*with_bytes=*/true);
  });
  return json + '}';
}

// Requests in JSON.

using PlainJson = nlohmann::json;

// A depth beyond that of any request, and the one that protobuf's parser takes.
constexpr int kMostDepth = 100;
// Memory that protobuf's parser and the message hold for an object or a list, and for a value.
constexpr JsonCosts kMessageCosts{.each_container = 96, .each_value = 16};
constexpr const char* kSubject = "the request's JSON";

JsonBounds bounds_of(JsonBudget* budget) { return {.max_depth = kMostDepth, .budget = budget}; }

// True if people write a field of bytes as text: texts, and bodies of OpenAI's API, which are JSON.
bool is_text(const pb::FieldDescriptor& field) {
  constexpr std::string_view kTexts[] = {"text", "strings", "stop_string", "body", "response"};
  return field.type() == pb::FieldDescriptor::TYPE_BYTES && !field.is_map() &&
         std::ranges::find(kTexts, field.name()) != std::end(kTexts);
}

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
    const bool spells = field != nullptr && is_text(*field);
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

}  // namespace

grpc::Status read_json(std::string_view json, JsonBudget* budget, pb::Message& message) {
  static const std::string kUrl = "type.googleapis.com";
  static pb::util::TypeResolver* const resolver =
      pb::util::NewTypeResolverForDescriptorPool(kUrl, pb::DescriptorPool::generated_pool());
  if (json.empty()) return grpc::Status::OK;
  JsonFailure failure;
  if (!check_json_shape(json, bounds_of(budget), kMessageCosts, failure)) {
    return json_refusal(failure, kSubject);
  }
  std::string bytes;
  Pieces in(json, budget);
  pb::io::StringOutputStream out(&bytes);
  const std::string& type = message.GetDescriptor()->full_name();
  const auto read = pb::util::JsonToBinaryStream(resolver, kUrl + "/" + type, &in, &out);
  if (budget != nullptr && budget->cancelled()) {
    return json_refusal({.kind = JsonFailure::Kind::kCancelled}, kSubject);
  }
  if (!read.ok()) return no_such_message({read.message().data(), read.message().size()});
  return message.ParseFromString(bytes) ? grpc::Status::OK : no_such_message("is no " + type);
}

std::string write_json(const pb::Message& message) {
  const auto* const response = dynamic_cast<const v1::GenerateResponse*>(&message);
  if (response != nullptr && response->finished().empty()) return json_of_tokens(*response);
  std::string json;
  // The status is ignored: no service makes a message that cannot be written.
  (void)pb::util::MessageToJsonString(message, &json);
  return json;
}

grpc::Status read_plain_json(std::string_view json, JsonBudget* budget, pb::Message& message) {
  std::string spelled;
  if (!json.empty()) {
    // Base64 and escapes make a text longer by a third or so.
    const auto most = 2 * static_cast<std::int64_t>(json.size());
    JsonFailure failure{.kind = JsonFailure::Kind::kNoSpace};
    const bool has_room = budget == nullptr || budget->charge(most);
    SpellText spell(message.GetDescriptor(), spelled);
    if (!has_room || !read_json_events(json, bounds_of(budget), spell, failure)) {
      return json_refusal(failure, kSubject);
    }
  }
  return read_json(spelled, budget, message);
}

namespace {

void from_base64(Json& value) {
  if (value.is_array()) {
    for (Json& one : value) from_base64(one);
  } else if (value.is_string()) {
    std::string bytes;
    if (absl::Base64Unescape(value.get_ref<const std::string&>(), &bytes)) value = bytes;
  }
}

// Turns what protobuf wrote into what people read, in all of the message.
void show_text(Json& json, const pb::Descriptor* type) {
  if (json.is_array()) {
    for (Json& one : json) show_text(one, type);
    return;
  }
  if (!json.is_object()) return;
  for (auto& [name, value] : json.items()) {
    const pb::FieldDescriptor* const field = type->FindFieldByCamelcaseName(name);
    if (field == nullptr || field->is_map()) continue;
    if (field->type() == pb::FieldDescriptor::TYPE_MESSAGE) {
      show_text(value, field->message_type());
    } else if (is_text(*field)) {
      from_base64(value);
    }
  }
}

}  // namespace

std::string PlainMessages::line(const pb::Message& message) {
  const auto* const response = dynamic_cast<const v1::GenerateResponse*>(&message);
  // All but the last messages of a sample.
  if (response != nullptr && response->finished().empty()) return line_of_tokens(*response);
  Json json = Json::parse(write_json(message));
  show_text(json, message.GetDescriptor());
  if (response != nullptr && text_ != PlainText::kNone) {
    for (int i = 0; i < response->chunks_size(); ++i) {
      Json& chunk = json["chunks"][static_cast<std::size_t>(i)];
      if (text_ == PlainText::kAlone) {
        chunk.erase("tokenBytes");
        if (chunk.contains("top")) {
          for (Json& top : chunk["top"]) top.erase("tokenBytes");
        }
      }
      chunk["text"] = text_of(response->chunks(i));
    }
    for (int i = 0; i < response->finished_size(); ++i) {
      std::string rest;
      characters_[response->finished(i).sample()].finish(rest);
      if (!rest.empty()) json["finished"][static_cast<std::size_t>(i)]["text"] = rest;
    }
  }
  return dumped(json);
}

std::string PlainMessages::line_of_tokens(const v1::GenerateResponse& message) {
  std::string line = "{";
  for (const v1::Chunk& chunk : message.chunks()) {
    line += line.size() == 1 ? "\"chunks\":[" : ",";
    add_chunk(line, chunk, JsonReader::kPerson, /*with_bytes=*/text_ != PlainText::kAlone);
    if (text_ == PlainText::kNone) continue;
    line.pop_back();  // the brace
    if (line.back() != '{') line += ',';
    line += "\"text\":" + dumped(Json(text_of(chunk))) + '}';
  }
  return line + (line.size() == 1 ? "}" : "]}");
}

std::string PlainMessages::text_of(const v1::Chunk& chunk) {
  std::string text;
  for (const std::string& bytes : chunk.token_bytes()) {
    characters_[chunk.sample()].push(bytes, text);
  }
  return text;
}

}  // namespace lintel
