// config.json <-> ModelConfig. Each object is read by a Fields, which knows the file and the path
// of keys for errors, and refuses what nobody asked for.
#include <cmath>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <unordered_set>
#include <utility>

#include "model/base/error_text.h"
#include "model/config/config.h"
#include "model/config/config_limits.h"

namespace lintel {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxDepth = 8;

// Text of a found value for an error.
std::string found_text(const json& value) {
  return shorten(value.dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace));
}

// The keys of one object. Every get marks its key as known; finish() refuses the others.
class Fields {
 public:
  // path: of this object within the file, "" or "head." REQUIRES: object outlives this.
  Fields(const json& object, std::string file, std::string path)
      : object_(object), file_(std::move(file)), path_(std::move(path)) {
    if (!object.is_object()) {
      const std::string name = path_.empty() ? "" : path_.substr(0, path_.size() - 1);
      throw ModelError(file_ + ": " + (name.empty() ? "" : "key \"" + name + "\": ") + "found " +
                       found_text(object) + ", expected an object");
    }
  }

  [[noreturn]] void fail(const std::string& key, const std::string& found,
                         const std::string& expected) const {
    throw ModelError(file_ + ": key \"" + path_ + key + "\": found " + found + ", expected " +
                     expected);
  }

  bool has(const std::string& key) {
    known_.insert(key);
    return object_.contains(key);
  }

  const json& value(const std::string& key, const std::string& expected) {
    if (!has(key)) fail(key, "nothing", expected);
    return object_.at(key);
  }

  std::int64_t integer(const std::string& key, std::int64_t low, std::int64_t high) {
    const std::string expected =
        "a whole number from " + std::to_string(low) + " to " + std::to_string(high);
    const json& v = value(key, expected);
    const bool fits = v.is_number_unsigned() ? v.get<std::uint64_t>() <= std::uint64_t(INT64_MAX)
                                             : v.is_number_integer();
    if (!fits || v.get<std::int64_t>() < low || v.get<std::int64_t>() > high) {
      fail(key, found_text(v), expected);
    }
    return v.get<std::int64_t>();
  }

  int small_integer(const std::string& key, int low, int high) {
    return static_cast<int>(integer(key, low, high));
  }

  // A number that is still positive and finite as f32, which is what kernels use.
  double positive(const std::string& key, double high, const char* or_null = "") {
    const std::string expected =
        "a number above 0 and at most " + json(high).dump() + std::string(or_null);
    const json& v = value(key, expected);
    if (!v.is_number()) fail(key, found_text(v), expected);
    const double number = v.get<double>();
    if (!(number >= std::numeric_limits<float>::min() && number <= high)) {
      fail(key, found_text(v), expected);
    }
    return number;
  }

  bool boolean(const std::string& key) {
    const json& v = value(key, "true or false");
    if (!v.is_boolean()) fail(key, found_text(v), "true or false");
    return v.get<bool>();
  }

  template <typename T>
  T choice(const std::string& key, std::initializer_list<std::pair<const char*, T>> names) {
    std::string expected;
    for (const auto& [name, unused] : names) {
      expected += (expected.empty() ? "\"" : " or \"") + std::string(name) + "\"";
    }
    const json& v = value(key, expected);
    for (const auto& [name, result] : names) {
      if (v.is_string() && v.get_ref<const std::string&>() == name) return result;
    }
    fail(key, found_text(v), expected);
  }

  void finish(const std::string& of = "") const {
    for (const auto& [key, unused] : object_.items()) {
      if (known_.contains(key)) continue;
      std::string expected;
      for (const std::string& name : known_) expected += (expected.empty() ? "" : ", ") + name;
      throw ModelError(file_ + ": unknown key " + quote(path_ + key) + of + ", expected one of " +
                       expected);
    }
  }

 private:
  const json& object_;
  const std::string file_;
  const std::string path_;
  std::set<std::string> known_;
};

enum class AttentionType { kLinear, kSoftmax, kLsh };

void read_scale(Fields& fields, AttentionConfig& attention) {
  if (!fields.has("scale") || fields.value("scale", "").is_null()) return;  // 1/sqrt(d_head)
  attention.scale = fields.positive("scale", kMaxAttentionScale, ", or null");
}

AttentionConfig read_attention(const json& value, const std::string& file,
                               const std::string& path) {
  Fields fields(value, file, path);
  AttentionConfig attention;
  const auto type = fields.choice<AttentionType>("type", {{"linear", AttentionType::kLinear},
                                                          {"softmax", AttentionType::kSoftmax},
                                                          {"lsh", AttentionType::kLsh}});
  attention.type = value.at("type").get<std::string>();
  switch (type) {
    case AttentionType::kLinear:
      if (fields.has("feature_map")) fields.choice<bool>("feature_map", {{"elu_plus_one", true}});
      if (fields.has("eps")) attention.eps = fields.positive("eps", kMaxEpsilon);
      break;
    case AttentionType::kSoftmax:
      read_scale(fields, attention);
      break;
    case AttentionType::kLsh:
      read_scale(fields, attention);
      attention.rounds = fields.small_integer("rounds", 1, kMaxRounds);
      attention.bits = fields.small_integer("bits", 1, kMaxBits);
      attention.chunk_size = fields.small_integer("chunk_size", 1, kMaxChunkSize);
      if (fields.has("mask_self")) attention.mask_self = fields.boolean("mask_self");
      if (fields.has("combine")) {
        attention.combine = fields.choice<RoundCombination>(
            "combine",
            {{"mean", RoundCombination::kMean}, {"logsumexp", RoundCombination::kLogSumExp}});
      }
      break;
  }
  fields.finish(" for attention type \"" + attention.type + "\"");
  return attention;
}

std::vector<AttentionConfig> read_layers(Fields& root, int n_layers, const std::string& file) {
  const json& value = root.value("attention", "an object or a list of them");
  const std::size_t layers = static_cast<std::size_t>(n_layers);
  if (value.is_object()) return {layers, read_attention(value, file, "attention.")};
  if (!value.is_array()) {
    root.fail("attention", found_text(value), "an object or a list of them");
  }
  if (value.size() != layers) {
    root.fail("attention", "a list of " + std::to_string(value.size()),
              "a list of n_layers = " + std::to_string(n_layers));
  }
  std::vector<AttentionConfig> attention;
  for (std::size_t i = 0; i < layers; ++i) {
    attention.push_back(read_attention(value[i], file, "attention[" + std::to_string(i) + "]."));
  }
  return attention;
}

void read_head(Fields& root, const std::string& file, ModelConfig& config) {
  Fields head(root.value("head", "an object"), file, "head.");
  config.head =
      head.choice<HeadKind>("type", {{"mixture_of_logistics", HeadKind::kMixtureOfLogistics},
                                     {"categorical", HeadKind::kCategorical}});
  const bool mixture = config.head == HeadKind::kMixtureOfLogistics;
  if (mixture) config.mixtures = head.small_integer("mixtures", 1, kMaxMixtures);
  head.finish(mixture ? " for head type \"mixture_of_logistics\""
                      : " for head type \"categorical\"");
}

void read_modality(Fields& root, const std::string& file, ModelConfig& config) {
  Fields modality(root.value("modality", "an object"), file, "modality.");
  config.modality = modality.choice<ModalityKind>("type", {{"image", ModalityKind::kImage},
                                                           {"bytes", ModalityKind::kBytes},
                                                           {"tokens", ModalityKind::kTokens}});
  if (config.modality == ModalityKind::kImage) {
    config.image.height = modality.small_integer("height", 1, kMaxImageSide);
    config.image.width = modality.small_integer("width", 1, kMaxImageSide);
    config.image.channels = modality.small_integer("channels", 1, kMaxImageChannels);
    config.image.start_token = modality.small_integer("start_token", 0, config.vocab_size - 1);
  }
  modality.finish();
}

// Refuses depth and repeated keys before a tree is built. (The parser's own callback would do both,
// but takes quadratic time over many small objects.)
class StrictReader : public nlohmann::json_sax<json> {
 public:
  explicit StrictReader(const std::string& file) : file_(file) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(std::int64_t) override { return true; }
  bool number_unsigned(std::uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(json::binary_t&) override { return true; }
  bool start_object(std::size_t) override { return enter(); }
  bool start_array(std::size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }

  bool key(std::string& name) override {
    if (!keys_.back().insert(name).second) {
      throw ModelError(file_ + ": key " + quote(name) + " is there twice, expected once");
    }
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const json::exception& error) override {
    throw ModelError(file_ + ": not JSON: " + shorten(error.what(), 300));
  }

 private:
  bool enter() {
    keys_.emplace_back();
    if (keys_.size() > kMaxDepth) {
      throw ModelError(file_ + ": found JSON nested " + std::to_string(keys_.size()) +
                       " deep, expected at most " + std::to_string(kMaxDepth));
    }
    return true;
  }
  bool leave() {
    keys_.pop_back();
    return true;
  }

  const std::string& file_;
  std::vector<std::unordered_set<std::string>> keys_;  // of the open objects, outermost first
};

json parse_strictly(std::string_view text, const std::string& file) {
  StrictReader reader(file);
  json::sax_parse(text.begin(), text.end(), &reader);
  return json::parse(text.begin(), text.end());
}

}  // namespace

AttentionConfig parse_attention_config(std::string_view json_text, const std::string& name) {
  return read_attention(parse_strictly(json_text, name), name, "");
}

ModelConfig parse_config(std::string_view json_text, const std::string& file) {
  if (json_text.size() > kMaxConfigBytes) {
    throw ModelError(file + ": found " + std::to_string(json_text.size()) +
                     " bytes, expected at most " + std::to_string(kMaxConfigBytes));
  }
  const json parsed = parse_strictly(json_text, file);
  Fields root(parsed, file, "");
  ModelConfig config;
  root.integer("format_version", 1, 1);
  config.vocab_size = root.small_integer("vocab_size", 1, kMaxVocabSize);
  config.max_length = root.integer("max_length", 0, kMaxMaxLength);
  config.d_model = root.small_integer("d_model", 1, kMaxModelWidth);
  config.n_layers = root.small_integer("n_layers", 1, kMaxLayers);
  config.n_heads = root.small_integer("n_heads", 1, kMaxHeads);
  config.d_head = root.small_integer("d_head", 1, kMaxHeadWidth);
  config.d_ff = root.small_integer("d_ff", 1, kMaxFeedForwardWidth);
  config.activation = root.choice<Activation>(
      "activation", {{"relu", Activation::kRelu}, {"gelu", Activation::kGelu}});
  config.norm_placement = root.choice<NormPlacement>(
      "norm_placement", {{"post", NormPlacement::kPost}, {"pre", NormPlacement::kPre}});
  config.final_norm = root.boolean("final_norm");
  config.layer_norm_eps = root.positive("layer_norm_eps", kMaxEpsilon);
  config.embedding = root.choice<EmbeddingKind>(
      "embedding", {{"value_concat_position", EmbeddingKind::kValueConcatPosition},
                    {"value_add_position", EmbeddingKind::kValueAddPosition},
                    {"value", EmbeddingKind::kValue}});
  config.position_encoding = root.choice<PositionEncoding>(
      "position_encoding", {{"sinusoidal", PositionEncoding::kSinusoidal},
                            {"learned", PositionEncoding::kLearned},
                            {"none", PositionEncoding::kNone}});
  config.attention = read_layers(root, config.n_layers, file);
  read_head(root, file, config);
  read_modality(root, file, config);
  root.finish();
  check_config(config, file);
  return config;
}

}  // namespace lintel
