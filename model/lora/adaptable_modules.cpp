#include "model/lora/adaptable_modules.h"

#include "model/formats/tensor_list.h"

namespace lintel {
namespace {

// Those of a layer.
void add_modules(const ModelConfig& config, int weights, std::vector<AdaptableModule>& modules) {
  const AttentionConfig& attention = config.attention[config.first_layer_with(weights)];
  const std::string prefix = "transformer.layers." + std::to_string(weights) + ".";
  const auto e = static_cast<std::size_t>(config.d_model);
  const auto f = static_cast<std::size_t>(config.d_ff);
  const auto add = [&](const std::string& name, std::size_t in, std::size_t out,
                       AdaptedProduct product) -> AdaptableModule& {
    modules.push_back({.name = prefix + name, .in = in, .out = out, .product = product});
    modules.back().weights = static_cast<std::size_t>(weights);
    return modules.back();
  };
  std::size_t first_output = 0;
  for (const Projection& p : attention.kind().projections(attention, config.dims())) {
    const auto width = static_cast<std::size_t>(p.width);
    AdaptableModule& module = add("attention." + p.name, e, width, AdaptedProduct::kProjections);
    module.first_output = first_output;
    module.is_read = p.is_read;
    if (p.is_read) first_output += width;
  }
  const auto attended = static_cast<std::size_t>(out_width(attention, config.dims()));
  add("attention.out_projection", attended, e, AdaptedProduct::kOut);
  add("linear1", e, f, AdaptedProduct::kLinear1);
  add("linear2", f, e, AdaptedProduct::kLinear2);
}

}  // namespace

std::vector<AdaptableModule> adaptable_modules(const ModelConfig& config) {
  std::vector<AdaptableModule> modules;
  modules.push_back({.name = "value_embedding",
                     .in = static_cast<std::size_t>(config.vocab_size),
                     .out = static_cast<std::size_t>(value_width(config)),
                     .is_embedding = true});
  for (int i = 0; i < config.num_layer_weights(); ++i) add_modules(config, i, modules);
  modules.push_back({.name = "predictor",
                     .in = static_cast<std::size_t>(config.last_width()),
                     .out = static_cast<std::size_t>(config.num_outputs())});
  return modules;
}

}  // namespace lintel
