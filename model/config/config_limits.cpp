#include "model/config/config_limits.h"

#include <algorithm>
#include <functional>

#include "model/config/attention_json.h"
#include "model/config/names.h"
#include "model/core/error_text.h"

namespace lintel {

void check_attention(const AttentionConfig& attention, const LayerDims& dims,
                     const std::string& file, const std::string& path) {
  const auto contradiction = attention.kind().contradiction;
  if (contradiction == nullptr) return;
  if (const auto wrong = contradiction(attention, dims)) {
    throw ModelError(file + ": key \"" + path + wrong->key + "\": found " + wrong->found +
                     ", expected " + wrong->expected);
  }
}

void check_config(const ModelConfig& config, const std::string& file) {
  const auto fail = [&](const std::string& key, const std::string& found,
                        const std::string& expected) {
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
    fail("position_encoding", std::string("\"") + to_string(config.position_encoding) + "\"",
         std::string(positions ? "\"sinusoidal\" or \"learned\"" : "\"none\"") +
             " for embedding \"" + to_string(config.embedding) + "\"");
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

  if (config.position_injection == PositionInjection::kEveryLayer &&
      config.embedding != EmbeddingKind::kValueAddPosition) {
    fail("position_injection", "\"every_layer\"",
         std::string("\"input\" for embedding \"") + to_string(config.embedding) + "\"");
  }
  if (config.is_reversible() && config.norm_placement != NormPlacement::kPre) {
    fail("residual", std::string("\"") + to_string(config.residual) + "\"",
         "\"sum\" for norm_placement \"post\"");
  }

  const std::string vocab = std::to_string(config.vocab_size);
  if (config.head == HeadKind::kMixtureOfLogistics && config.vocab_size != 256) {
    fail("vocab_size", vocab, "256 for head type \"mixture_of_logistics\"");
  }
  if (config.modality == ModalityKind::kBytes && config.vocab_size != 256) {
    fail("vocab_size", vocab, "256 for modality type \"bytes\"");
  }
  if (config.modality == ModalityKind::kImage && config.vocab_size != 256) {
    fail("vocab_size", vocab, "256 for modality type \"image\"");
  }
  const bool all_equal =
      std::ranges::adjacent_find(config.attention, std::not_equal_to<>()) == config.attention.end();
  for (std::size_t i = 0; i < config.attention.size(); ++i) {
    const std::string path = all_equal ? "attention." : "attention[" + std::to_string(i) + "].";
    check_attention(config.attention[i], config.dims(), file, path);
    const int layer = static_cast<int>(i);
    const int first = config.first_layer_with(config.weights_of(layer));
    if (config.attention[i] == config.attention[static_cast<std::size_t>(first)]) continue;
    fail("attention[" + std::to_string(i) + "]", shorten(to_json(config.attention[i])),
         "that of layer " + std::to_string(first) + ", whose weights it shares");
  }
}

}  // namespace lintel
