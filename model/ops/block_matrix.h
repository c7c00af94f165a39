// SPDX-License-Identifier: Apache-2.0
// BlockMatrix: W of integers that share scales, as block_product.h multiplies it: the blocks of a
// file, without loss, or floats that are quantised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "model/core/dtype.h"
#include "model/core/tensor.h"
#include "model/ops/block_formats.h"
#include "model/ops/packed_weights.h"

namespace lintel {

// Const and shareable between threads.
//
// Outputs lie in panels of 64. Four inputs of a panel's outputs are a cell: 256 bytes, a byte each,
// those of an output side by side. For every 32 inputs a panel has lines of 256 bytes: of 8-bit
// levels eight cells; of fewer bits four lines whose bytes have the lower four bits of cell 2 p in
// their lower half and those of cell 2 p + 1 in the upper one, then the fifth bits of all cells c
// (bit c of a byte), or the fifth and sixth (bits 2 c and 2 c + 1 of a byte, four cells a line).
class BlockMatrix {
 public:
  static constexpr std::size_t kPanel = 64;
  static constexpr std::size_t kSpan = 32;  // inputs of a panel's lines
  static constexpr std::size_t kLineBytes = 4 * kPanel;

  // Reads `count` rows of blocks from row `first` on, in order.
  using ReadBlocks =
      std::function<void(std::size_t first, std::size_t count, std::span<std::byte> blocks)>;

  // REQUIRES: is_quantized(type); in_features are whole blocks.
  BlockMatrix(DType type, std::size_t in_features, std::size_t out_features,
              const ReadBlocks& read);
  // Blocks of Q4_0: for each 32 inputs that scale of 19 with the smallest sum of squared errors.
  // REQUIRES: in_features are whole blocks.
  static BlockMatrix quantized_to_4_bits(std::size_t in_features, std::size_t out_features,
                                         const ReadWeightRows& read);
  // Bytes with one scale an output, max |w| / 127: has_output_scales().
  static BlockMatrix quantized_to_8_bits(std::size_t in_features, std::size_t out_features,
                                         const ReadWeightRows& read);

  DType type() const { return type_; }
  // Levels of 8 bits as of Q8_0, and no d of blocks but output_scales().
  bool has_output_scales() const { return output_scales_ != nullptr; }
  std::size_t in_features() const { return in_; }
  std::size_t out_features() const { return out_; }
  std::size_t num_panels() const { return (out_ + kPanel - 1) / kPanel; }
  std::size_t num_spans() const { return (in_ + kSpan - 1) / kSpan; }
  std::size_t bytes() const {
    return has_output_scales() ? bytes_of_8_bits(in_, out_) : bytes_of(type_, in_, out_);
  }
  static std::size_t bytes_of(DType type, std::size_t in_features, std::size_t out_features);
  // Bytes with output scales.
  static std::size_t bytes_of_8_bits(std::size_t in_features, std::size_t out_features);

  // Lines of a panel for every span.
  static constexpr std::size_t lines_of(const BlockFormat& format) {
    return format.bits == 8 ? 8 : static_cast<std::size_t>(format.bits);
  }

  // For the kernels. levels: [panels, spans, lines, 64, 4]. d: f16 [panels, blocks, 1 or 2
  // (then dmin), 64]. scales: [panels, spans, 1 or 2 (of 16 inputs each; else the minima), 64]
  // where the format has scales of groups. output_scales: [panels, 64]. Padded with zeros.
  const std::uint8_t* levels() const { return levels_.get(); }
  const std::uint16_t* d() const { return d_.get(); }
  const std::uint8_t* scales() const { return scales_.get(); }
  const float* output_scales() const { return output_scales_.get(); }

  // Output n's weights, bit for bit those of the file's blocks. out: [in_features].
  void dequantize_row(std::size_t n, std::span<float> out) const;

 private:
  BlockMatrix(DType type, std::size_t in_features, std::size_t out_features);

  struct Place;  // of a block in the arrays
  Place place_of(std::size_t n, std::size_t block) const;
  void pack(std::size_t n, std::size_t block, const UnpackedBlock& from);
  UnpackedBlock unpack(std::size_t n, std::size_t block) const;

  DType type_;
  BlockFormat format_;
  std::size_t in_;
  std::size_t out_;
  AlignedArray<std::uint8_t> levels_;
  AlignedArray<std::uint16_t> d_;
  AlignedArray<std::uint8_t> scales_;
  AlignedArray<float> output_scales_;
};

}  // namespace lintel
