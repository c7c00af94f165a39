// ModelConfig: what config.json says, every field checked. See docs/model_format.md.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "model/core/model_error.h"
#include "model/layers/attention/declaration.h"

namespace lintel {

enum class Activation { kRelu, kGelu };  // gelu: the exact erf form
enum class NormPlacement { kPost, kPre };
enum class EmbeddingKind { kValueConcatPosition, kValueAddPosition, kValue };
enum class PositionEncoding { kSinusoidal, kLearned, kNone };
// Where the position's row is added to x: before the first layer, or before each.
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
  std::int64_t num_values() const { return std::int64_t{height} * width * channels; }
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
  // Length in values of the training sequences: advice for longer generation. 0: unknown.
  std::int64_t trained_length = 0;

  int num_outputs() const {
    return head == HeadKind::kMixtureOfLogistics ? 3 * mixtures : vocab_size;
  }
  // Most values a sequence can hold: max_length + 1, since the last is never fed, and no more than
  // an image has; 0: unbounded.
  std::int64_t max_values() const {
    const std::int64_t fed = max_length == 0 ? 0 : max_length + 1;
    if (modality != ModalityKind::kImage) return fed;
    return fed == 0 ? image.num_values() : std::min(fed, image.num_values());
  }
  int weights_of(int layer) const { return layer_weights.empty() ? layer : layer_weights[layer]; }
  // The sets of layer tensors, and the first layer that has set `weights`.
  int num_layer_weights() const;
  int first_layer_with(int weights) const;
  bool is_reversible() const { return residual != Residual::kSum; }
  // Of the row that leaves the last layer, and that transformer.norm and predictor read.
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

}  // namespace lintel
