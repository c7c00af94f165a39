// SPDX-License-Identifier: Apache-2.0
// ModelFiles: the files of a model, opened once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <stop_token>
#include <string>
#include <vector>

#include "model/config/config.h"
#include "model/families/family.h"
#include "model/formats/weight_source.h"
#include "model/formats/weights.h"
#include "model/ops/weight_type.h"
#include "model/tokenizer/chat_template_files.h"
#include "model/tokenizer/tokenizer.h"

namespace lintel {

// config.json as it was read, and the weights, open. What is asked of it is of these files, also
// when others take their places meanwhile. A config.json with a model_type is a checkpoint of a
// family (model/families/), any other one is of our own format.
class ModelFiles {
 public:
  // A directory, whose config.json and headers of weights it reads and checks; or a GGUF file, the
  // first of its parts, or a directory with one and without config.json. Throws ModelError.
  explicit ModelFiles(const std::filesystem::path& path);
  ~ModelFiles();

  // The configuration as JSON; for a GGUF file {"general.architecture": NAME} and its keys that are
  // no lists.
  const std::string& config_json() const { return config_json_; }
  // The file that has the keys: config.json, or the GGUF file.
  const std::string& config_file() const { return config_file_; }
  const ModelConfig& config() const { return config_; }
  // Keys of a checkpoint that its family does not know.
  const std::vector<UnknownKey>& unknown_keys() const { return unknown_keys_; }
  const WeightSource& weights() const { return *source_; }

  // Null of our own format.
  const ModelFamily* family() const { return family_; }
  // Reads it: of a byte model that of bytes, of a directory tokenizer.json or the like, of a GGUF
  // file its own. Null: the model has ids alone; `notes` says why where there is a reason. Throws
  // ModelError, also for a token that the model has no row for.
  std::shared_ptr<const Tokenizer> load_tokenizer(std::vector<std::string>& notes) const;
  // True if load_tokenizer() finds one to read; reads none.
  bool has_tokenizer() const;
  // The texts of its chat templates: of a GGUF file tokenizer.chat_template and
  // tokenizer.chat_template.NAME, of a directory its files.
  ChatTemplateSources load_chat_template_sources() const;
  // REQUIRES: of a family.
  Checkpoint checkpoint() const { return {json_.get(), gguf_, config_file_, *source_}; }

  // Called after every read of tensors with the bytes that were read so far, and those of all
  // tensors. By the threads that read, one at a time; the fingerprint's reads do not count.
  using ReportReads = std::function<void(std::uint64_t done, std::uint64_t total)>;
  void report_reads(ReportReads report);

 private:
  void open_gguf(const std::filesystem::path& file);
  void open_directory(const std::filesystem::path& directory);

  std::filesystem::path path_;
  std::string config_file_;
  std::string config_json_;
  std::unique_ptr<const nlohmann::json> json_;  // of a directory of a family
  const ModelFamily* family_ = nullptr;
  std::unique_ptr<const WeightSource> source_;
  const GgufFile* gguf_ = nullptr;  // the same, where it is a GGUF file
  ModelConfig config_;
  std::vector<UnknownKey> unknown_keys_;
};

// Throws ModelError naming the first key that is not known, its value, and what may be done.
void refuse_unknown_keys(const ModelFiles& files);
// For the log and for who asks for the model, a sentence for each key that is not known; of many
// the first ones, and how many more there are.
std::vector<std::string> warnings_of_unknown_keys(const ModelFiles& files);

// True if a GGUF file has tensors of blocks.
bool has_quantized_tensors(const ModelFiles& files);
// Throws ModelError for weight type blocks of files without.
void check_has_blocks(const ModelFiles& files, WeightType type);

// True if the directory has a config.json, or exactly one GGUF file (or the first of its parts).
bool is_model_directory(const std::filesystem::path& directory);

// SHA-256 over config.json, where there is one, and all files of the weights: of each its length (8
// bytes, little-endian), then its bytes; of our own format without trained_length. Reads all of
// them. Hexadecimal, 64 characters. Throws ModelError for files that were written to meanwhile.
// A stop that is requested while it reads ends it: the result is empty then.
std::string fingerprint_of(const ModelFiles& files, const std::stop_token& stop = {});

// Models with random weights: for tests and measurements, which need some model and not a trained
// one.

// Matrices and biases are N(0, scale), norm gains 1 + N(0, scale), value embeddings and what is not
// learned N(0, 1), but for tensors that declare another draw; tables that can be computed stay
// empty. A pure function of its arguments.
ModelWeights random_weights(const ModelConfig& config, std::uint64_t seed, float scale = 0.2f);

// Writes config.json and model.safetensors (F32) with random_weights into `directory`, made if
// absent.
void write_random_model(const std::filesystem::path& directory, const ModelConfig& config,
                        std::uint64_t seed, float scale = 0.2f);

}  // namespace lintel
