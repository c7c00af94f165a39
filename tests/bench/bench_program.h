// SPDX-License-Identifier: Apache-2.0
// lintel-bench as its users run it, on models of a few hundred weights.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "bench/commands.h"
#include "model/config/attention_spec.h"
#include "model/formats/safetensors.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {

inline std::string content_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Result {
  int code = 0;
  std::string out, err;
};

class Bench {
 public:
  Result run(std::vector<std::string> arguments) const {
    const std::string out = path("out"), err = path("err");
    const int out_fd = open(out.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    const int err_fd = open(err.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    cli::Console console(STDIN_FILENO, out_fd, err_fd);
    Result result;
    result.code = bench::run_command_line(std::move(arguments), console);
    close(out_fd);
    close(err_fd);
    result.out = content_of(out);
    result.err = content_of(err);
    return result;
  }

  // The same of arguments that have to work.
  Result succeed(std::vector<std::string> arguments) const {
    const Result result = run(std::move(arguments));
    INFO(result.out << result.err);
    REQUIRE(result.code == 0);
    return result;
  }

  // A tiny model of 6x5 images.
  std::string model(const std::string& attention) const {
    ModelConfig config = tiny_config(TinyModel::kImage);
    for (AttentionConfig& layer : config.attention) layer = attention_of(attention);
    write_random_model(directory_.path() / attention, config, /*seed=*/3);
    return path(attention);
  }

  // A tiny one of token ids, whose sequences have no end.
  std::string endless_model() const {
    write_random_model(directory_.path() / "endless", tiny_config(TinyModel::kTokens), /*seed=*/3);
    return path("endless");
  }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
  }

  // An IDX file of `rank` sizes and as many bytes as they say.
  std::string idx(const std::string& name, const std::vector<int>& sizes) const {
    std::ofstream out(path(name), std::ios::binary);
    out << '\0' << '\0' << '\x08' << static_cast<char>(sizes.size());
    int bytes = 1;
    for (const int size : sizes) {
      out << '\0' << '\0' << '\0' << static_cast<char>(size);
      bytes *= size;
    }
    for (int i = 0; i < bytes; ++i) out << static_cast<char>(i % 10);
    return path(name);
  }

  // Names images of 30 pixels, badly.
  std::string classifier() const {
    const std::vector<float> weight(10 * 30, 0.1f), bias(10, 0.0f);
    const TensorToWrite tensors[] = {{"output.weight", {10, 30}, weight},
                                     {"output.bias", {10}, bias}};
    std::filesystem::create_directories(path("classifier"));
    write_safetensors(directory_.path() / "classifier" / "model.safetensors", tensors);
    return path("classifier");
  }

  std::string path(const std::string& name) const { return (directory_.path() / name).string(); }

 private:
  TemporaryDirectory directory_;
};

}  // namespace lintel::testing
