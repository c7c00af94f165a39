// --attention: another attention on the same weights.
#pragma once

#include "model/config/attention_spec.h"
#include "model/config/config.h"
#include "model/formats/tensor_list.h"

namespace lintel {

// Puts `spec` in place of every layer's attention. Tensors keep their values where the new kind has
// one of the same name and shape; what it has beside them is drawn: projections with weights from
// N(0, 1/E) and no bias, its own tensors as it declares, by the seed of the spec. Returns whether
// the model is what it was. Throws ModelError as with_attention().
bool replace_attention(const AttentionSpec& spec, ModelConfig& config, ModelWeights& weights);

}  // namespace lintel
