// Our own matrix product, for machines where oneDNN's would break promise 1.
//
// Every output is one chain of multiply-adds over K, from zero, in order, then the bias: which tile
// of rows or columns it is computed in changes the speed, not the bits.
#pragma once

#include <cstddef>
#include <span>

#include "model/tensor.h"

namespace lintel {

inline constexpr std::size_t kPanelWidth = 16;

// W^T cut into panels of 16 columns: [ceil(N/16), K, 16], the last one padded with zeros, and the
// bias padded likewise.
class PackedPanels {
 public:
  // weight: [out_features, in_features]; bias: [out_features].
  PackedPanels(std::span<const float> weight, std::span<const float> bias, std::size_t in_features,
               std::size_t out_features);

  std::size_t in_features() const { return in_features_; }
  std::size_t out_features() const { return out_features_; }
  std::size_t num_panels() const { return (out_features_ + kPanelWidth - 1) / kPanelWidth; }
  const float* panel(std::size_t p) const { return panels_.get() + p * in_features_ * kPanelWidth; }
  const float* bias(std::size_t p) const { return bias_.get() + p * kPanelWidth; }
  std::size_t bytes() const { return num_panels() * (in_features_ + 1) * kPanelWidth * 4; }

 private:
  std::size_t in_features_;
  std::size_t out_features_;
  AlignedArray<float> panels_;
  AlignedArray<float> bias_;
};

// y = x W^T + b. x: [rows, in_features], y: [rows, out_features].
void multiply_panels(const PackedPanels& weights, MatrixView<const float> x, MatrixView<float> y);

}  // namespace lintel
