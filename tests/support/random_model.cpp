// SPDX-License-Identifier: Apache-2.0
#include "tests/support/random_model.h"

#include "model/config/attention_spec.h"

namespace lintel::testing {

ModelConfig tiny_config(TinyModel kind) {
  ModelConfig config;
  config.vocab_size = 256;
  config.d_model = 16;
  config.n_layers = 2;
  config.n_heads = 2;
  config.d_head = 8;
  config.d_ff = 32;
  config.attention.assign(2, attention_of("linear"));
  switch (kind) {
    case TinyModel::kImage:
      config.max_length = 29;
      config.head = HeadKind::kMixtureOfLogistics;
      config.mixtures = 3;
      config.modality = ModalityKind::kImage;
      config.image = {.height = 6, .width = 5, .channels = 1, .start_token = 0};
      break;
    case TinyModel::kText:
      config.trained_length = 32;
      [[fallthrough]];
    case TinyModel::kBytes:
      config.max_length = 256;
      config.activation = Activation::kGelu;
      config.norm_placement = NormPlacement::kPre;
      config.modality = ModalityKind::kBytes;
      break;
    case TinyModel::kTokens:
      config.vocab_size = 50;
      config.max_length = 0;
      config.embedding = EmbeddingKind::kValue;
      config.position_encoding = PositionEncoding::kNone;
      break;
  }
  return config;
}

}  // namespace lintel::testing
