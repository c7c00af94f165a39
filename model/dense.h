// Dense: y = x W^T + b, weights packed once at load. dense.cpp is the only includer of dnnl.hpp.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "model/tensor.h"

namespace lintel {

enum class WeightType { kF32, kBf16, kInt8 };

const char* to_string(WeightType type);

// Const and shareable between threads. Rows are independent: the bits of an output row do not
// depend on how many rows are computed together (promise 1).
class Dense {
 public:
  enum class Fused { kNone, kRelu, kGelu };  // applied to y

  struct Options {
    WeightType weight_type = WeightType::kF32;
    Fused fused = Fused::kNone;
  };

  // weight: [out_features, in_features]; bias: [out_features]. Both are copied into packed form.
  // Compares rows alone and in batches; where oneDNN's differ it uses our own kernels instead.
  // Throws std::invalid_argument, naming it, for a weight type this build does not have.
  Dense(std::span<const float> weight, std::span<const float> bias, std::size_t in_features,
        std::size_t out_features, const Options& options);
  ~Dense();
  Dense(Dense&&) noexcept;
  Dense& operator=(Dense&&) noexcept;

  // x: [rows, in_features], y: [rows, out_features]; they must not overlap. Fast when neither has
  // gaps between its rows.
  void apply(MatrixView<const float> x, MatrixView<float> y) const;

  std::size_t in_features() const;
  std::size_t out_features() const;
  std::size_t weight_bytes() const;  // of the packed form

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Makes oneDNN run on the calling thread alone, as every worker must: rows of different workers
// then share no barrier. The first apply() on a thread does it too; calling it early moves the
// cost.
void use_one_thread_per_worker();

// Which kernels Dense uses on this machine, for logs: "onednn (avx512_core_bf16)" or "highway
// (AVX2)".
std::string dense_kernels_description();

}  // namespace lintel
