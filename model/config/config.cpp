#include "model/config/config.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>

#include "model/config/config_limits.h"

namespace lintel {
namespace {

using nlohmann::ordered_json;

const char* name_of(Activation a) { return a == Activation::kRelu ? "relu" : "gelu"; }
const char* name_of(NormPlacement p) { return p == NormPlacement::kPost ? "post" : "pre"; }
const char* name_of(RoundCombination c) {
  return c == RoundCombination::kMean ? "mean" : "logsumexp";
}
const char* name_of(EmbeddingKind kind) {
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
const char* name_of(PositionEncoding encoding) {
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

ordered_json attention_json(const AttentionConfig& attention) {
  ordered_json out = {{"type", attention.type}};
  if (attention.type == "linear") {
    out["feature_map"] = "elu_plus_one";
    out["eps"] = attention.eps;
    return out;
  }
  out["scale"] = attention.scale == 0.0 ? ordered_json(nullptr) : ordered_json(attention.scale);
  if (attention.type == "lsh") {
    out["rounds"] = attention.rounds;
    out["bits"] = attention.bits;
    out["chunk_size"] = attention.chunk_size;
    out["mask_self"] = attention.mask_self;
    out["combine"] = name_of(attention.combine);
  }
  return out;
}

ordered_json layers_json(const std::vector<AttentionConfig>& layers) {
  const bool all_equal =
      std::adjacent_find(layers.begin(), layers.end(), std::not_equal_to<>()) == layers.end();
  if (all_equal) return attention_json(layers.front());
  ordered_json out = ordered_json::array();
  for (const AttentionConfig& layer : layers) out.push_back(attention_json(layer));
  return out;
}

ordered_json head_json(const ModelConfig& config) {
  if (config.head == HeadKind::kCategorical) return {{"type", "categorical"}};
  return {{"type", "mixture_of_logistics"}, {"mixtures", config.mixtures}};
}

ordered_json modality_json(const ModelConfig& config) {
  switch (config.modality) {
    case ModalityKind::kBytes:
      return {{"type", "bytes"}};
    case ModalityKind::kTokens:
      return {{"type", "tokens"}};
    case ModalityKind::kImage:
      break;
  }
  return {{"type", "image"},
          {"height", config.image.height},
          {"width", config.image.width},
          {"channels", config.image.channels},
          {"start_token", config.image.start_token}};
}

}  // namespace

void check_config(const ModelConfig& config, const std::string& file) {
  const auto fail = [&](const char* key, const std::string& found, const std::string& expected) {
    throw ModelError(file + ": key \"" + key + "\": found " + found + ", expected " + expected);
  };
  const std::int64_t projection = std::int64_t{config.n_heads} * config.d_head;
  if (projection > kMaxProjectionWidth) {
    fail("d_head", "n_heads * d_head = " + std::to_string(projection),
         "at most " + std::to_string(kMaxProjectionWidth));
  }

  const bool concat = config.embedding == EmbeddingKind::kValueConcatPosition;
  const bool positions = config.embedding != EmbeddingKind::kValue;
  const std::string width = std::to_string(config.d_model);
  if (concat && config.d_model % 2 != 0) {
    fail("d_model", width, "an even number for embedding \"value_concat_position\"");
  }
  if (positions == (config.position_encoding == PositionEncoding::kNone)) {
    fail("position_encoding", std::string("\"") + name_of(config.position_encoding) + "\"",
         std::string(positions ? "\"sinusoidal\" or \"learned\"" : "\"none\"") +
             " for embedding \"" + name_of(config.embedding) + "\"");
  }
  if (config.position_encoding == PositionEncoding::kSinusoidal &&
      config.d_model % (concat ? 4 : 2) != 0) {
    fail("d_model", width,
         concat ? "a multiple of 4: half of it holds pairs of sine and cosine"
                : "an even number: it holds pairs of sine and cosine");
  }
  if (config.position_encoding == PositionEncoding::kLearned && config.max_length == 0) {
    fail("max_length", "0", "at least 1 for position_encoding \"learned\"");
  }

  const std::string vocab = std::to_string(config.vocab_size);
  if (config.head == HeadKind::kMixtureOfLogistics && config.vocab_size != 256) {
    fail("vocab_size", vocab, "256 for head type \"mixture_of_logistics\"");
  }
  if (config.modality == ModalityKind::kBytes && config.vocab_size != 256) {
    fail("vocab_size", vocab, "256 for modality type \"bytes\"");
  }
  if (config.modality == ModalityKind::kImage) {
    if (config.vocab_size != 256) fail("vocab_size", vocab, "256 for modality type \"image\"");
    // The last value of an image is never fed.
    const std::int64_t fed = config.image.num_values() - 1;
    if (config.max_length != 0 && config.max_length < fed) {
      fail("max_length", std::to_string(config.max_length),
           "0 or at least " + std::to_string(fed) + " for an image of " +
               std::to_string(config.image.num_values()) + " values");
    }
  }
}

std::string read_config_text(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) {
    throw ModelError(file.string() +
                     ": cannot open: " + (error ? error.message() : "expected a regular file"));
  }
  std::ifstream in(file, std::ios::binary);
  std::string text(kMaxConfigBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!in.is_open() || in.bad()) throw ModelError(file.string() + ": cannot read");
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (text.size() > kMaxConfigBytes) {
    throw ModelError(file.string() + ": found more than " + std::to_string(kMaxConfigBytes) +
                     " bytes, expected at most that");
  }
  return text;
}

ModelConfig load_config(const std::filesystem::path& file) {
  return parse_config(read_config_text(file), file.string());
}

std::string to_json(const AttentionConfig& attention) { return attention_json(attention).dump(); }

std::string to_json(const ModelConfig& config) {
  const ordered_json out = {{"format_version", 1},
                            {"vocab_size", config.vocab_size},
                            {"max_length", config.max_length},
                            {"d_model", config.d_model},
                            {"n_layers", config.n_layers},
                            {"n_heads", config.n_heads},
                            {"d_head", config.d_head},
                            {"d_ff", config.d_ff},
                            {"activation", name_of(config.activation)},
                            {"norm_placement", name_of(config.norm_placement)},
                            {"final_norm", config.final_norm},
                            {"layer_norm_eps", config.layer_norm_eps},
                            {"embedding", name_of(config.embedding)},
                            {"position_encoding", name_of(config.position_encoding)},
                            {"attention", layers_json(config.attention)},
                            {"head", head_json(config)},
                            {"modality", modality_json(config)}};
  return out.dump(2) + "\n";
}

}  // namespace lintel
