// SPDX-License-Identifier: Apache-2.0
#include "model/layers/mixers/mixer.h"

#include "model/core/kernels.h"
#include "model/ops/mixer_kernels.h"

namespace lintel {

void RowNorm::apply(MatrixView<const float> x, MatrixView<float> y) const {
  if (bias.values().empty()) return rms_norm(x, gain.values(), eps, y);
  layer_norm(x, gain.values(), bias.values(), eps, y);
}

}  // namespace lintel
