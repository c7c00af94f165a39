// SPDX-License-Identifier: Apache-2.0
// Dense: y = x W^T + b, weights packed once at load.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/core/tensor.h"
#include "model/ops/block_matrix.h"
#include "model/ops/dense_input.h"
#include "model/ops/packed_weights.h"
#include "model/ops/weight_type.h"

namespace lintel {

class ProductLibrary;
class StepThreadPool;

// Const and shareable between threads. Rows are independent: the bits of an output row do not
// depend on how many rows are computed together (promise 1).
class Dense {
 public:
  // 255 * 127 * this is below 2^31: no sum of int8 products overflows.
  static constexpr std::size_t kMostInt8Inputs = 65536;

  enum class Fused { kNone, kRelu, kGelu };  // applied to y
  // y = ..., or y += ... (a residual), or y = ... without what is fused.
  enum class Output { kStore, kAdd, kStoreUnfused };

  struct Options {
    WeightType weight_type = WeightType::kF32;
    Fused fused = Fused::kNone;
    KernelChoice kernels = chosen_kernels();
    // The library that is chosen from. Null: oneDNN. Outlives the layer.
    const ProductLibrary* library = nullptr;
    std::size_t number = 0;  // of the product in its model, for who adds to it
    // Keeps no weights (f32 only): every product reads them again. Slow, for comparisons.
    bool streams = false;
  };

  // weight: [out_features, in_features]; bias: [out_features]. Both are copied into packed form, of
  // f32, bf16 or int8.
  // Throws std::invalid_argument for int8 with more inputs than exact sums allow.
  Dense(std::span<const float> weight, std::span<const float> bias, std::size_t in_features,
        std::size_t out_features, const Options& options);
  // The same of a matrix that is read some rows at a time and never whole in f32. Of kInt4 with
  // inputs that are no multiple of 32 it becomes kInt8Groups. With Options::streams apply() and
  // row() call `read`, on any thread, and pass on what it throws.
  Dense(const ReadWeightRows& read, std::span<const float> bias, std::size_t in_features,
        std::size_t out_features, const Options& options);
  // Rows of a matrix of blocks, or in f32 where read_blocks is null.
  struct StoredRows {
    std::size_t count = 0;
    DType type = DType::kF32;  // of read_blocks
    BlockMatrix::ReadBlocks read_blocks = nullptr;
    ReadWeightRows read_floats = nullptr;
  };
  // A matrix of weight type blocks, of parts that lie one below the other. in_features are whole
  // blocks of every part that has some.
  Dense(std::span<const StoredRows> parts, std::span<const float> bias, std::size_t in_features,
        const Options& options);
  ~Dense();
  Dense(Dense&&) noexcept;
  Dense& operator=(Dense&&) noexcept;

  // Rows 0 .. y.rows() - 1 of x, which are prepared. y: [rows, out_features]. Allocates nothing,
  // but where oneDNN multiplies, which does. prefetch: taken from while our own kernels compute,
  // but on AMX, which has nothing to gain by it. team: our own kernels split the outputs among its
  // threads, with the same bits. REQUIRES: x has this layer's weight type and
  // in_features; kAdd goes with Fused::kNone.
  void apply(const DenseInput& x, MatrixView<float> y, Output output = Output::kStore,
             PrefetchList* prefetch = nullptr, StepThreadPool* team = nullptr) const;

  // One of several products, none of which reads what another one writes.
  struct Multiplication {
    const Dense* dense = nullptr;
    const DenseInput* x = nullptr;
    MatrixView<float> y;
  };
  // kStore of each, with the bits of apply(). The team shares them all. REQUIRES: nothing is fused.
  static void apply_all(std::span<const Multiplication> products, PrefetchList* prefetch = nullptr,
                        StepThreadPool* team = nullptr);

  // kStore of the first y.cols() outputs, with the bits of apply(). REQUIRES: has_rows(), nothing
  // is fused, nothing streams; y.cols() is a multiple of kGroupWidth, or out_features.
  void apply_first(const DenseInput& x, MatrixView<float> y, StepThreadPool* team = nullptr) const;

  // kStore of the first `rows` rows, for y.prepare() of as many. Returns whether that is done, too,
  // with the same bits: where AMX multiplies bf16 and a ReLU follows, y becomes bf16 at once, and
  // its values() stay what they were. REQUIRES: as apply(), and y has out_features columns.
  bool apply_into(const DenseInput& x, std::size_t rows, DenseInput& y,
                  StepThreadPool* team = nullptr) const;

  // Applies what is fused to outputs that were stored without it: the bits of kStore, where nothing
  // came between.
  void fuse(MatrixView<float> y) const;

  // True if row() may be called: not if a library has the only copy.
  bool has_rows() const;
  // The weights of output n, as the products have them: rounded to the type. out: [in_features].
  void row(std::size_t n, std::span<float> out) const;

  std::size_t number() const;      // of the options
  WeightType weight_type() const;  // as input_type_of() says: that of its inputs
  std::size_t in_features() const;
  std::size_t out_features() const;
  // Bytes of the packed form: one copy, but two where a library multiplies int8 of many rows only.
  std::size_t weight_bytes() const;
  // An upper bound of weight_bytes() on this machine with chosen_kernels(), before any is made.
  static std::size_t most_weight_bytes(std::size_t in_features, std::size_t out_features,
                                       WeightType type);
  // The kernels that run: "amx_int8", "onednn (avx512_core_amx) in blocks of 2 to 64 rows".
  std::string kernels() const;

 private:
  struct Impl;
  Dense(PackedWeights weights, const Options& options);
  std::unique_ptr<Impl> impl_;
};

// The kernels that run for a type on this machine, for logs, as Dense::kernels() of a layer of 256
// inputs and outputs. Those of another shape can differ: a library has to prove itself for each.
std::string dense_kernels_description(WeightType type);
// The same for every type: "f32 highway (AVX3), bf16 avx512_bf16, int8 avx512_vnni".
std::string dense_kernels_description();

// True if this machine has kernels for the type that are faster than those for f32, for every
// shape.
bool is_faster_than_f32(WeightType type);

}  // namespace lintel
