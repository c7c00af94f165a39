#include "model/formats/replace_attention.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace lintel {
namespace {

LinearWeights drawn_linear(std::size_t out, std::size_t in, bool has_bias, std::uint64_t seed,
                           int layer, std::size_t number) {
  LinearWeights linear{Matrix(out, in), has_bias ? Matrix(1, out) : Matrix()};
  const OwnTensor normal{.name = "", .shape = {1}};
  draw_tensor(linear.weight.values(), normal, ~seed, layer, number);
  const float scale = 1.0f / std::sqrt(static_cast<float>(in));
  for (float& value : linear.weight.values()) value *= scale;
  return linear;
}

template <typename Declared>
auto named(const std::vector<Declared>& all, const std::string& name) {
  return std::ranges::find(all, name, &Declared::name);
}

struct Replacement {
  const AttentionConfig& before;
  const AttentionConfig& after;
  const LayerDims dims;
  const std::optional<std::uint64_t> seed;
  const int layer;

  std::vector<LinearWeights> projections(std::vector<LinearWeights>&& old) const {
    const std::vector<Projection> had = before.kind().projections(before, dims);
    std::vector<LinearWeights> result;
    for (const Projection& p : after.kind().projections(after, dims)) {
      const auto same = named(had, p.name);
      if (same != had.end() && same->width == p.width && same->has_bias == p.has_bias) {
        result.push_back(std::move(old[static_cast<std::size_t>(same - had.begin())]));
        continue;
      }
      result.push_back(drawn_linear(static_cast<std::size_t>(p.width),
                                    static_cast<std::size_t>(dims.d_model), p.has_bias,
                                    seed.value_or(0), layer, result.size()));
    }
    return result;
  }

  std::vector<Matrix> own(std::vector<Matrix>&& old) const {
    const std::vector<OwnTensor> had = own_tensors(before, dims);
    std::vector<Matrix> result;
    for (const OwnTensor& tensor : own_tensors(after, dims)) {
      const auto same = named(had, tensor.name);
      if (same != had.end() && same->shape == tensor.shape && !seed.has_value()) {
        result.push_back(std::move(old[static_cast<std::size_t>(same - had.begin())]));
        continue;
      }
      result.push_back(TensorSpec{tensor.name, tensor.shape}.new_matrix());
      draw_tensor(result.back().values(), tensor, seed.value_or(0), layer, result.size() - 1);
    }
    return result;
  }
};

}  // namespace

bool replace_attention(const AttentionSpec& spec, ModelConfig& config, ModelWeights& weights) {
  const ModelConfig before = std::exchange(config, with_attention(config, spec));
  const LayerDims dims = config.dims();
  for (int i = 0; i < config.num_layer_weights(); ++i) {
    LayerWeights& layer = weights.layers[i];
    const int first = config.first_layer_with(i);
    const AttentionConfig& after = config.attention[first];
    const Replacement replacement{before.attention[first], after, dims, spec.seed, i};
    layer.projections = replacement.projections(std::move(layer.projections));
    layer.own = replacement.own(std::move(layer.own));
    const auto width = static_cast<std::size_t>(out_width(after, dims));
    if (layer.out.weight.cols() == width) continue;
    layer.out = drawn_linear(static_cast<std::size_t>(dims.d_model), width, /*has_bias=*/true,
                             spec.seed.value_or(0), i, layer.projections.size());
  }
  return config.attention == before.attention && !spec.seed.has_value();
}

}  // namespace lintel
