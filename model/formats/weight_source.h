// SPDX-License-Identifier: Apache-2.0
// WeightSource: the tensors of a model, one at a time, whatever files hold them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lintel {

// How a tensor is stored. The last five are GGUF's blocks (see block_formats.h).
enum class DType { kF32, kF16, kBf16, kQ8_0, kQ4_0, kQ4_K, kQ5_K, kQ6_K };

const char* to_string(DType type);  // "F32", "Q4_K"
// Values of a block, and its bytes; a block of F32, F16 or BF16 is one value. Blocks do not cross
// the rows of a tensor.
std::size_t values_per_block(DType type);
std::size_t bytes_per_block(DType type);

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

}  // namespace lintel
