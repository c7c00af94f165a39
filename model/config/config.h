// SPDX-License-Identifier: Apache-2.0
// ModelConfig: what config.json says, every field checked. See docs/model_format.md.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/core/errors.h"
#include "model/layers/attention/attention.h"

namespace lintel {

enum class Activation { kRelu, kGelu };  // gelu: the exact erf form
enum class NormPlacement { kPost, kPre };
enum class EmbeddingKind { kValueConcatPosition, kValueAddPosition, kValue };
enum class PositionEncoding { kSinusoidal, kLearned, kNone };
// The place where the position's row is added to x: before the first layer, or before each.
enum class PositionInjection { kInput, kEveryLayer };
// x += f(x); or two streams (RevNet, Gomez et al. 2017; Reformer, Kitaev et al. 2020), of which the
// mean or both side by side leave the last layer.
enum class Residual { kSum, kReversibleMean, kReversibleConcat };
enum class HeadKind { kMixtureOfLogistics, kCategorical };
enum class ModalityKind { kImage, kBytes, kTokens };

struct ImageShape {
  int height = 0;
  int width = 0;
  int channels = 0;
  int start_token = 0;
  std::int64_t num_tokens() const { return std::int64_t{height} * width * channels; }
};

struct ModelConfig {
  int vocab_size = 0;           // V
  std::int64_t max_length = 0;  // positions that can be fed; 0: unbounded
  int d_model = 0;              // E
  int n_layers = 0;
  int n_heads = 0;  // H
  int d_head = 0;   // D, also the size of a value (M)
  int d_ff = 0;     // F
  Activation activation = Activation::kRelu;
  NormPlacement norm_placement = NormPlacement::kPost;
  bool final_norm = true;
  double layer_norm_eps = 1e-5;
  EmbeddingKind embedding = EmbeddingKind::kValueConcatPosition;
  PositionEncoding position_encoding = PositionEncoding::kSinusoidal;
  std::vector<AttentionConfig> attention;  // [n_layers]
  // [n_layers] of which set of a layer's tensors each layer is made (ALBERT, Universal
  // Transformer): 0 first, new ones in order. Empty: each has its own.
  std::vector<int> layer_weights;
  PositionInjection position_injection = PositionInjection::kInput;
  bool step_embedding = false;  // a learned row for each layer, added to x before it
  Residual residual = Residual::kSum;
  HeadKind head = HeadKind::kCategorical;
  int mixtures = 0;  // mixture of logistics
  ModalityKind modality = ModalityKind::kTokens;
  ImageShape image;  // modality image
  // The name of a family of checkpoints (model/families/), and the token mixer of each layer. The
  // family reads its other keys itself. Empty: a model of our own format.
  std::string family;
  std::vector<std::string> mixers;  // [n_layers]
  // Length in tokens of the training sequences: advice for longer generation. 0: unknown.
  std::int64_t trained_length = 0;
  // Most tokens of a sequence that is served, fewer than the model can hold: no key of config.json,
  // and in no fingerprint. 0: all that it can hold. Not for images, which have an end.
  std::int64_t context = 0;

  int num_outputs() const {
    return head == HeadKind::kMixtureOfLogistics ? 3 * mixtures : vocab_size;
  }
  // Positions that a served sequence is fed at most: max_length, or fewer with `context`; 0:
  // unbounded.
  std::int64_t served_length() const {
    if (context == 0 || modality == ModalityKind::kImage) return max_length;
    const std::int64_t fed = std::max<std::int64_t>(context - 1, 1);
    return max_length == 0 ? fed : std::min(max_length, fed);
  }
  // Most tokens a sequence can hold: served_length() + 1, since the last is never fed, and no more
  // than an image has; 0: unbounded.
  std::int64_t max_tokens() const {
    const std::int64_t length = served_length();
    const std::int64_t fed = length == 0 ? 0 : length + 1;
    if (modality != ModalityKind::kImage) return fed;
    return fed == 0 ? image.num_tokens() : std::min(fed, image.num_tokens());
  }
  int weights_of(int layer) const { return layer_weights.empty() ? layer : layer_weights[layer]; }
  // The sets of layer tensors, and the first layer that has set `weights`.
  int num_layer_weights() const;
  int first_layer_with(int weights) const;
  bool is_reversible() const { return residual != Residual::kSum; }
  // Width of the row that leaves the last layer, and that transformer.norm and predictor read.
  int last_width() const { return residual == Residual::kReversibleConcat ? 2 * d_model : d_model; }
  LayerDims dims() const { return {d_model, n_heads, d_head, max_length}; }
};

// Parses and checks the text of a config.json. `file` is only used in errors. Throws ModelError.
ModelConfig parse_config(std::string_view json_text, const std::string& file);

// Reads a config.json, of at most 1 MB; parses it, too. Throw ModelError.
std::string read_config_text(const std::filesystem::path& file);
ModelConfig load_config(const std::filesystem::path& file);

// The config.json that parse_config reads back as the same config.
std::string to_json(const ModelConfig& config);

// Names of a configuration's values: in config.json, on the wire and in the metrics.

// Names of the kinds of attention, "linear", or one for each layer, with commas, when they differ.
// For a family, each of its token mixers once: "gated_delta,gated_softmax".
std::string attention_names(const ModelConfig& config);

constexpr const char* to_string(Residual residual) {
  switch (residual) {
    case Residual::kSum:
      return "sum";
    case Residual::kReversibleMean:
      return "reversible_mean";
    case Residual::kReversibleConcat:
      return "reversible_concat";
  }
  return "";
}

constexpr const char* to_string(HeadKind kind) {
  return kind == HeadKind::kCategorical ? "categorical" : "mixture_of_logistics";
}

constexpr const char* to_string(ModalityKind kind) {
  switch (kind) {
    case ModalityKind::kImage:
      return "image";
    case ModalityKind::kBytes:
      return "bytes";
    case ModalityKind::kTokens:
      return "tokens";
  }
  return "";
}

constexpr const char* to_string(EmbeddingKind kind) {
  switch (kind) {
    case EmbeddingKind::kValueConcatPosition:
      return "value_concat_position";
    case EmbeddingKind::kValueAddPosition:
      return "value_add_position";
    case EmbeddingKind::kValue:
      return "value";
  }
  return "";
}

constexpr const char* to_string(PositionEncoding encoding) {
  switch (encoding) {
    case PositionEncoding::kSinusoidal:
      return "sinusoidal";
    case PositionEncoding::kLearned:
      return "learned";
    case PositionEncoding::kNone:
      return "none";
  }
  return "";
}

// Fields: the keys of one object of config.json, read and checked by name.

// Refuses text that is not JSON, that nests more than 8 deep, that has a key twice in an object, or
// whose tree takes more than 16 MiB. `file` is only used in errors. Throws ModelError.
nlohmann::json parse_strictly(std::string_view text, const std::string& file);

// Text of a found value for an error.
std::string found_text(const nlohmann::json& value);

// Every get marks its key as known; finish() refuses the others. All throw ModelError naming the
// file, the path of the key, what was found and what was expected.
class Fields {
 public:
  // path: of this object within the file, "" or "head." REQUIRES: object outlives this.
  Fields(const nlohmann::json& object, std::string file, std::string path);

  [[noreturn]] void fail(const std::string& key, const std::string& found,
                         const std::string& expected) const;

  bool has(const std::string& key);
  const nlohmann::json& value(const std::string& key, const std::string& expected);
  std::int64_t integer(const std::string& key, std::int64_t low, std::int64_t high,
                       const char* or_else = "");
  // A list with something in it. `expected` empty: the text for numbers of the heads.
  std::vector<std::int64_t> integers(const std::string& key, std::int64_t low, std::int64_t high,
                                     std::string expected = "");
  int small_integer(const std::string& key, int low, int high) {
    return static_cast<int>(integer(key, low, high));
  }
  // A number that is still positive and finite as f32, which is what kernels use.
  double positive(const std::string& key, double high, const char* or_null = "");
  // The same, or 0.
  double not_negative(const std::string& key, double high, const char* or_null = "");
  bool boolean(const std::string& key);
  // The place of the value among `names`.
  std::size_t choice(const std::string& key, std::span<const char* const> names);
  template <typename T>
  T choice(const std::string& key, std::initializer_list<std::pair<const char*, T>> names) {
    std::vector<const char*> known;
    for (const auto& [name, unused] : names) known.push_back(name);
    return (names.begin() + choice(key, known))->second;
  }

  // of: " for head type \"categorical\"", or empty.
  void finish(const std::string& of = "") const;

 private:
  const nlohmann::json& object_;
  const std::string file_;
  const std::string path_;
  std::set<std::string> known_;
};

// Largest dimensions a config may ask for. Far beyond what is served today, and small enough that
// no product of them overflows 64 bits. Stated in docs/model_format.md. The keys of a kind of
// attention have theirs in its declaration.

inline constexpr std::size_t kMaxConfigBytes = 1 << 20;
inline constexpr int kMaxVocabSize = 1 << 20;
inline constexpr std::int64_t kMaxMaxLength = INT32_MAX;
inline constexpr int kMaxModelWidth = 1 << 16;
inline constexpr int kMaxLayers = 1024;
inline constexpr int kMaxHeads = 1024;
inline constexpr int kMaxHeadWidth = 4096;
inline constexpr int kMaxProjectionWidth = 1 << 16;  // n_heads * d_head
inline constexpr int kMaxFeedForwardWidth = 1 << 18;
inline constexpr int kMaxMixtures = 1024;
inline constexpr int kMaxImageSide = 1 << 14;
inline constexpr int kMaxImageChannels = 4;
inline constexpr double kMaxEpsilon = 1.0;

// Refuse fields that contradict each other, each legal by itself: those of a model, and those of
// the attention of a layer, whose keys `path` names in errors. Throw ModelError.
void check_config(const ModelConfig& config, const std::string& file);
void check_attention(const AttentionConfig& attention, const LayerDims& dims,
                     const std::string& file, const std::string& path);

}  // namespace lintel
