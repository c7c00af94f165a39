// SPDX-License-Identifier: Apache-2.0
// The keys and the table of tensors of a GGUF file, which may be hostile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/formats/weight_source.h"

namespace lintel {

// GGUF version 3, little-endian: "GGUF", counts, keys with values, names and places of tensors, and
// the bytes of the tensors, each at a multiple of the file's alignment.

// The numbers that files have for types of values.
enum class GgufType : std::uint8_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
};

const char* to_string(GgufType type);  // "u32", "string"

// One value, or an array of values of one type; an array takes no more memory than in the file.
class GgufValue {
 public:
  // REQUIRES: the values' bytes as in the file; for strings, without the lengths between them.
  // `ends`: of strings, where each ends in `bytes`.
  GgufValue(GgufType type, bool is_array, std::size_t size, std::string bytes,
            std::vector<std::uint32_t> ends);

  GgufType type() const { return type_; }  // of the elements, where it is an array
  bool is_array() const { return is_array_; }
  std::size_t size() const { return size_; }  // of the array, or 1
  std::string type_name() const;              // "u32", "array of string", for errors

  // The index-th element, or the one value. Empty for another type, and for an integer beyond
  // int64. Strings may hold any bytes and live as long as this object. REQUIRES: index < size().
  std::optional<std::int64_t> integer(std::size_t index = 0) const;  // of any width and sign
  std::optional<double> number(std::size_t index = 0) const;         // f32 or f64, also NaN
  std::optional<bool> boolean(std::size_t index = 0) const;
  std::optional<std::string_view> text(std::size_t index = 0) const;

  // 0, false, "" or an array without elements.
  bool is_blank() const;

 private:
  GgufType type_;
  bool is_array_;
  std::size_t size_;
  std::string bytes_;
  std::vector<std::uint32_t> ends_;
};

using GgufKeys = std::map<std::string, GgufValue, std::less<>>;

struct GgufHeader {
  GgufKeys keys;
  std::vector<TensorInfo> tensors;  // in the order of the file; TensorInfo::file is 0
};

// Limits of a file; one beyond them is refused. Together they bound the memory of parsing.
inline constexpr std::size_t kGgufHeaderBytes = 24;  // before the keys
inline constexpr std::uint64_t kMaxGgufKeys = 65'536;
inline constexpr std::uint64_t kMaxGgufTensors = 65'536;
inline constexpr std::uint64_t kMaxGgufKeyBytes = 65'535;  // of a key's name
inline constexpr std::uint64_t kMaxGgufStringBytes = 16 << 20;
inline constexpr std::uint64_t kMaxGgufKeysBytes = 256 << 20;  // of all keys with their values
inline constexpr std::uint64_t kMaxGgufNameBytes = 63;         // of a tensor's name
inline constexpr std::uint64_t kMaxGgufDimensions = 4;
inline constexpr std::uint64_t kMaxGgufElements = std::uint64_t{1} << 40;  // of a tensor
inline constexpr std::uint64_t kMinGgufAlignment = 8;
inline constexpr std::uint64_t kMaxGgufAlignment = 65'536;

// Reads out.size() bytes of a file from `offset` on. REQUIRES: the file has them.
using ReadFileBytes = std::function<void(std::uint64_t offset, std::span<char> out)>;

// Parses and checks all that comes before the tensors' bytes: what it returns lies within the file,
// no two tensors overlap, and all types are served. The dimensions of a tensor are turned into a
// row-major shape, with those of 1 that the writer kept. The values of tensors are not looked at.
// `file` is only used in errors. Throws ModelError.
GgufHeader parse_gguf(const ReadFileBytes& read, std::uint64_t file_bytes, const std::string& file);

}  // namespace lintel
