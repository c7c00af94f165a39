// SPDX-License-Identifier: Apache-2.0
// Tokens and texts of small vocabularies, compared with what the Rust library tokenizers 0.22.2 and
// RWKV's own code give (tests/golden/tokenizers).
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "model/tokenizer/split.h"
#include "model/tokenizer/text_stream.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/unicode.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

using nlohmann::json;

const std::filesystem::path kGoldens = LINTEL_TEST_DATA "/golden/tokenizers";

json read_golden(const std::filesystem::path& path) {
  std::ifstream file(path);
  REQUIRE(file);
  return json::parse(file);
}

struct GoldenCase {
  const char* name;
  const char* kind;
  std::size_t cases;  // texts to encode
};
constexpr GoldenCase kGoldenCases[] = {
    {"byte-level", "byte-level BPE", 24},
    {"byte-level-nfc-added", "byte-level BPE", 24},
    {"byte-fallback", "byte-fallback BPE", 24},
    {"byte-fallback-metaspace", "byte-fallback BPE", 24},
    {"qwen3", "byte-level BPE", 52},
    {"qwen3_5", "byte-level BPE", 52},
    {"llama3", "byte-level BPE", 52},
    {"world", "World", 22},
    {"world-wordpiece", "World", 30},
};

// Texts of parts that splits, normalisation and bytes depend on, and of random bytes.
std::string random_text(std::mt19937_64& random, bool is_utf8) {
  static const std::vector<std::string> kParts = {"a",
                                                  "the",
                                                  " the",
                                                  "THE",
                                                  "'s",
                                                  "'S",
                                                  "'\xC5\xBF",
                                                  "'re",
                                                  "'ll",
                                                  "12345",
                                                  "\xC2\xB2",
                                                  "\xE0\xA5\xA9",
                                                  " ",
                                                  "  ",
                                                  "\t",
                                                  "\n",
                                                  "\r\n",
                                                  "\xC2\xA0",
                                                  "\xE3\x80\x80",
                                                  "!",
                                                  "?!",
                                                  "\xE2\x80\xA6",
                                                  "\xC3\xA9",
                                                  "\xE4\xBD\xA0\xE5\xA5\xBD",
                                                  "\xE0\xA4\xB9\xE0\xA4\xBF",
                                                  "\xF0\x9F\x98\x80",
                                                  "\xF0\x9F\x91\xA9\xE2\x80\x8D",
                                                  "\xE2\x96\x81",
                                                  "<|endoftext|>",
                                                  "<think>",
                                                  "</s>",
                                                  "<0x41>",
                                                  "\xEA\xB0\x80",
                                                  "_",
                                                  "x",
                                                  "       ",
                                                  "Q"};
  std::string text;
  const std::size_t parts = random() % 24;
  for (std::size_t i = 0; i < parts; ++i) {
    if (!is_utf8 && random() % 3 == 0) {
      text += static_cast<char>(random());
    } else if (random() % 8 == 0) {
      char32_t c = 0xD800;
      while (c >= 0xD800 && c < 0xE000) c = random() % (random() % 2 == 0 ? 0x300 : 0x110000);
      append_utf8(text, c);
    } else {
      text += kParts[random() % kParts.size()];
    }
  }
  return text;
}

std::string bytes_of_all(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  std::string bytes;
  for (const std::int32_t id : ids) bytes += tokenizer.bytes_of(id);
  return bytes;
}

std::string without_marked_spaces(const std::string& text) {
  const std::string mark = "\xE2\x96\x81";
  std::string plain;
  for (std::size_t at = 0; at < text.size();) {
    const bool is_mark = text.compare(at, mark.size(), mark) == 0;
    plain += is_mark ? ' ' : text[at];
    at += is_mark ? mark.size() : 1;
  }
  return plain;
}

}  // namespace

TEST_CASE("tokenizer goldens: ids and decoded texts are equal") {
  for (const GoldenCase& golden : kGoldenCases) {
    INFO(golden.name);
    const auto tokenizer = load_tokenizer(kGoldens / golden.name);
    REQUIRE(tokenizer);
    CHECK(tokenizer->kind() == golden.kind);
    const json cases = read_golden(kGoldens / golden.name / "golden.json");
    std::size_t checked = 0;
    for (const json& item : cases.at("encode")) {
      const std::string text = item.at("text");
      INFO(text);
      const EncodeOptions options{.add_special = false,
                                  .parse_special = item.value("special", false)};
      const std::vector<std::int32_t> ids = item.at("ids");
      CHECK(tokenizer->encode(text, options) == ids);
      CHECK(to_text(*tokenizer, ids) == item.at("decoded").get<std::string>());
      ++checked;
    }
    CHECK(checked == golden.cases);
  }
}

TEST_CASE("tokenizer goldens: streams complete characters token by token") {
  for (const GoldenCase& golden : kGoldenCases) {
    INFO(golden.name);
    const auto tokenizer = load_tokenizer(kGoldens / golden.name);
    const json cases = read_golden(kGoldens / golden.name / "golden.json");
    for (const json& item : cases.at("stream")) {
      INFO(item.dump());
      TextStream stream(*tokenizer, true);
      std::vector<std::string> pieces;
      for (const std::int32_t id : item.at("ids")) pieces.push_back(stream.push(id));
      CHECK(pieces == item.at("pieces").get<std::vector<std::string>>());
      CHECK(stream.finish() == item.at("end").get<std::string>());
    }
  }
}

TEST_CASE("split patterns: pieces are the library's") {
  const std::pair<const char*, SplitPattern> kPatterns[] = {{"qwen3", SplitPattern::kQwen2},
                                                            {"qwen3_5", SplitPattern::kQwen35},
                                                            {"llama3", SplitPattern::kLlama3}};
  for (const auto& [name, pattern] : kPatterns) {
    const json cases = read_golden(kGoldens / name / "golden.json");
    CHECK(cases.at("split").size() == 48);
    for (const json& item : cases.at("split")) {
      const std::string text = item.at("text");
      std::vector<std::string> pieces;
      for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = end_of_piece(pattern, text, begin);
        REQUIRE(end > begin);
        pieces.push_back(text.substr(begin, end - begin));
        begin = end;
      }
      INFO(name << ": " << text);
      CHECK(pieces == item.at("pieces").get<std::vector<std::string>>());
    }
  }
}

TEST_CASE("Unicode classes: each code point has the class that the library gives it") {
  const json ranges = read_golden(kGoldens / "unicode_classes.json").at("ranges");
  std::vector<CodePointClass> classes(0x110000, CodePointClass::kOther);
  const std::pair<const char*, CodePointClass> kNames[] = {{"L", CodePointClass::kLetter},
                                                           {"N", CodePointClass::kNumber},
                                                           {"M", CodePointClass::kMark},
                                                           {"s", CodePointClass::kSpace}};
  for (const auto& [name, kind] : kNames) {
    for (const json& range : ranges.at(name)) {
      for (std::size_t c = range[0]; c <= range[1].get<std::size_t>(); ++c) classes[c] = kind;
    }
  }
  std::size_t wrong = 0;
  for (std::size_t c = 0; c < classes.size(); ++c) {
    if (class_of(static_cast<char32_t>(c)) != classes[c]) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("tokenizers: the tokens of any text are its bytes") {
  std::mt19937_64 random(20260807);
  for (const char* name : {"byte-level", "llama3", "world", "world-wordpiece"}) {
    const auto tokenizer = load_tokenizer(kGoldens / name);
    for (int i = 0; i < 2000; ++i) {
      const std::string text = random_text(random, i % 2 == 0);
      INFO(name << ": " << text);
      const auto ids = tokenizer->encode(text, {.add_special = false});
      REQUIRE(bytes_of_all(*tokenizer, ids) == text);
    }
  }
}

TEST_CASE("tokenizers with NFC: the tokens of any text are the bytes of its NFC") {
  std::mt19937_64 random(20260808);
  for (const char* name : {"qwen3", "qwen3_5", "byte-level-nfc-added"}) {
    const auto tokenizer = load_tokenizer(kGoldens / name);
    for (int i = 0; i < 2000; ++i) {
      const std::string text = random_text(random, i % 2 == 0);
      std::string normalized = text;
      normalize_nfc(text, normalized);
      INFO(name << ": " << text);
      REQUIRE(bytes_of_all(*tokenizer, tokenizer->encode(text)) == normalized);
    }
  }
}

TEST_CASE("byte fallback: texts come back without the space in front") {
  std::mt19937_64 random(20260809);
  for (const char* name : {"byte-fallback", "byte-fallback-metaspace"}) {
    const auto tokenizer = load_tokenizer(kGoldens / name);
    for (int i = 0; i < 2000; ++i) {
      std::string text = random_text(random, true);
      const auto ids = tokenizer->encode(text, {.add_special = false});
      // A marked space in a text is a space.
      text = without_marked_spaces(text);
      const bool loses_space =
          std::string(name) == "byte-fallback-metaspace" && text.starts_with(' ');
      INFO(name << ": " << text);
      REQUIRE(to_text(*tokenizer, ids) == text.substr(loses_space ? 1 : 0));
      REQUIRE(to_text(*tokenizer, ids, false) == (loses_space || text.empty() ? text : " " + text));
    }
  }
}

TEST_CASE("long texts: words that are repeated, and one long word, have the tokens of short ones") {
  const auto tokenizer = load_tokenizer(kGoldens / "byte-level");
  std::string text;
  std::vector<std::int32_t> ids;
  const auto line =
      tokenizer->encode("\nFirst Citizen: before we proceed any further, hear me speak.");
  for (int i = 0; i < 200; ++i) {
    text += "\nFirst Citizen: before we proceed any further, hear me speak.";
    ids.insert(ids.end(), line.begin(), line.end());
  }
  CHECK(tokenizer->encode(text) == ids);
  // One piece of 300 letters: as letters of one kind it has a known form.
  const std::string word(300, 'a');
  CHECK(bytes_of_all(*tokenizer, tokenizer->encode(word)) == word);
}

}  // namespace lintel
