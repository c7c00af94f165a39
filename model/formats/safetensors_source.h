// SPDX-License-Identifier: Apache-2.0
// SafetensorsSource: the weights of a directory as Hugging Face's libraries write them.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/formats/safetensors.h"
#include "model/formats/weight_source.h"

namespace lintel {

inline constexpr std::size_t kMaxShards = 1024;
inline constexpr std::size_t kMaxIndexBytes = 32'000'000;

// model.safetensors, or the shards that model.safetensors.index.json lists: {"weight_map": {name:
// file}}. Files are siblings of the index.
class SafetensorsSource final : public WeightSource {
 public:
  // Opens all files and checks their headers. Throws ModelError.
  explicit SafetensorsSource(const std::filesystem::path& directory);

  const std::string& name() const override { return name_; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* find(std::string_view name) const override;
  void read(const TensorInfo& tensor, std::uint64_t first, std::span<std::byte> out) const override;
  void read_all(const std::function<void(std::span<const std::byte>)>& take) const override;

 private:
  void open(const std::filesystem::path& file);

  std::string name_;
  std::vector<std::unique_ptr<const SafetensorsFile>> files_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::size_t, std::less<>> places_;  // in tensors_
};

}  // namespace lintel
