// The header of a safetensors file: names, types, shapes and places of its tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lintel {

enum class TensorType { kF32, kF16, kBf16, kI32 };  // weights are floats; I32 is for test vectors

const char* to_string(TensorType type);  // "F32"
std::size_t bytes_per_value(TensorType type);

// "[3, 16]"
std::string shape_to_string(std::span<const std::int64_t> shape);

struct TensorEntry {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // bytes from the end of the header
  std::uint64_t end = 0;

  std::int64_t num_values() const;
};

struct SafetensorsHeader {
  std::map<std::string, TensorEntry, std::less<>> tensors;
  std::size_t data_offset = 0;  // of the first tensor byte, from the start of the file
};

// What a header may hold; a file beyond it is refused. Together they bound the memory of parsing.
inline constexpr std::size_t kMaxHeaderBytes = 100'000'000;
inline constexpr std::size_t kMaxTensors = 100'000;
inline constexpr std::size_t kMaxTensorRank = 8;
inline constexpr std::size_t kMaxHeaderTokenBytes =
    1 << 20;  // of one string, number or run of spaces
inline constexpr std::size_t kMaxTensorNameBytes = 1024;
inline constexpr std::size_t kMaxMetadataEntries = 10'000;
inline constexpr std::uint64_t kMaxTensorDimension = std::uint64_t{1} << 40;

inline constexpr std::size_t kHeaderLengthBytes = 8;  // what a file begins with

// How many bytes come before the tensors, the length at the beginning included. `begin`: the
// file's first kHeaderLengthBytes, or all there is of it; `file` is only used in errors. Throws
// ModelError.
std::size_t safetensors_header_bytes(std::string_view begin, std::uint64_t file_bytes,
                                     const std::string& file);
// Parses and checks a header. `begin`: the file at least up to the tensors. These then cover the
// rest of the file exactly: no overlap, hole or trailing byte. Throws ModelError.
SafetensorsHeader parse_safetensors(std::string_view begin, std::uint64_t file_bytes,
                                    const std::string& file);

}  // namespace lintel
