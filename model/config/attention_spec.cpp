#include "model/config/attention_spec.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "model/config/attention_json.h"
#include "model/config/config_limits.h"
#include "model/core/error_text.h"

namespace lintel {
namespace {

using nlohmann::json;

std::string named(const AttentionSpec& spec) { return "attention " + quote(spec.text); }

// config.json's reader judges keys and values, so that there is one list of them. object: the keys
// that were not given.
AttentionConfig merged(json object, const AttentionSpec& spec) {
  object["type"] = spec.type;
  for (const auto& [key, value] : spec.keys) object[key] = json::parse(value);
  return read_attention(object, named(spec), "");
}

bool has_default(const AttentionConfig& config, const std::string& key) {
  return std::ranges::any_of(config.kind().keys, [&key](const ConfigKey& declared) {
    return declared.name == key && declared.initial != nullptr;
  });
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
    const AttentionKind& kind = attention_kind(spec_.type);  // refuses unknown types
    while (end < text.size()) {
      const std::size_t begin = end + 1;
      end = std::min(text.find(',', begin), text.size());
      read_key(text.substr(begin, end - begin));
    }
    if (spec_.seed.has_value() && kind.tensors == nullptr) {
      fail("seed", "a type that draws nothing", "no seed for " + quote(spec_.type));
    }
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

AttentionConfig AttentionSpec::applied_to(const AttentionConfig& own, const LayerDims& dims) const {
  json kept = own.type() == type ? json(attention_json(own)) : json::object();
  for (;;) {
    AttentionConfig config = merged(kept, *this);
    const auto contradiction = config.kind().contradiction;
    if (contradiction == nullptr) return config;
    const auto wrong = contradiction(config, dims);
    // What was given stays; a key of the layer's own gives way.
    const bool gives_way = wrong && !keys.contains(wrong->key) && has_default(config, wrong->key) &&
                           kept.erase(wrong->key) > 0;
    if (!gives_way) return config;  // check_attention refuses what still contradicts
  }
}

AttentionSpec parse_attention_spec(const std::string& text) {
  AttentionSpec spec = Reader(text).read();
  // What keys say, beside any that must be given.
  merged(json(attention_json(sample_attention(spec.type))), spec);
  return spec;
}

ModelConfig with_attention(ModelConfig config, const AttentionSpec& spec) {
  for (AttentionConfig& layer : config.attention) {
    layer = spec.applied_to(layer, config.dims());
    check_attention(layer, config.dims(), named(spec), "");
  }
  return config;
}

AttentionConfig attention_of(const std::string& spec) {
  return merged(json::object(), Reader(spec).read());
}

std::vector<std::string> sample_specs(std::string_view type) {
  const AttentionKind& kind = attention_kind(type);
  std::vector<std::string> specs;
  for (const std::string keys : kind.samples) {
    specs.push_back(std::string(type) + (keys.empty() ? "" : ":" + keys));
  }
  return specs;
}

AttentionConfig sample_attention(std::string_view type) {
  return attention_of(sample_specs(type).front());
}

}  // namespace lintel
