#include "model/config/attention_spec.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "model/attention/attention.h"
#include "model/base/error_text.h"

namespace lintel {
namespace {

using nlohmann::json;

// config.json's reader judges keys and values, so that there is one list of them.
AttentionConfig merged(const AttentionConfig& base, const AttentionSpec& spec) {
  json object = json::object();
  if (base.type == spec.type) object = json::parse(to_json(base));
  object["type"] = spec.type;
  for (const auto& [key, value] : spec.keys) object[key] = json::parse(value);
  return parse_attention_config(object.dump(), "attention " + quote(spec.text));
}

// A value as JSON: numbers, true, false and null are themselves, the rest is a string.
std::string json_of(const std::string& value) {
  const json parsed = json::parse(value, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_discarded() && !parsed.is_structured() && !parsed.is_string()) return value;
  return json(value).dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
}

class Reader {
 public:
  explicit Reader(const std::string& text) { spec_.text = text; }

  AttentionSpec read() {
    const std::string& text = spec_.text;
    std::size_t end = std::min(text.find(':'), text.size());
    spec_.type = text.substr(0, end);
    const AttentionConfig small = default_attention(spec_.type);  // refuses unknown types
    while (end < text.size()) {
      const std::size_t begin = end + 1;
      end = std::min(text.find(',', begin), text.size());
      read_key(text.substr(begin, end - begin));
    }
    if (spec_.seed.has_value() && small.bits == 0) {
      fail("seed", "a type that draws nothing", "no seed for " + quote(spec_.type));
    }
    merged(small, spec_);
    return std::move(spec_);
  }

 private:
  [[noreturn]] void fail(const std::string& key, const std::string& found,
                         const std::string& expected) const {
    throw ModelError("attention " + quote(spec_.text) + ": key " + quote(key) + ": found " + found +
                     ", expected " + expected);
  }

  void read_key(const std::string& assignment) {
    const std::size_t equals = assignment.find('=');
    if (equals == 0 || equals == std::string::npos) {
      throw ModelError("attention " + quote(spec_.text) + ": found " + quote(assignment) +
                       ", expected key=value");
    }
    const std::string key = assignment.substr(0, equals);
    const std::string value = assignment.substr(equals + 1);
    if (key == "type") fail(key, quote(value), "the type before the colon");
    if (!names_.emplace(key, value).second) fail(key, "it twice", "it once");
    if (key == "recompute") {
      if (value != "true" && value != "false") fail(key, quote(value), "true or false");
      spec_.recompute = value == "true";
    } else if (key == "seed") {
      std::uint64_t seed = 0;
      const char* const last = value.data() + value.size();
      const auto [rest, error] = std::from_chars(value.data(), last, seed);
      if (error != std::errc() || rest != last) {
        fail(key, quote(value), "a whole number from 0 to 2^64 - 1");
      }
      spec_.seed = seed;
    } else {
      spec_.keys.emplace(key, json_of(value));
    }
  }

  AttentionSpec spec_;
  std::map<std::string, std::string> names_;
};

}  // namespace

AttentionConfig AttentionSpec::applied_to(const AttentionConfig& own) const {
  return merged(own, *this);
}

AttentionSpec parse_attention_spec(const std::string& text) { return Reader(text).read(); }

}  // namespace lintel
