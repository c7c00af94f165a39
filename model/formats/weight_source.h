// SPDX-License-Identifier: Apache-2.0
// WeightSource: the tensors of a model, one at a time, from files of any format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/core/dtype.h"

namespace lintel {

struct TensorInfo {
  std::string name;                 // as in the file
  std::vector<std::int64_t> shape;  // row-major, the last dimension contiguous
  DType type = DType::kF32;
  std::size_t file = 0;      // of the source's files
  std::uint64_t offset = 0;  // bytes from the start of that file

  std::int64_t num_elements() const;
  std::uint64_t num_bytes() const;
};

// Const calls are thread-safe.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // Path of the file or the directory, for errors.
  virtual const std::string& name() const = 0;
  // Each name once, in the order of the files and of the tensors in them.
  virtual const std::vector<TensorInfo>& tensors() const = 0;
  // Null where there is none.
  virtual const TensorInfo* find(std::string_view name) const = 0;

  // The tensor's bytes as stored, from `first` on: out.size() of them. REQUIRES: first + out.size()
  // <= num_bytes(). Throws ModelError for a file that cannot be read or was changed since it was
  // opened.
  virtual void read(const TensorInfo& tensor, std::uint64_t first,
                    std::span<std::byte> out) const = 0;
  // Everything that names the model's function, for its fingerprint: of each file in order its
  // length (8 bytes, little-endian), then its bytes.
  virtual void read_all(const std::function<void(std::span<const std::byte>)>& take) const = 0;
};

// Values of a tensor as f32, from number `first` on; whole blocks of its type. Reads some of them
// at a time. Throws ModelError, also for one that is not finite, naming the tensor and its index.
void read_f32(const WeightSource& source, const TensorInfo& tensor, std::span<float> out,
              std::size_t first = 0);

}  // namespace lintel
