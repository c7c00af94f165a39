// SPDX-License-Identifier: Apache-2.0
// ModelRepository: a directory of models, from which they are loaded by name while the server runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/models/model_options.h"

namespace lintel {

// One version of a model on the disk.
struct ModelSource {
  std::string name;
  std::int64_t version = 1;
  std::filesystem::path directory;
};

// DIR/NAME/N/ with config.json and model.safetensors is version N of NAME, a whole number from 1;
// where there is no such directory, DIR/NAME/ itself is version 1, and so is DIR/NAME.gguf. Entries
// whose names could not name a model are passed over.
//
// DIR may be a cache of Hugging Face. There DIR/models--ORG--NAME/ is the model ORG/NAME: the
// snapshot that refs/main names, or the only one. Where that has several GGUF files, each is
// ORG/NAME:QUANT, by the end of its name.
//
// A name from the wire is compared with the names the directory lists; no path is made of it.
// Const and thread-safe; the directory is read at every call, and may change between them.
class ModelRepository {
 public:
  // Empty: there is none, and nothing is found.
  explicit ModelRepository(std::filesystem::path directory) : directory_(std::move(directory)) {}

  // Versions from the lowest to the highest; empty if there is no such model. Of several GGUF files
  // with one name the one with the shortest file name is the model.
  std::vector<ModelSource> versions(std::string_view name) const;
  // GGUF files that are not used because another file has their model's name.
  struct Unused {
    std::string name;
    std::filesystem::path used, unused;
  };
  std::vector<Unused> unused() const;
  // Names, sorted, of directories with versions or a config.json, and of those that may not be
  // read. Other directories may be asked for by name.
  std::vector<std::string> names() const;
  bool exists() const { return !directory_.empty(); }

  // `text` without the directory, for callers who are not operators.
  std::string without_path(std::string text) const;

 private:
  // All sources with the name, by version.
  std::vector<ModelSource> sources_of(std::string_view name) const;

  std::filesystem::path directory_;
};

// True if a model can be loaded from there: a directory of one, or a GGUF file. So is a directory
// that may not be read: its load says why.
bool is_model_path(const std::filesystem::path& path);
// True if this process lacks the permission to read the directory, its config.json or the file.
bool is_unreadable_model(const std::filesystem::path& path);

// True for a valid name of a model: 1 to 128 of letters, digits, '.', '-' and '_', not beginning
// with '.'.
bool is_model_name(std::string_view name);
// The same for names in a repository, which may also be ORG/NAME or ORG/NAME:QUANT of such parts.
bool is_repository_name(std::string_view name);
// The number of a version, "17": a whole number from 1, without leading zeros.
std::optional<std::int64_t> parse_model_version(std::string_view text);

// The models that a server starts with.

// The directories of the options, and the newest versions of those to be loaded from the
// repository. Throws ModelError for a name that is unknown or occurs twice.
std::vector<ModelSource> start_sources(const ModelOptions& options,
                                       const ModelRepository& repository);

}  // namespace lintel
