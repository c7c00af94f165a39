// SPDX-License-Identifier: Apache-2.0
#include "model/formats/safetensors_source.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "model/config/config.h"
#include "model/core/errors.h"

namespace lintel {
namespace {

DType dtype_of(const SafetensorsFile& file, const TensorEntry& tensor) {
  switch (tensor.type) {
    case TensorType::kF32:
      return DType::kF32;
    case TensorType::kF16:
      return DType::kF16;
    case TensorType::kBf16:
      return DType::kBf16;
    case TensorType::kI32:
      break;
  }
  throw ModelError(file.name() + ": tensor " + quote(tensor.name) +
                   ": found dtype I32, expected F32, F16 or BF16");
}

std::string read_text(const std::filesystem::path& file, std::size_t most_bytes) {
  std::string text(most_bytes + 1, '\0');
  std::ifstream in(file, std::ios::binary);
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!in.is_open() || in.bad()) {
    throw ModelError(file.string() + ": cannot read: " + std::strerror(errno));
  }
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (text.size() > most_bytes) {
    throw ModelError(file.string() + ": found more than " + std::to_string(most_bytes) +
                     " bytes, expected at most that");
  }
  return text;
}

// The name of each tensor and the file that has it.
std::map<std::string, std::string> read_index(const std::filesystem::path& file) {
  const nlohmann::json index = parse_strictly(read_text(file, kMaxIndexBytes), file.string());
  const auto fail = [&](const std::string& what) -> void {
    throw ModelError(file.string() + ": " + what);
  };
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    fail("found no object \"weight_map\", expected {\"weight_map\": {NAME: FILE}}");
  }
  std::map<std::string, std::string> files;
  for (const auto& [name, value] : index["weight_map"].items()) {
    if (!value.is_string()) fail("weight_map[" + quote(name) + "]: expected the name of a file");
    const std::string& shard = value.get_ref<const std::string&>();
    const std::filesystem::path path(shard);
    if (path.filename() != path || !shard.ends_with(".safetensors")) {
      fail("weight_map[" + quote(name) + "]: found " + quote(shard) +
           ", expected the name of a .safetensors file in the directory of the index");
    }
    files[name] = shard;
  }
  return files;
}

}  // namespace

SafetensorsSource::SafetensorsSource(const std::filesystem::path& directory)
    : name_(directory.string()) {
  const std::filesystem::path index = directory / "model.safetensors.index.json";
  std::error_code error;
  if (std::filesystem::exists(directory / "model.safetensors", error) ||
      !std::filesystem::exists(index, error)) {
    open(directory / "model.safetensors");
    name_ = files_.front()->name();
    return;
  }
  const std::map<std::string, std::string> files = read_index(index);
  std::set<std::string> shards;
  for (const auto& [name, shard] : files) shards.insert(shard);
  if (shards.empty() || shards.size() > kMaxShards) {
    throw ModelError(index.string() + ": found " + std::to_string(shards.size()) +
                     " files, expected 1 to " + std::to_string(kMaxShards));
  }
  for (const std::string& shard : shards) open(directory / shard);
  for (const auto& [name, shard] : files) {
    const TensorInfo* const found = find(name);
    if (found == nullptr || files_[found->file]->name() != (directory / shard).string()) {
      throw ModelError(index.string() + ": weight_map[" + quote(name) + "]: " + quote(shard) +
                       " has no such tensor");
    }
  }
  for (const TensorInfo& tensor : tensors_) {
    if (files.contains(tensor.name)) continue;
    throw ModelError(files_[tensor.file]->name() + ": tensor " + quote(tensor.name) + ": not in " +
                     index.filename().string());
  }
}

void SafetensorsSource::open(const std::filesystem::path& path) {
  files_.push_back(std::make_unique<const SafetensorsFile>(path));
  const SafetensorsFile& file = *files_.back();
  std::vector<const TensorEntry*> entries;
  for (const auto& [name, entry] : file.tensors()) entries.push_back(&entry);
  std::ranges::sort(entries, {}, &TensorEntry::begin);
  for (const TensorEntry* const entry : entries) {
    if (!places_.emplace(entry->name, tensors_.size()).second) {
      throw ModelError(file.name() + ": tensor " + quote(entry->name) +
                       ": another file has it, too");
    }
    tensors_.push_back({.name = entry->name,
                        .shape = entry->shape,
                        .type = dtype_of(file, *entry),
                        .file = files_.size() - 1,
                        .offset = file.data_offset() + entry->begin});
  }
}

const TensorInfo* SafetensorsSource::find(std::string_view name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : &tensors_[found->second];
}

void SafetensorsSource::read(const TensorInfo& tensor, std::uint64_t first,
                             std::span<std::byte> out) const {
  const SafetensorsFile& file = *files_[tensor.file];
  file.read(tensor.offset + first, {reinterpret_cast<char*>(out.data()), out.size()});
  file.check_unchanged();
}

void SafetensorsSource::read_all(
    const std::function<void(std::span<const std::byte>)>& take) const {
  std::vector<char> piece(std::size_t{1} << 20);
  for (const auto& file : files_) {
    const std::uint64_t size = file->size();
    std::byte length[8];
    for (int i = 0; i < 8; ++i) length[i] = static_cast<std::byte>(size >> (8 * i));
    take(length);
    for (std::uint64_t done = 0; done < size;) {
      const std::size_t count = std::min<std::uint64_t>(piece.size(), size - done);
      file->read(done, std::span(piece.data(), count));
      take(std::as_bytes(std::span(piece.data(), count)));
      done += count;
    }
    file->check_unchanged();
  }
}

}  // namespace lintel
