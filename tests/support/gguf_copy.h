// SPDX-License-Identifier: Apache-2.0
// GgufCopy: a GGUF file whose keys and tensors a test changes before it writes them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/formats/gguf_header.h"

namespace lintel::testing {

class GgufCopy {
 public:
  // A file without parts.
  explicit GgufCopy(const std::filesystem::path& file);

  struct Value {
    std::uint32_t type = 0;  // as in the file
    std::string bytes;       // of the value
  };
  struct Tensor {
    std::vector<std::uint64_t> dims;  // the fastest-running first
    std::uint32_t type = 0;
    std::string bytes;
  };
  std::map<std::string, Value> keys;
  std::map<std::string, Tensor> tensors;

  // Values of a key: u32, f32, bool, string; lists of u32 and of strings.
  void set(const std::string& key, std::uint32_t value);
  void set(const std::string& key, float value);
  void set(const std::string& key, bool value);
  void set(const std::string& key, const char* value);
  void set(const std::string& key, std::initializer_list<std::uint32_t> values);
  void set(const std::string& key, const std::vector<std::string>& values);
  void rename(const std::string& tensor, const std::string& to);
  // A tensor of F32, all of `value`.
  void add(const std::string& tensor, const std::vector<std::uint64_t>& dims, float value = 0.0f);

  void write(const std::filesystem::path& file) const;
};

}  // namespace lintel::testing
