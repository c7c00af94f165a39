// The bound of what products alone allow: those of a model's shapes, and nothing else, by oneDNN's
// matmul and by our own kernels. The better of the two is the bound.
#pragma once

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <vector>

#include "model/config/config.h"
#include "model/ops/dense.h"
#include "model/ops/weight_type.h"

namespace lintel::bench {

// oneDNN has no product in a weight type on this machine: bf16 needs AVX-512.
class NoProduct : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Every projection of every layer once, for some rows, on one thread a worker, by oneDNN. The
// weights are shared between the workers, inputs and outputs are their own.
class ProductBound {
 public:
  // bf16: inputs and weights in bf16. int8: unsigned inputs, signed weights, a scale for each
  // output. Outputs are f32. Throws NoProduct where oneDNN cannot do it on this machine.
  ProductBound(const ModelConfig& config, WeightType type, std::size_t rows, int workers);
  ~ProductBound();
  ProductBound(const ProductBound&) = delete;
  ProductBound& operator=(const ProductBound&) = delete;

  void step(int worker) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The same by our own kernels, inputs prepared beforehand.
class OwnProducts {
 public:
  OwnProducts(const ModelConfig& config, WeightType type, std::size_t rows, int workers);

  void step(int worker);

 private:
  struct Worker {
    std::vector<DenseInput> inputs;  // of each shape
    std::vector<Matrix> outputs;     // the same
  };

  std::vector<Dense> layers_;  // [layers * shapes]
  std::vector<Worker> workers_;
};

}  // namespace lintel::bench
