// Products by oneDNN, for machines with AMX: its tiles are several times faster than the vectors
// our own kernels use, on batches that fill them.
#pragma once

#include <cstddef>
#include <memory>

#include "model/dense_kernels.h"

namespace lintel {

// bf16 or int8 weights in oneDNN's layout. Const and shareable between threads.
class OneDnnWeights {
 public:
  // Whether this machine's oneDNN uses AMX for the type. ONEDNN_MAX_CPU_ISA can forbid it.
  static bool worthwhile(WeightType type);
  // Rows from which on it is worthwhile: for fewer our own kernels are. int8 only, where both have
  // the same bits; bf16 sums are in another order, so there it is all rows or none.
  static constexpr std::size_t kLeastInt8Rows = 16;

  explicit OneDnnWeights(const PackedWeights& weights);
  ~OneDnnWeights();
  OneDnnWeights(OneDnnWeights&&) noexcept;
  OneDnnWeights& operator=(OneDnnWeights&&) noexcept;

  // As lintel::multiply: int8 with its bits. Rows have the same bits alone and together if
  // rows_are_independent(). oneDNN allocates a little in every call.
  void multiply(const Product& product) const;
  // Whether rows alone and in batches have the same bits with these weights: promise 1.
  bool rows_are_independent() const;

  std::size_t bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Whether oneDNN may use AVX-512 here. ONEDNN_MAX_CPU_ISA makes it behave as on a lesser machine,
// and our own kernels follow it.
bool onednn_has_avx512();

}  // namespace lintel
