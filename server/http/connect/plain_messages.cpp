#include "server/http/connect/plain_messages.h"

#include <absl/strings/escaping.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "lintel/v1/generation.pb.h"
#include "server/http/connect/rpc_json.h"
#include "server/http/connect/values_json.h"

namespace lintel {
namespace {

namespace pb = google::protobuf;
using Json = nlohmann::ordered_json;

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
    } else if (field->type() == pb::FieldDescriptor::TYPE_BYTES && is_text(*field)) {
      from_base64(value);
    }
  }
}

std::string dumped_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::size_t whole_utf8(std::string_view text) {
  // The last character begins within the last four bytes, where there is one.
  for (std::size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xc0) == 0x80) continue;  // inside of one
    const std::size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return length > back ? text.size() - back : text.size();
  }
  return text.size();
}

std::string PlainMessages::line(const pb::Message& message) {
  const auto* const response = dynamic_cast<const v1::GenerateResponse*>(&message);
  // All but the last messages of a sample.
  if (response != nullptr && response->finished().empty()) return line_of_values(*response);
  Json json = Json::parse(write_json(message));
  show_text(json, message.GetDescriptor());
  if (response != nullptr && with_text_) {
    for (int i = 0; i < response->chunks_size(); ++i) {
      json["chunks"][static_cast<std::size_t>(i)]["text"] = text_of(response->chunks(i));
    }
    for (int i = 0; i < response->finished_size(); ++i) {
      const auto cut = cut_.find(response->finished(i).sample());
      if (cut == cut_.end()) continue;
      if (!cut->second.empty()) json["finished"][static_cast<std::size_t>(i)]["text"] = "\ufffd";
      cut_.erase(cut);
    }
  }
  return dumped_line(json);
}

std::string PlainMessages::line_of_values(const v1::GenerateResponse& message) {
  std::string line = "{";
  for (const v1::Chunk& chunk : message.chunks()) {
    line += line.size() == 1 ? "\"chunks\":[" : ",";
    add_chunk(line, chunk, JsonReader::kPerson);
    if (!with_text_) continue;
    line.pop_back();  // the brace
    if (line.back() != '{') line += ',';
    line += "\"text\":" + dumped_line(text_of(chunk)) + '}';
  }
  return line + (line.size() == 1 ? "}" : "]}");
}

std::string PlainMessages::text_of(const v1::Chunk& chunk) {
  std::string& cut = cut_[chunk.sample()];
  for (const std::int32_t byte : chunk.tokens()) cut += static_cast<char>(byte);
  const std::size_t whole = whole_utf8(cut);
  std::string text = cut.substr(0, whole);
  cut.erase(0, whole);
  return text;
}

}  // namespace lintel
