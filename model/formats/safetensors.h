// SPDX-License-Identifier: Apache-2.0
// SafetensorsFile: reads tensors of a file whose header may be hostile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/formats/open_file.h"

namespace lintel {

// The header of a safetensors file: names, types, shapes and places of its tensors.

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

  std::int64_t num_elements() const;
};

struct SafetensorsHeader {
  std::map<std::string, TensorEntry, std::less<>> tensors;
  std::size_t data_offset = 0;  // of the first tensor byte, from the start of the file
};

// Limits of a header; a file beyond them is refused. Together they bound the memory of parsing.
inline constexpr std::size_t kMaxHeaderBytes = 100'000'000;
inline constexpr std::size_t kMaxTensors = 100'000;
inline constexpr std::size_t kMaxTensorRank = 8;
inline constexpr std::size_t kMaxHeaderTokenBytes =
    1 << 20;  // of one string, number or run of spaces
inline constexpr std::size_t kMaxTensorNameBytes = 1024;
inline constexpr std::size_t kMaxMetadataEntries = 10'000;
inline constexpr std::uint64_t kMaxTensorDimension = std::uint64_t{1} << 40;

inline constexpr std::size_t kHeaderLengthBytes = 8;  // the beginning of a file

// Bytes before the tensors, the length at the beginning included. `begin`: the file's first
// kHeaderLengthBytes, or all there is of it; `file` is only used in errors. Throws ModelError.
std::size_t safetensors_header_bytes(std::string_view begin, std::uint64_t file_bytes,
                                     const std::string& file);
// Parses and checks a header. `begin`: the file at least up to the tensors. These then cover the
// rest of the file exactly: no overlap, hole or trailing byte. Throws ModelError.
SafetensorsHeader parse_safetensors(std::string_view begin, std::uint64_t file_bytes,
                                    const std::string& file);

// An open file. Const calls are thread-safe. A new version takes its place by rename; where one is
// written over it, or it is cut short, reading throws ModelError. It is not mapped, for that would
// kill the process then.
class SafetensorsFile {
 public:
  // Opens the file and checks its header. Throws ModelError.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::string& name() const { return file_.name(); }  // the path, for errors
  const std::map<std::string, TensorEntry, std::less<>>& tensors() const { return header_.tensors; }
  // Throws ModelError when there is none.
  const TensorEntry& tensor(std::string_view name) const;

  // Receives the bytes of a tensor as they are read, in order.
  using BytesRead = std::function<void(std::span<const char>)>;

  // Converts F32, F16 or BF16 to f32. out: [num_tokens]. Throws ModelError, naming the tensor and
  // the index, for another type and for NaN or infinity.
  void read_f32(const TensorEntry& tensor, std::span<float> out,
                const BytesRead& bytes_read = nullptr) const;
  std::vector<float> read_f32(std::string_view name) const;
  std::vector<std::int32_t> read_i32(std::string_view name) const;

  std::uint64_t size() const { return file_.size(); }                // bytes of the file
  std::uint64_t data_offset() const { return header_.data_offset; }  // of the first tensor byte
  // Reads out.size() bytes of the file from `offset` on. Throws ModelError.
  void read(std::uint64_t offset, std::span<char> out) const { file_.read(offset, out); }
  // The file's bytes up to the tensors. Throws ModelError.
  std::string read_header() const;

  // Throws ModelError when the file was written to since it was opened: what was read may be of two
  // versions.
  void check_unchanged() const { file_.check_unchanged(); }

 private:
  void read_widened(const TensorEntry& tensor, float (*convert)(std::uint16_t),
                    std::span<float> out, const BytesRead& bytes_read) const;

  const OpenFile file_;
  SafetensorsHeader header_;
};

// Writes safetensors files.

// A tensor to write; borrows its values.
struct TensorToWrite {
  std::string name;
  std::vector<std::int64_t> shape;
  std::span<const float> values;
  std::optional<TensorType> type = std::nullopt;  // in place of the others' type
};

// Writes `path` with the tensors in the given order as F32, F16 or BF16 (rounded to nearest even).
// Throws ModelError when the file cannot be written, std::invalid_argument for a shape that does
// not fit its values or a name given twice.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors,
                       TensorType type = TensorType::kF32);

}  // namespace lintel
