// SPDX-License-Identifier: Apache-2.0
#include "model/model_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "model/core/sha256.h"
#include "model/formats/safetensors.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryDirectory;

const ModelConfig kTiny = testing::tiny_config(testing::TinyModel::kBytes);

std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

float first_value(const ModelFiles& files) {
  float value = 0.0f;
  read_f32(files.weights(), *files.weights().find("predictor.weight"), {&value, 1});
  return value;
}

TEST_CASE("a model is read from the files that were opened, even if others replace them") {
  const TemporaryDirectory directory;
  for (const char* name : {"a", "b"}) {
    fs::create_directory(directory.path() / name);
    write_random_model(directory.path() / name, kTiny, *name);
  }
  const fs::path model = directory.path() / "a";
  const std::string before = fingerprint_of(ModelFiles(model));
  const float first = first_value(ModelFiles(model));

  const ModelFiles files(model);
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::rename(directory.path() / "b" / name, model / name);
  }
  CHECK(fingerprint_of(files) == before);
  CHECK(first_value(files) == first);
  CHECK(fingerprint_of(ModelFiles(model)) != before);
}

TEST_CASE("PyTorch's weights in the place of safetensors are named") {
  const TemporaryDirectory directory;
  write_random_model(directory.path(), kTiny, 1);
  std::ofstream(directory.path() / "training_args.bin") << "a";
  CHECK(ModelFiles(directory.path()).config().n_layers == kTiny.n_layers);
  fs::rename(directory.path() / "model.safetensors", directory.path() / "model.pth");
  fs::remove(directory.path() / "training_args.bin");
  const std::string error =
      (directory.path() / "model.pth").string() + ": expected model.safetensors; PyTorch's files";
  CHECK_THROWS_WITH(ModelFiles(directory.path()), Catch::Matchers::StartsWith(error));
  fs::remove(directory.path() / "config.json");
  CHECK_THROWS_WITH(ModelFiles(directory.path()), Catch::Matchers::StartsWith(error));
}

TEST_CASE("trained_length is not part of a model's fingerprint, at any place in the config") {
  const TemporaryDirectory directory;
  write_random_model(directory.path(), kTiny, 1);
  const fs::path config = directory.path() / "config.json";
  const std::string text = text_of(config);
  const std::string before = fingerprint_of(ModelFiles(directory.path()));
  const auto with = [&](std::size_t at, const std::string& more) {
    std::ofstream(config, std::ios::binary) << text.substr(0, at) + more + text.substr(at);
    const ModelFiles files(directory.path());
    CHECK(files.config().trained_length == 256);
    CHECK(files.config_json().size() == text.size() + more.size());
    return fingerprint_of(files);
  };
  const std::size_t first = text.find('"'), second = text.find(',') + 1;
  const std::size_t last = text.rfind('}', text.rfind('}') - 1) + 1;  // after the last value
  CHECK(with(first, "\"trained_length\" : 256 ,\n  ") == before);
  CHECK(with(second, "\n  \"trained_length\": 256,") == before);
  CHECK(with(last, ",\n  \"trained_length\": 256") == before);
  std::ofstream(config, std::ios::binary) << text << "\n";
  CHECK(fingerprint_of(ModelFiles(directory.path())) != before);
}

TEST_CASE("weights that are written to after they were opened have no fingerprint") {
  const TemporaryDirectory directory;
  write_random_model(directory.path(), kTiny, 1);
  const ModelFiles files(directory.path());
  const fs::path weights = directory.path() / "model.safetensors";
  const std::string text = text_of(weights);
  std::ofstream(weights, std::ios::binary) << text << "more";
  CHECK_THROWS_AS(fingerprint_of(files), ModelError);
}

std::string hash_of_files(const fs::path& model) {
  Sha256 hash;
  for (const char* name : {"config.json", "model.safetensors"}) {
    const std::string text = text_of(model / name);
    hash.add_length(text.size());
    hash.add(text);
  }
  return hash.hex();
}

TEST_CASE("the fingerprint is the hash of both files") {
  const TemporaryDirectory directory;
  write_random_model(directory.path(), kTiny, 1);
  CHECK(fingerprint_of(ModelFiles(directory.path())) == hash_of_files(directory.path()));
}

TEST_CASE("the fingerprint is the files' hash, for tensors in any order and of any type") {
  const TemporaryDirectory directory;
  write_random_model(directory.path(), kTiny, 1);
  const ModelWeights weights = random_weights(kTiny, 1);
  std::vector<TensorToWrite> tensors;
  for_each_tensor(kTiny, weights, [&](const TensorSpec& spec, const Matrix& matrix) {
    if (matrix.values().empty()) return;
    const TensorType types[] = {TensorType::kBf16, TensorType::kF32, TensorType::kF16};
    tensors.push_back({spec.name, spec.shape, matrix.values(), types[tensors.size() % 3]});
  });
  std::ranges::reverse(tensors);
  write_safetensors(directory.path() / "model.safetensors", tensors);
  const ModelFiles files(directory.path());
  CHECK(fingerprint_of(files) == hash_of_files(directory.path()));
  const SafetensorsFile file(directory.path() / "model.safetensors");
  const ModelWeights loaded = load_weights(files.weights(), kTiny);
  for_each_tensor(kTiny, loaded, [&](const TensorSpec& spec, const Matrix& matrix) {
    if (!file.tensors().contains(spec.name)) return;
    CHECK(std::ranges::equal(file.read_f32(spec.name), matrix.values()));
  });
}

TEST_CASE("the hash is SHA-256, and moving a byte from one part to the next changes it") {
  const auto hash = [](const std::string& a, const std::string& b) {
    Sha256 sha256;
    for (const std::string& part : {a, b}) {
      sha256.add_length(part.size());
      sha256.add(part);
    }
    return sha256.hex();
  };
  // printf '\3\0\0\0\0\0\0\0abc\0\0\0\0\0\0\0\0' | sha256sum
  CHECK(hash("abc", "") == "3e2f8940c3a0e0fd6f6e07bbf07f015dd7c147431e5fa14bf3f225d782641540");
  CHECK(hash("ab", "c") != hash("abc", ""));
}

}  // namespace
}  // namespace lintel
