// SPDX-License-Identifier: Apache-2.0
// Efficient Attention (Shen et al. 2018): queries are a softmax over channels, keys one over
// positions. In its causal form the keys' softmax of a position runs over those up to it, so that
// the last output of every prefix is that of the published module over the prefix.
#include "model/layers/attention/sum_attention.h"

namespace lintel {
namespace {

constexpr const char* kSamples[] = {""};

}  // namespace

const AttentionKind kind_efficient{
    .type = "efficient",
    .doc = "softmax of queries over channels, of keys over positions (Shen et al. 2018)",
    .state = "S [H, D, M], Z [H, D] and m [H, D]: constant",
    .cost = "constant",
    .make = [](const AttentionParams& params) -> std::unique_ptr<AttentionBackend> {
      const FeatureMap::Options exponential{
          .kind = FeatureMapKind::kExp,
          .n_heads = static_cast<std::size_t>(params.dims.n_heads),
          .d_head = static_cast<std::size_t>(params.dims.d_head)};
      return std::make_unique<SumAttention>(FeatureMap(exponential, {}), SumReading::kByChannel,
                                            /*eps=*/0.0f);
    },
    .samples = kSamples};

}  // namespace lintel
