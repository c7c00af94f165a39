// SPDX-License-Identifier: Apache-2.0
// encode_lines DIRECTORY: reads JSON strings, one a line, and writes the ids that the directory's
// tokenizer makes of each, one line of decimal numbers a text. Special tokens in a text are parsed,
// none is put around it. An empty line flushes what was written.
#include <charconv>
#include <cstdint>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "model/tokenizer/tokenizer.h"

namespace lintel {
namespace {

void append_ids(const std::vector<std::int32_t>& ids, std::string& line) {
  char digits[16];
  for (const std::int32_t id : ids) {
    if (!line.empty()) line += ' ';
    const auto written = std::to_chars(digits, digits + sizeof(digits), id);
    line.append(digits, written.ptr);
  }
}

void encode_lines(const char* directory) {
  const auto tokenizer = load_tokenizer(directory);
  if (!tokenizer) throw std::runtime_error(std::string(directory) + ": no tokenizer");
  for (std::string line; std::getline(std::cin, line);) {
    if (line.empty()) {
      std::cout.flush();
      continue;
    }
    const std::string text = nlohmann::json::parse(line);
    line.clear();
    append_ids(tokenizer->encode(text, {.add_special = false, .parse_special = true}), line);
    std::cout << line << '\n';
  }
}

}  // namespace
}  // namespace lintel

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: encode_lines DIRECTORY\n";
    return 2;
  }
  std::ios::sync_with_stdio(false);
  std::cin.tie(nullptr);
  try {
    lintel::encode_lines(argv[1]);
  } catch (const std::exception& error) {
    std::cerr << "encode_lines: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
