// SafetensorsFile: reads tensors of a file whose header may be hostile.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/formats/safetensors_header.h"

namespace lintel {

// An open file. Const calls are thread-safe. A new version takes its place by rename; where one is
// written over it, or it is cut short, reading throws ModelError. It is not mapped, for that would
// kill the process then.
class SafetensorsFile {
 public:
  // Opens the file and checks its header. Throws ModelError.
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& name() const { return name_; }  // the path, for errors
  const std::map<std::string, TensorEntry, std::less<>>& tensors() const { return header_.tensors; }
  // Throws ModelError when there is none.
  const TensorEntry& tensor(std::string_view name) const;

  // Receives the bytes of a tensor as they are read, in order.
  using BytesRead = std::function<void(std::span<const char>)>;

  // Converts F32, F16 or BF16 to f32. out: [num_values]. Throws ModelError, naming the tensor and
  // the index, for another type and for NaN or infinity.
  void read_f32(const TensorEntry& tensor, std::span<float> out,
                const BytesRead& bytes_read = nullptr) const;
  std::vector<float> read_f32(std::string_view name) const;
  std::vector<std::int32_t> read_i32(std::string_view name) const;

  std::uint64_t size() const;  // bytes of the file
  // The file's bytes up to the tensors. Throws ModelError.
  std::string read_header() const;

  // Throws ModelError when the file was written to since it was opened: what was read may be of two
  // versions.
  void check_unchanged() const;

 private:
  class Descriptor;

  // Reads out.size() bytes of the file. Throws ModelError.
  void read(std::uint64_t offset, std::span<char> out) const;
  void read_widened(const TensorEntry& tensor, float (*convert)(std::uint16_t),
                    std::span<float> out, const BytesRead& bytes_read) const;

  const std::string name_;
  const std::unique_ptr<const Descriptor> descriptor_;
  SafetensorsHeader header_;
};

}  // namespace lintel
