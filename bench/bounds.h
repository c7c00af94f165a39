// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "bench/measure.h"
#include "model/config/config.h"
#include "model/ops/dense.h"
#include "model/ops/weight_type.h"

namespace lintel::bench {

// Memory bandwidth: of the machine, and what softmax attention over a cache makes of it.

// Bytes a second that `workers` threads read together, each from several places of a buffer of its
// own of `bytes_per_worker`: from memory where no cache holds so much, else from the cache that
// does.
Summary read_bandwidth(int workers, std::size_t bytes_per_worker, int repeats);

// Bytes a second of buffers that no cache holds, read and written in place by `threads` threads,
// and their multiply-adds of bytes a second: by vpdpbusd, or AVX2's two instructions instead (which
// levels of up to 6 bits exceed by a third, as they share every second one); 0 on Arm and machines
// without AVX2. The best of three runs.
double update_rate(int threads);
double multiply_rate(int threads);
// The same on AMX's tiles; 0 where products of blocks do not run on them.
double tile_multiply_rate(int threads);
// Fused multiply-adds of floats a second, estimated: a quarter of the rate of bytes by vpdpbusd,
// half of that by AVX2's two instructions.
double float_multiply_rate(int threads);

// Bytes a second of all workers together.
struct Bandwidth {
  // Reading a buffer for each worker that no cache holds, from several places at a time.
  Summary memory;
  // Keys and values, by softmax attention of every layer alone, no projections: every worker has
  // `batch` sequences that have seen `position` tokens and feeds one more to each.
  Summary cached_softmax;
  Summary share;  // of the two, measured one right after the other
};
Bandwidth measure_bandwidth(const ModelConfig& config, int workers, int batch,
                            std::int64_t position, int repeats);

// The bound of what products alone allow: those of a model's shapes, and nothing else, by oneDNN's
// matmul and by our own kernels. The better of the two is the bound.

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
