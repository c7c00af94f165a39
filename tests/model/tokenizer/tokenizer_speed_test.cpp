// SPDX-License-Identifier: Apache-2.0
// Not run by itself: "[.speed]" measures loading and encoding with a vocabulary as large as the
// largest ones.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "model/tokenizer/byte_alphabet.h"
#include "model/tokenizer/text_stream.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/unicode.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel {
namespace {

using nlohmann::json;

constexpr std::size_t kNumTokens = 248044;  // of Qwen3.5
constexpr std::size_t kTextBytes = 8 << 20;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Two earlier tokens make each new one, often early ones; a quarter begin with a space.
json large_vocabulary(std::mt19937_64& random) {
  std::vector<std::string> tokens;
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string letter;
    append_utf8(letter, letter_of_byte(static_cast<unsigned char>(byte)));
    tokens.push_back(letter);
  }
  json vocab = json::object();
  for (std::size_t i = 0; i < tokens.size(); ++i) vocab[tokens[i]] = i;
  json merges = json::array();
  std::vector<std::string> parts;
  for (char letter = 'a'; letter <= 'z'; ++letter) parts.emplace_back(1, letter);
  const auto part = [&](std::size_t most) {
    return parts[random() % std::min(parts.size(), most)];
  };
  while (tokens.size() < kNumTokens) {
    const std::string left = random() % 4 == 0 ? "\xC4\xA0" : part(random() % 2 == 0 ? 500 : 20000);
    const std::string right = part(random() % 2 == 0 ? 26 : 20000);
    std::string joined = left + right;
    if (joined.size() > 24 || vocab.contains(joined)) continue;
    vocab[joined] = tokens.size();
    merges.push_back(json::array({left, right}));
    if (!joined.starts_with("\xC4")) parts.push_back(joined);
    tokens.push_back(std::move(joined));
  }
  json file =
      json::parse(std::ifstream(LINTEL_TEST_DATA "/golden/tokenizers/qwen3_5/tokenizer.json"));
  for (json& token : file["added_tokens"]) {
    token["id"] = token["id"].get<std::size_t>() + kNumTokens;
  }
  file["model"]["vocab"] = std::move(vocab);
  file["model"]["merges"] = std::move(merges);
  return file;
}

// Words of a language: few are frequent.
std::string text_of_words(std::mt19937_64& random) {
  std::vector<std::string> words;
  for (int i = 0; i < 30000; ++i) {
    std::string word;
    const std::size_t letters = 2 + random() % 9;
    while (word.size() < letters) word += static_cast<char>('a' + random() % 26);
    words.push_back(word);
  }
  std::string text;
  while (text.size() < kTextBytes) {
    const double u = static_cast<double>(random() % 1000000 + 1) / 1e6;
    text += words[static_cast<std::size_t>(u * u * u * 29999)];
    text += random() % 12 == 0 ? ".\n" : " ";
  }
  return text;
}

void measure(const Tokenizer& tokenizer, const std::string& text, const char* what,
             double least = 5) {
  const auto start = std::chrono::steady_clock::now();
  const auto ids = tokenizer.encode(text);
  const double encode = seconds_since(start);
  const auto middle = std::chrono::steady_clock::now();
  const std::string decoded = to_text(tokenizer, ids);
  const double decode = seconds_since(middle);
  CHECK(decoded == text);
  const double megabytes = static_cast<double>(text.size()) / 1e6;
  std::cout << what << ": " << megabytes / encode << " MB/s encoded, " << megabytes / decode
            << " MB/s decoded, " << ids.size() << " tokens\n";
  CHECK(megabytes / encode >= least);
}

}  // namespace

TEST_CASE("tokenizers: seconds to load a large vocabulary, bytes a second to encode", "[.speed]") {
  std::mt19937_64 random(20260811);
  testing::TemporaryDirectory directory;
  std::ofstream(directory.path() / "tokenizer.json") << large_vocabulary(random).dump(1);
  const auto start = std::chrono::steady_clock::now();
  const auto large = load_tokenizer(directory.path());
  const double load = seconds_since(start);
  std::cout << std::filesystem::file_size(directory.path() / "tokenizer.json") / 1000000
            << " MB loaded in " << load << " s\n";
  CHECK(load < 1.5);
  const std::string text = text_of_words(random);
  measure(*large, text, "large byte-level, words");
  std::string noise;
  while (noise.size() < kTextBytes) noise += static_cast<char>('a' + random() % 26);
  measure(*large, noise, "large byte-level, one word", 2);  // in windows
  for (const char* name : {"byte-fallback", "world"}) {
    const auto small =
        load_tokenizer(std::filesystem::path(LINTEL_TEST_DATA "/golden/tokenizers") / name);
    measure(*small, text, name);
  }
}

}  // namespace lintel
