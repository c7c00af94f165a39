// SPDX-License-Identifier: Apache-2.0
#include "model/ops/block_matrix.h"

#include <algorithm>
#include <cassert>
#include <functional>
#include <vector>

#include "model/ops/quantize.h"

namespace lintel {
namespace {

constexpr int kCellInputs = 4;

std::size_t values_of(const BlockFormat& format) { return static_cast<std::size_t>(format.values); }

std::size_t spans_of(const BlockFormat& format) { return values_of(format) / BlockMatrix::kSpan; }

// pack(first, rows) of the rows of each panel, on several threads where there are many weights.
void pack_panels(std::size_t in_features, std::size_t out_features, const ReadWeightRows& read,
                 const std::function<void(std::size_t first, MatrixView<const float>)>& pack) {
  for_each_group(in_features, out_features, [&](WorkParts& panels) {
    Matrix rows(std::min(BlockMatrix::kPanel, out_features), in_features);
    while (const auto panel = panels.next()) {
      const std::size_t first = *panel * BlockMatrix::kPanel;
      const MatrixView<float> of_panel =
          rows.view().rows_from(0, std::min(BlockMatrix::kPanel, out_features - first));
      read(first, of_panel);
      pack(first, of_panel);
    }
  });
}

}  // namespace

// The beginning of a block of one output, and the distances of its parts.
struct BlockMatrix::Place {
  std::size_t level = 0;       // byte of the first cell's first input
  std::size_t span_bytes = 0;  // from a span's levels to the next one's
  std::size_t d = 0;
  std::size_t scale = 0;
};

BlockMatrix::Place BlockMatrix::place_of(std::size_t n, std::size_t block) const {
  const std::size_t panel = n / kPanel;
  const std::size_t column = n % kPanel;
  const std::size_t span_bytes = lines_of(format_) * kLineBytes;
  const std::size_t span = panel * num_spans() + block * spans_of(format_);
  const std::size_t blocks = in_ / values_of(format_);
  const std::size_t halves = format_.has_minima ? 2 : 1;
  return {.level = span * span_bytes + column * kCellInputs,
          .span_bytes = span_bytes,
          .d = (panel * blocks + block) * halves * kPanel + column,
          .scale = span * 2 * kPanel + column};
}

BlockMatrix::BlockMatrix(DType type, std::size_t in_features, std::size_t out_features)
    : type_(type), format_(block_format(type)), in_(in_features), out_(out_features) {
  const std::size_t columns = num_panels() * kPanel;
  levels_ = make_untouched<std::uint8_t>(columns * num_spans() * lines_of(format_) * kCellInputs);
}

BlockMatrix::BlockMatrix(DType type, std::size_t in_features, std::size_t out_features,
                         const ReadBlocks& read)
    : BlockMatrix(type, in_features, out_features) {
  assert(is_quantized(type) && in_ % values_of(format_) == 0);
  const std::size_t blocks = in_ / values_of(format_);
  const std::size_t columns = num_panels() * kPanel;
  d_ = make_untouched<std::uint16_t>(columns * blocks * (format_.has_minima ? 2 : 1));
  if (format_.has_group_scales) scales_ = make_untouched<std::uint8_t>(columns * num_spans() * 2);

  const std::size_t block_bytes = bytes_per_block(type);
  for_each_group(in_, out_, [&](WorkParts& panels) {
    std::vector<std::byte> rows(std::min(kPanel, out_) * blocks * block_bytes);
    UnpackedBlock unpacked;
    while (const auto panel = panels.next()) {
      const std::size_t first = *panel * kPanel;
      const std::size_t count = std::min(kPanel, out_ - first);
      const std::span<std::byte> of_panel(rows.data(), count * blocks * block_bytes);
      read(first, count, of_panel);
      // A block of all rows of a panel, then the next one: what is written stays in the cache until
      // its lines are full.
      for (std::size_t b = 0; b < blocks; ++b) {
        for (std::size_t n = 0; n < count; ++n) {
          unpack_block(type, of_panel.data() + (n * blocks + b) * block_bytes, unpacked);
          pack(first + n, b, unpacked);
        }
      }
    }
  });
}

BlockMatrix BlockMatrix::quantized_to_4_bits(std::size_t in_features, std::size_t out_features,
                                             const ReadWeightRows& read) {
  BlockMatrix to(DType::kQ4_0, in_features, out_features);
  assert(in_features % kSpan == 0);
  const std::size_t spans = to.num_spans();
  to.d_ = make_untouched<std::uint16_t>(to.num_panels() * kPanel * spans);
  pack_panels(in_features, out_features, read, [&](std::size_t first, auto rows) {
    const std::size_t span = first / kPanel * spans;  // of the panel
    for (std::size_t s = 0; s < spans; ++s) {
      quantize_to_4_bits(rows.cols_from(s * kSpan, kSpan),
                         to.levels_.get() + (span + s) * 4 * kLineBytes,
                         to.d_.get() + (span + s) * kPanel);
    }
  });
  return to;
}

BlockMatrix BlockMatrix::quantized_to_8_bits(std::size_t in_features, std::size_t out_features,
                                             const ReadWeightRows& read) {
  BlockMatrix to(DType::kQ8_0, in_features, out_features);
  to.output_scales_ = make_untouched<float>(to.num_panels() * kPanel);
  pack_panels(in_features, out_features, read, [&](std::size_t first, auto rows) {
    quantize_to_8_bits(rows, to.levels_.get() + first / kPanel * to.num_spans() * 8 * kLineBytes,
                       to.output_scales_.get() + first);
  });
  return to;
}

void BlockMatrix::pack(std::size_t n, std::size_t block, const UnpackedBlock& from) {
  const Place place = place_of(n, block);
  d_[place.d] = from.d;
  if (format_.has_minima) d_[place.d + kPanel] = from.dmin;
  for (std::size_t s = 0; s < spans_of(format_); ++s) {
    std::uint8_t* const lines = levels_.get() + place.level + s * place.span_bytes;
    const std::uint8_t* level = from.levels.data() + s * kSpan;
    for (std::size_t cell = 0; cell < kSpan / kCellInputs; ++cell) {
      for (int i = 0; i < kCellInputs; ++i, ++level) {
        if (format_.bits == 8) {
          lines[cell * kLineBytes + i] = *level;
          continue;
        }
        lines[cell / 2 * kLineBytes + i] |=
            static_cast<std::uint8_t>((*level & 15) << cell % 2 * 4);
        const int high = *level >> 4;
        if (format_.bits == 5) lines[4 * kLineBytes + i] |= static_cast<std::uint8_t>(high << cell);
        if (format_.bits == 6) {
          lines[(4 + cell / 4) * kLineBytes + i] |= static_cast<std::uint8_t>(high << cell % 4 * 2);
        }
      }
    }
    if (!format_.has_group_scales) continue;
    std::uint8_t* const scales = scales_.get() + place.scale + s * 2 * kPanel;
    if (format_.has_minima) {
      scales[0] = static_cast<std::uint8_t>(from.scales[s]);
      scales[kPanel] = from.minima[s];
    } else {
      scales[0] = static_cast<std::uint8_t>(from.scales[2 * s]);
      scales[kPanel] = static_cast<std::uint8_t>(from.scales[2 * s + 1]);
    }
  }
}

UnpackedBlock BlockMatrix::unpack(std::size_t n, std::size_t block) const {
  const Place place = place_of(n, block);
  UnpackedBlock to{.d = d_[place.d]};
  if (format_.has_minima) to.dmin = d_[place.d + kPanel];
  for (std::size_t s = 0; s < spans_of(format_); ++s) {
    const std::uint8_t* const lines = levels_.get() + place.level + s * place.span_bytes;
    std::uint8_t* level = to.levels.data() + s * kSpan;
    for (std::size_t cell = 0; cell < kSpan / kCellInputs; ++cell) {
      for (int i = 0; i < kCellInputs; ++i, ++level) {
        if (format_.bits == 8) {
          *level = lines[cell * kLineBytes + i];
          continue;
        }
        int value = lines[cell / 2 * kLineBytes + i] >> cell % 2 * 4 & 15;
        if (format_.bits == 5) value |= (lines[4 * kLineBytes + i] >> cell & 1) << 4;
        if (format_.bits == 6) {
          value |= (lines[(4 + cell / 4) * kLineBytes + i] >> cell % 4 * 2 & 3) << 4;
        }
        *level = static_cast<std::uint8_t>(value);
      }
    }
    if (!format_.has_group_scales) continue;
    const std::uint8_t* const scales = scales_.get() + place.scale + s * 2 * kPanel;
    if (format_.has_minima) {
      to.scales[s] = static_cast<std::int8_t>(scales[0]);
      to.minima[s] = scales[kPanel];
    } else {
      to.scales[2 * s] = static_cast<std::int8_t>(scales[0]);
      to.scales[2 * s + 1] = static_cast<std::int8_t>(scales[kPanel]);
    }
  }
  return to;
}

void BlockMatrix::dequantize_row(std::size_t n, std::span<float> out) const {
  assert(n < out_ && out.size() == in_);
  if (has_output_scales()) {
    const std::uint8_t* const levels =
        levels_.get() + n / kPanel * num_spans() * 8 * kLineBytes + n % kPanel * kCellInputs;
    for (std::size_t i = 0; i < in_; ++i) {
      const int level = levels[i / kCellInputs * kLineBytes + i % kCellInputs];
      out[i] = output_scales_[n] * static_cast<float>(level - format_.zero);
    }
    return;
  }
  const std::size_t values = values_of(format_);
  for (std::size_t b = 0; b < in_ / values; ++b) {
    dequantize_block(format_, unpack(n, b), out.data() + b * values);
  }
}

std::size_t BlockMatrix::bytes_of_8_bits(std::size_t in_features, std::size_t out_features) {
  const std::size_t columns = (out_features + kPanel - 1) / kPanel * kPanel;
  return columns * ((in_features + kSpan - 1) / kSpan * kSpan + sizeof(float));
}

std::size_t BlockMatrix::bytes_of(DType type, std::size_t in_features, std::size_t out_features) {
  const BlockFormat format = block_format(type);
  const std::size_t columns = (out_features + kPanel - 1) / kPanel * kPanel;
  const std::size_t halves = in_features / values_of(format) * (format.has_minima ? 2 : 1);
  const std::size_t spans = in_features / kSpan;
  return columns * (spans * lines_of(format) * kCellInputs + halves * sizeof(std::uint16_t) +
                    (format.has_group_scales ? 2 * spans : 0));
}

}  // namespace lintel
