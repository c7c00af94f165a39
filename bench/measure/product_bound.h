// The bound of what products alone allow: oneDNN's matmul on a model's shapes, and nothing else.
#pragma once

#include <cstddef>
#include <memory>

#include "model/config/config.h"
#include "model/dense/kernels/weight_type.h"

namespace lintel::bench {

// Every projection of every layer once, for some rows, on one thread a worker. The weights are
// shared between the workers, inputs and outputs are their own.
class ProductBound {
 public:
  // bf16: inputs and weights in bf16. int8: unsigned inputs, signed weights, a scale for each
  // output. Outputs are f32. Throws std::runtime_error where oneDNN cannot do it on this machine.
  ProductBound(const ModelConfig& config, WeightType type, std::size_t rows, int workers);
  ~ProductBound();
  ProductBound(const ProductBound&) = delete;
  ProductBound& operator=(const ProductBound&) = delete;

  void step(int worker) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lintel::bench
