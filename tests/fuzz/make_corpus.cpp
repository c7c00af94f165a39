// SPDX-License-Identifier: Apache-2.0
// Writes the corpus: make_corpus DIR [FILES]. The same files every time.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "tests/fuzz/mutations.h"
#include "tests/fuzz/template_inputs.h"
#include "tests/fuzz/web_seeds.h"

namespace {

using Mutate = std::string (*)(const std::string&, std::uint64_t);

void write(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary) << bytes;
}

void write_corpus(const std::filesystem::path& directory, const std::vector<std::string>& seeds,
                  Mutate mutate, std::uint64_t files) {
  std::filesystem::create_directories(directory);
  for (std::size_t i = 0; i < seeds.size(); ++i) {
    write(directory / ("seed-" + std::to_string(i)), seeds[i]);
  }
  for (std::uint64_t i = 0; i < files; ++i) {
    write(directory / ("mutated-" + std::to_string(1000 + i)), mutate(seeds[i % seeds.size()], i));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::cerr << "usage: make_corpus DIR [FILES]\n";
    return 2;
  }
  const std::filesystem::path directory = argv[1];
  const std::uint64_t files = argc == 3 ? std::strtoull(argv[2], nullptr, 10) : 150;
  using namespace lintel::fuzz;
  write_corpus(directory / "config", config_seeds(), mutate_text, files);
  write_corpus(directory / "adapter_config", adapter_config_seeds(), mutate_text, files / 3);
  write_corpus(directory / "safetensors", safetensors_seeds(), mutate_safetensors, files);
  write_corpus(directory / "gguf", gguf_seeds(), mutate_gguf, files / 2);
  write_corpus(directory / "snapshot", snapshot_seeds(), mutate_snapshot, files / 2);
  write_corpus(directory / "template", template_seeds(), mutate_text, files / 3);
  write_corpus(directory / "web_frame", web_frame_seeds(), mutate_text, files / 3);
  write_corpus(directory / "web_json", web_json_seeds(), mutate_text, files / 2);
  write_corpus(directory / "web_head", web_head_seeds(), mutate_text, files / 2);
  write_corpus(directory / "web_socket", web_socket_seeds(), mutate_text, files / 2);
}
