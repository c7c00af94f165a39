// SPDX-License-Identifier: Apache-2.0
// GgufFile: a model as a GGUF file, or as the parts of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/formats/gguf_header.h"
#include "model/formats/open_file.h"
#include "model/formats/weight_source.h"

namespace lintel {

inline constexpr std::size_t kMaxGgufParts = 1024;
// The most entries of an array read as a vector, which may take eight times the file's bytes.
inline constexpr std::size_t kMaxGgufListSize = 1 << 22;

// Keeps its files open. Const calls are thread-safe, and views of values live as long as the
// object. Which architecture it is and whether the values of tensors are finite is for the caller
// to check.
class GgufFile final : public WeightSource {
 public:
  // Opens one file, or all parts when given NAME-00001-of-0000N.gguf, the first of them. Keys are
  // those of the first part. Throws ModelError.
  explicit GgufFile(const std::filesystem::path& path);
  ~GgufFile() override;
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::string& name() const override { return name_; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* find(std::string_view name) const override;
  void read(const TensorInfo& tensor, std::uint64_t first, std::span<std::byte> out) const override;
  void read_all(const std::function<void(std::span<const std::byte>)>& take) const override;

  const GgufKeys& keys() const { return keys_; }
  const GgufValue* find_key(std::string_view key) const;  // null where there is none
  bool has(std::string_view key) const { return find_key(key) != nullptr; }

  // The value of a key. Throws ModelError, naming file and key, where it is missing or of another
  // type. An integer may have any width and sign that int64 holds; a number is f32 or f64, and
  // finite.
  std::int64_t integer(std::string_view key) const;
  double number(std::string_view key) const;
  bool boolean(std::string_view key) const;
  std::string_view text(std::string_view key) const;
  std::vector<std::int64_t> integers(std::string_view key) const;
  std::vector<bool> booleans(std::string_view key) const;
  std::vector<std::string_view> texts(std::string_view key) const;

 private:
  GgufHeader open_file(const std::filesystem::path& path);  // as the last of files_
  void add_tensors(std::vector<TensorInfo> tensors);        // of the last of files_
  void open_parts(const std::filesystem::path& path, const std::string& prefix, std::size_t count);

  const std::string name_;
  std::vector<std::unique_ptr<const OpenFile>> files_;
  GgufKeys keys_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::size_t, std::less<>> by_name_;  // indices of tensors_
};

}  // namespace lintel
