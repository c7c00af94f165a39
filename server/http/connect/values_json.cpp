#include "server/http/connect/values_json.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

namespace lintel {
namespace {

template <typename Integer>
void add_integer(std::string& json, Integer value) {
  char text[24];
  json.append(text, std::to_chars(text, text + sizeof text, value).ptr);
}

// protobuf's digits (SimpleFtoa): FLT_DIG of them, or three more where fewer are not the float.
std::string_view spell(float value, char (&text)[32]) {
  constexpr int kDigits = std::numeric_limits<float>::digits10;
  const auto with = [&](int digits) {
    char* const end =
        std::to_chars(text, text + sizeof text, value, std::chars_format::general, digits).ptr;
    return std::string_view(text, static_cast<std::size_t>(end - text));
  };
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

// Nothing where there are no values, as protobuf has it.
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

// Of a chunk, and of the most likely values in place of one of its own.
template <typename Message>
void add_values(std::string& json, const Message& message, JsonReader reader) {
  add_list(json, "tokens", message.tokens(),
           [&json](std::int32_t token) { add_integer(json, token); });
  add_list(json, "log2Probs", message.log2_probs(),
           [&json, reader](float value) { add_float(json, value, reader); });
}

}  // namespace

void add_chunk(std::string& json, const v1::Chunk& chunk, JsonReader reader) {
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
  add_values(json, chunk, reader);
  add_list(json, "top", chunk.top(), [&json, reader](const v1::TopValues& top) {
    json += '{';
    add_values(json, top, reader);
    json += '}';
  });
  json += '}';
}

std::string values_json(const v1::GenerateResponse& message) {
  std::string json = "{";
  add_list(json, "chunks", message.chunks(),
           [&json](const v1::Chunk& chunk) { add_chunk(json, chunk, JsonReader::kProgram); });
  return json + '}';
}

}  // namespace lintel
