// SPDX-License-Identifier: Apache-2.0
#include "model/model_files.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/core/errors.h"
#include "model/core/non_finite.h"
#include "model/core/pytorch_file.h"
#include "model/core/sha256.h"
#include "model/formats/gguf.h"
#include "model/formats/safetensors_source.h"
#include "model/ops/block_formats.h"

namespace lintel {
namespace {

// A config.json but for its trained_length, with the comma that goes with it: advice, which may be
// added to a model that is served without making it another one. REQUIRES: parse_config takes it,
// so the key is there once at most, with a whole number.
std::string without_trained_length(const std::string& json_text) {
  constexpr const char* kSpace = " \t\r\n";
  const std::size_t key = json_text.find("\"trained_length\"");
  if (key == std::string::npos) return json_text;
  std::size_t begin = key;
  std::size_t end = json_text.find_first_of("0123456789", key);
  end = json_text.find_first_not_of("0123456789", end);
  const std::size_t before = json_text.find_last_not_of(kSpace, key - 1);
  if (json_text[before] == ',') {
    begin = before;
  } else {  // the first of the keys
    end = json_text.find_first_not_of(kSpace, json_text.find(',', end) + 1);
  }
  return json_text.substr(0, begin) + json_text.substr(end);
}

}  // namespace

namespace {

// Refuses what is not finite in a tree that was read with quote_non_finite(). Mamba's
// configurations bound a time step by Infinity.
void check_finite(const nlohmann::json& value, const std::string& key, bool may_be_infinite,
                  const std::string& file) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    if (!is_non_finite_name(text) || (may_be_infinite && text != "NaN")) return;
    throw ModelError(file + ": key " + quote(key) + ": found " + text +
                     ", expected a finite number");
  }
  if (!value.is_structured()) return;
  for (const auto& [name, member] : value.items()) {
    const bool is_member = value.is_object();
    check_finite(member, is_member ? key + (key.empty() ? "" : ".") + name : key,
                 is_member ? name == "time_step_limit" : may_be_infinite, file);
  }
}

// The tree of a checkpoint's config.json; null where the file is of our own format, whose parser
// says what is wrong with it.
std::unique_ptr<const nlohmann::json> parse_checkpoint(const std::string& text,
                                                       const std::string& file) {
  if (text.find("\"model_type\"") == std::string::npos) return nullptr;
  const std::string quoted = quote_non_finite(text);
  auto json = std::make_unique<const nlohmann::json>(parse_strictly(quoted, file));
  const bool is_checkpoint = json->is_object() && json->contains("model_type");
  if (!is_checkpoint) return nullptr;
  if (quoted.size() != text.size()) check_finite(*json, "", /*may_be_infinite=*/false, file);
  return json;
}

const ModelFamily& family_of(const nlohmann::json& json, const std::string& file) {
  const nlohmann::json& type = json["model_type"];
  const ModelFamily* const family =
      type.is_string() ? find_family(type.get_ref<const std::string&>()) : nullptr;
  if (family != nullptr) return *family;
  throw ModelError(file + ": key \"model_type\": found " + found_text(type) + ", expected one of " +
                   family_names());
}

const ModelFamily& family_of(const GgufFile& file) {
  const auto fail = [&](const std::string& what) -> void {
    throw ModelError(file.name() + ": " + what + ", expected one of " + architecture_names());
  };
  if (file.has("general.type") && file.text("general.type") != "model") {
    fail("general.type is " + quote(file.text("general.type")) + ", no model");
  }
  const std::string_view name = file.text("general.architecture");
  const ModelFamily* const family = find_architecture(name);
  if (name == "clip") fail("the vision part of another file");
  if (family == nullptr) fail("general.architecture is " + quote(name));
  return *family;
}

// For people and programs that ask for the model: not the vocabulary.
std::string keys_json(const GgufFile& file) {
  nlohmann::ordered_json json;
  json["general.architecture"] = file.text("general.architecture");
  for (const auto& [key, value] : file.keys()) {
    if (value.is_array() || key == "general.architecture") continue;
    if (const auto integer = value.integer()) {
      json[key] = *integer;
    } else if (const auto number = value.number()) {
      json[key] = *number;
    } else if (const auto truth = value.boolean()) {
      json[key] = *truth;
    } else if (const auto text = value.text(); text && text->size() <= 1000) {
      json[key] = *text;
    }
  }
  return json.dump(2, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace) + "\n";
}

// Without parts after the first.
std::vector<std::filesystem::path> gguf_files_in(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const bool is_later_part =
        name.find("-of-") != std::string::npos && name.find("-00001-of-") == std::string::npos;
    if (name.ends_with(".gguf") && !is_later_part) files.push_back(entry->path());
  }
  std::ranges::sort(files);
  return files;
}

}  // namespace

ModelFiles::ModelFiles(const std::filesystem::path& path) : path_(path) {
  std::error_code error;
  std::vector<std::filesystem::path> files;
  if (path.extension() == ".gguf" && !std::filesystem::is_directory(path, error)) {
    files.push_back(path);
  } else if (!std::filesystem::exists(path / "config.json", error)) {
    files = gguf_files_in(path);
  }
  if (files.size() > 1) {
    throw ModelError(path.string() + ": found " + std::to_string(files.size()) +
                     " GGUF files, expected one: give the path of the file");
  }
  files.empty() ? open_directory(path) : open_gguf(files.front());
}

namespace {

// Throws ModelError where a directory has weights in PyTorch's format in place of safetensors.
void refuse_pytorch_weights(const std::filesystem::path& directory) {
  std::string found;  // the first by name
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.ends_with(".safetensors")) return;
    if (is_pytorch_file(name) && (found.empty() || name < found)) found = name;
  }
  if (found.empty()) return;
  throw ModelError((directory / found).string() + ": expected model.safetensors; " + kPytorchHint);
}

}  // namespace

void ModelFiles::open_directory(const std::filesystem::path& directory) {
  refuse_pytorch_weights(directory);
  config_file_ = (directory / "config.json").string();
  config_json_ = read_config_text(config_file_);
  json_ = parse_checkpoint(config_json_, config_file_);
  if (json_ == nullptr) {
    config_ = parse_config(config_json_, config_file_);
  } else {
    family_ = &family_of(*json_, config_file_);
  }
  source_ = std::make_unique<const SafetensorsSource>(directory);
  if (family_ != nullptr) config_ = family_->read_config(checkpoint(), unknown_keys_);
}

void ModelFiles::open_gguf(const std::filesystem::path& file) {
  auto gguf = std::make_unique<const GgufFile>(file);
  config_file_ = file.string();
  family_ = &family_of(*gguf);
  config_json_ = keys_json(*gguf);
  gguf_ = gguf.get();
  source_ = std::move(gguf);
  config_ = family_->read_config(checkpoint(), unknown_keys_);
}

ModelFiles::~ModelFiles() = default;

namespace {

// Another source, whose reads are reported.
class ReportedSource final : public WeightSource {
 public:
  ReportedSource(std::unique_ptr<const WeightSource> source, ModelFiles::ReportReads report)
      : source_(std::move(source)), report_(std::move(report)) {
    for (const TensorInfo& tensor : source_->tensors()) total_ += tensor.num_bytes();
  }

  const std::string& name() const override { return source_->name(); }
  const std::vector<TensorInfo>& tensors() const override { return source_->tensors(); }
  const TensorInfo* find(std::string_view name) const override { return source_->find(name); }
  void read(const TensorInfo& tensor, std::uint64_t offset,
            std::span<std::byte> bytes) const override {
    source_->read(tensor, offset, bytes);
    add(bytes.size());
  }
  void read_all(const std::function<void(std::span<const std::byte>)>& take) const override {
    source_->read_all(take);
  }

 private:
  void add(std::uint64_t bytes) const {
    const std::lock_guard lock(mutex_);
    done_ += bytes;
    report_(std::min(done_, total_), total_);
  }

  const std::unique_ptr<const WeightSource> source_;
  const ModelFiles::ReportReads report_;
  std::uint64_t total_ = 0;
  mutable std::mutex mutex_;
  mutable std::uint64_t done_ = 0;
};

}  // namespace

void ModelFiles::report_reads(ReportReads report) {
  source_ = std::make_unique<const ReportedSource>(std::move(source_), std::move(report));
}

namespace {

std::optional<std::int64_t> optional_integer(const GgufFile& file, const std::string& key) {
  if (!file.has(key)) return std::nullopt;
  return file.integer(key);
}

std::optional<bool> optional_boolean(const GgufFile& file, const std::string& key) {
  if (!file.has(key)) return std::nullopt;
  return file.boolean(key);
}

GgufVocabulary vocabulary_of(const GgufFile& file) {
  const std::string prefix = "tokenizer.ggml.";
  const auto text = [&](const char* key) {
    return file.has(prefix + key) ? std::string(file.text(prefix + key)) : std::string();
  };
  const auto texts = [&](const char* key) {
    if (!file.has(prefix + key)) return std::vector<std::string>();
    const std::vector<std::string_view> all = file.texts(prefix + key);
    return std::vector<std::string>(all.begin(), all.end());
  };
  GgufVocabulary vocabulary{.file = file.name(),
                            .model = text("model"),
                            .pre = text("pre"),
                            .tokens = texts("tokens"),
                            .types = {},
                            .merges = texts("merges"),
                            .bos = optional_integer(file, prefix + "bos_token_id"),
                            .eos = optional_integer(file, prefix + "eos_token_id"),
                            .eot = optional_integer(file, prefix + "eot_token_id"),
                            .padding = optional_integer(file, prefix + "padding_token_id"),
                            .add_bos = optional_boolean(file, prefix + "add_bos_token"),
                            .add_eos = optional_boolean(file, prefix + "add_eos_token")};
  if (file.has(prefix + "token_type")) {
    for (const std::int64_t type : file.integers(prefix + "token_type")) {
      vocabulary.types.push_back(static_cast<std::int32_t>(type));
    }
  }
  return vocabulary;
}

// A key of another type is not there.
std::optional<std::string> optional_text(const GgufFile& file, const std::string& key) {
  const GgufValue* const value = file.find_key(key);
  if (value == nullptr || value->is_array()) return std::nullopt;
  const auto text = value->text();
  return text ? std::optional<std::string>(*text) : std::nullopt;
}

ChatTemplateSources template_sources_of(const GgufFile& file) {
  ChatTemplateSources sources;
  const std::string key = "tokenizer.chat_template";
  if (auto source = optional_text(file, key)) sources.templates["default"] = std::move(*source);
  const GgufValue* const names = file.find_key("tokenizer.chat_templates");
  for (std::size_t i = 0; names != nullptr && i < names->size(); ++i) {
    const auto name = names->text(i);
    if (!name) break;
    auto source = optional_text(file, key + "." + std::string(*name));
    if (source) sources.templates.try_emplace(std::string(*name), std::move(*source));
  }
  const GgufValue* const tokens = file.find_key("tokenizer.ggml.tokens");
  constexpr std::pair<const char*, const char*> kTokens[] = {{"bos_token", "bos"},
                                                             {"eos_token", "eos"},
                                                             {"pad_token", "padding"},
                                                             {"unk_token", "unknown"}};
  for (const auto& [variable, kind] : kTokens) {
    const GgufValue* const value =
        file.find_key(std::string("tokenizer.ggml.") + kind + "_token_id");
    const auto id = value == nullptr || value->is_array() ? std::nullopt : value->integer();
    if (!id || tokens == nullptr || *id < 0 || static_cast<std::size_t>(*id) >= tokens->size()) {
      continue;
    }
    if (const auto text = tokens->text(static_cast<std::size_t>(*id))) {
      sources.special_tokens.emplace(variable, *text);
    }
  }
  return sources;
}

}  // namespace

ChatTemplateSources ModelFiles::load_chat_template_sources() const {
  if (gguf_ == nullptr) {
    ChatTemplateSources sources = lintel::load_chat_template_sources(path_);
    resolve_template_names(sources, path_.string() + ": chat_template");
    return sources;
  }
  ChatTemplateSources sources = template_sources_of(*gguf_);
  resolve_template_names(sources, gguf_->name() + ": tokenizer.chat_template");
  return sources;
}

bool ModelFiles::has_tokenizer() const {
  if (config_.modality == ModalityKind::kBytes) return true;
  if (config_.modality != ModalityKind::kTokens) return false;
  return gguf_ != nullptr ? gguf_->has("tokenizer.ggml.model") : has_tokenizer_file(path_);
}

std::shared_ptr<const Tokenizer> ModelFiles::load_tokenizer(std::vector<std::string>& notes) const {
  if (config_.modality == ModalityKind::kBytes) return std::make_shared<const ByteTokenizer>();
  if (config_.modality != ModalityKind::kTokens) return nullptr;
  std::shared_ptr<const Tokenizer> tokenizer;
  if (gguf_ != nullptr) {
    std::string why;
    tokenizer = make_gguf_tokenizer(vocabulary_of(*gguf_), &why);
    if (!why.empty()) notes.push_back("the tokenizer is not served: " + why);
  } else {
    tokenizer = lintel::load_tokenizer(path_);
  }
  if (tokenizer != nullptr && tokenizer->vocab_size() > config_.vocab_size) {
    throw ModelError(path_.string() + ": the tokenizer has token " +
                     std::to_string(tokenizer->vocab_size() - 1) + ", expected ids below the " +
                     std::to_string(config_.vocab_size) + " rows of the embedding");
  }
  return tokenizer;
}

void refuse_unknown_keys(const ModelFiles& files) {
  if (files.unknown_keys().empty()) return;
  const UnknownKey& key = files.unknown_keys().front();
  throw ModelError(files.config_file() + ": key " + quote(key.name) + ": found " + key.found +
                   ", expected no such key: it is not known what it changes");
}

std::vector<std::string> warnings_of_unknown_keys(const ModelFiles& files) {
  constexpr std::size_t kMost = 16;
  const std::vector<UnknownKey>& keys = files.unknown_keys();
  std::vector<std::string> warnings;
  for (const UnknownKey& key : std::span(keys).first(std::min(kMost, keys.size()))) {
    warnings.push_back("key " + quote(key.name) + ": found " + key.found +
                       ", which is not known here: the model is served without it");
  }
  if (keys.size() > kMost) {
    warnings.push_back(std::to_string(keys.size() - kMost) +
                       " more keys are not known here: the model is served without them");
  }
  return warnings;
}

bool has_quantized_tensors(const ModelFiles& files) {
  return std::ranges::any_of(files.weights().tensors(),
                             [](const TensorInfo& tensor) { return is_quantized(tensor.type); });
}

void check_has_blocks(const ModelFiles& files, WeightType type) {
  if (type != WeightType::kBlocks || has_quantized_tensors(files)) return;
  throw ModelError(files.config_file() +
                   ": weight type blocks: found no quantised tensors, expected some");
}

bool is_model_directory(const std::filesystem::path& directory) {
  std::error_code error;
  return std::filesystem::exists(directory / "config.json", error) ||
         gguf_files_in(directory).size() == 1;
}

namespace {

struct Stopped {};

}  // namespace

std::string fingerprint_of(const ModelFiles& files, const std::stop_token& stop) {
  Sha256 hash;
  const bool is_native = files.family() == nullptr;
  if (is_native || files.checkpoint().gguf == nullptr) {
    const std::string config =
        is_native ? without_trained_length(files.config_json()) : files.config_json();
    hash.add_length(config.size());
    hash.add(config);
  }
  try {
    files.weights().read_all([&](std::span<const std::byte> bytes) {
      if (stop.stop_requested()) throw Stopped();
      hash.add({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    });
  } catch (const Stopped&) {
    return {};
  }
  return hash.hex();
}

namespace {

void fill(Matrix& matrix, double mean, double scale, std::mt19937_64& generator) {
  std::normal_distribution<double> normal(mean, scale);
  for (float& value : matrix.values()) value = static_cast<float>(normal(generator));
}

bool is_norm_gain(const std::string& name) {
  return name.find("norm") != std::string::npos && name.ends_with(".weight");
}

}  // namespace

ModelWeights random_weights(const ModelConfig& config, std::uint64_t seed, float scale) {
  std::mt19937_64 generator(seed);
  ModelWeights weights;
  for_each_tensor(config, weights, [&](const TensorSpec& spec, Matrix& matrix) {
    if (spec.optional) return;  // a table that can be computed
    matrix = spec.new_matrix();
    if (spec.draw) return spec.draw(matrix.values(), seed);
    const bool unit = spec.name == "value_embedding.weight" || !spec.is_parameter;
    fill(matrix, is_norm_gain(spec.name) ? 1.0 : 0.0, unit ? 1.0 : scale, generator);
  });
  return weights;
}

void write_random_model(const std::filesystem::path& directory, const ModelConfig& config,
                        std::uint64_t seed, float scale) {
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "config.json") << to_json(config);
  save_weights(directory / "model.safetensors", config, random_weights(config, seed, scale));
}

}  // namespace lintel
