// SPDX-License-Identifier: Apache-2.0
#include "model/formats/weight_source.h"

#include <algorithm>
#include <cmath>

#include "model/core/errors.h"
#include "model/core/kernels.h"
#include "model/ops/block_formats.h"

namespace lintel {

std::int64_t TensorInfo::num_elements() const {
  std::int64_t count = 1;
  for (const std::int64_t d : shape) count *= d;
  return count;
}

std::uint64_t TensorInfo::num_bytes() const {
  return static_cast<std::uint64_t>(num_elements()) / values_per_block(type) *
         bytes_per_block(type);
}

void read_f32(const WeightSource& source, const TensorInfo& tensor, std::span<float> out,
              std::size_t first) {
  constexpr std::size_t kPieceValues = std::size_t{1} << 18;  // whole blocks
  const std::size_t block = values_per_block(tensor.type);
  std::vector<std::byte> piece;
  for (std::size_t done = 0; done < out.size();) {
    const std::size_t count = std::min(kPieceValues, out.size() - done);
    const std::uint64_t begin = (first + done) / block * bytes_per_block(tensor.type);
    const std::span<float> values = out.subspan(done, count);
    if (tensor.type == DType::kF32) {
      source.read(tensor, begin, std::as_writable_bytes(values));
    } else {
      piece.resize(count / block * bytes_per_block(tensor.type));
      source.read(tensor, begin, piece);
      dequantize(tensor.type, piece, values);
    }
    if (!all_finite(values)) {
      const auto bad = std::ranges::find_if(values, [](float x) { return !std::isfinite(x); });
      const std::size_t index = first + done + static_cast<std::size_t>(bad - values.begin());
      throw ModelError(source.name() + ": tensor " + quote(tensor.name) + ": found " +
                       std::to_string(*bad) + " at index " + std::to_string(index) +
                       ", expected a finite number");
    }
    done += count;
  }
}

}  // namespace lintel
