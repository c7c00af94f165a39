// SPDX-License-Identifier: Apache-2.0
// Text as it is generated: whole characters, U+FFFD for invalid bytes, stop strings.
#include "model/tokenizer/text_stream.h"

#include <random>

#include "model/core/utf8.h"
#include "model/tokenizer/unicode.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

const std::string kBad = "\xEF\xBF\xBD";  // U+FFFD

std::string decoded(std::string_view bytes) {
  Utf8Stream stream;
  std::string text;
  stream.push(bytes, text);
  stream.finish(text);
  return text;
}

std::vector<std::int32_t> ids_of(std::string_view bytes) { return ByteTokenizer().encode(bytes); }

struct Stopped {
  std::string text;
  std::optional<std::size_t> by;
};
Stopped stopped(std::string_view bytes, std::vector<std::string> stop) {
  const ByteTokenizer tokenizer;
  TextStream stream(tokenizer, true, std::move(stop));
  std::string text;
  for (const std::int32_t id : ids_of(bytes)) text += stream.push(id);
  text += stream.finish();
  return {text, stream.stopped_by()};
}

}  // namespace

TEST_CASE("invalid UTF-8: each maximal beginning of a character is one U+FFFD") {
  CHECK(decoded("a\xF0\x9F\x98\x80z") == "a\xF0\x9F\x98\x80z");
  CHECK(decoded("\xF0\x9F\x41") == kBad + "A");
  CHECK(decoded("\xED\xA0\x80") == kBad + kBad + kBad);
  CHECK(decoded("\xE4\xBD") == kBad);
  CHECK(decoded("\xE4\xBD\xE4\xBD\xA0") == kBad + "\xE4\xBD\xA0");
  CHECK(decoded("\xC0\xAF") == kBad + kBad);
  CHECK(decoded("\xE0\x80\x80") == kBad + kBad + kBad);
  CHECK(decoded("\xF4\x90\x80\x80") == kBad + kBad + kBad + kBad);
  CHECK(decoded("\xF0\x8F\xBF\xBF") == kBad + kBad + kBad + kBad);
  CHECK(decoded("\xFF\xC3") == kBad + kBad);
  CHECK(decoded("\xF4\x8F\xBF\xBF") == "\xF4\x8F\xBF\xBF");
}

TEST_CASE("a stream cut anywhere: the pieces joined are the whole, and each is valid UTF-8") {
  const ByteTokenizer tokenizer;
  std::mt19937_64 random(20260810);
  for (int i = 0; i < 3000; ++i) {
    std::string bytes;
    const std::size_t length = random() % 40;
    while (bytes.size() < length) {
      if (random() % 2 == 0) {
        bytes += static_cast<char>(random());
      } else {
        append_utf8(bytes, static_cast<char32_t>(random() % 0xD800));
      }
    }
    const std::string whole = decoded(bytes);
    Utf8Stream stream;
    std::string text;
    std::string_view rest = bytes;
    while (!rest.empty()) {
      const std::size_t size = 1 + random() % rest.size();
      std::string piece;
      stream.push(rest.substr(0, size), piece);
      REQUIRE(decoded(piece) == piece);
      text += piece;
      rest.remove_prefix(size);
    }
    stream.finish(text);
    REQUIRE(text == whole);
    REQUIRE(to_text(tokenizer, ids_of(bytes)) == whole);
  }
}

TEST_CASE("stop strings: the text ends before the first, of several the longest") {
  CHECK(stopped("hello world", {}).text == "hello world");
  CHECK(stopped("hello world", {"xyz"}).text == "hello world");
  CHECK(stopped("hello world", {"xyz"}).by == std::nullopt);
  CHECK(stopped("hello world", {"o w"}).text == "hell");
  CHECK(stopped("hello world", {"world", "lo"}).text == "hel");
  CHECK(stopped("hello world", {"world", "lo"}).by == 1);
  CHECK(stopped("abcd", {"d", "bcd", "cd"}).text == "a");
  CHECK(stopped("abcd", {"d", "bcd", "cd"}).by == 1);
  CHECK(stopped("aab", {"aaab"}).text == "aab");
  CHECK(stopped("aaaab", {"aaab"}).text == "a");
  CHECK(stopped("ababac", {"abac"}).text == "ab");
  CHECK(stopped("x\xC3\xA9y", {"\xA9"}).text == "x" + kBad);
}

TEST_CASE("stop strings: only what may be the beginning of one waits") {
  const ByteTokenizer tokenizer;
  TextStream stream(tokenizer, true, {"END"});
  CHECK(stream.push('a') == "a");
  CHECK(stream.push('E').empty());
  CHECK(stream.push('N').empty());
  CHECK(stream.push('E') == "EN");
  CHECK(stream.push('b') == "Eb");
  CHECK(stream.push('E').empty());
  CHECK(stream.finish() == "E");
}

TEST_CASE("stop strings: nothing comes after one") {
  const ByteTokenizer tokenizer;
  TextStream stream(tokenizer, true, {"."});
  CHECK(stream.push('a') == "a");
  CHECK(stream.push('.').empty());
  CHECK(stream.push('b').empty());
  CHECK(stream.finish().empty());
}

TEST_CASE("byte tokenizer: a token is a byte") {
  const ByteTokenizer tokenizer;
  CHECK(tokenizer.kind() == "bytes");
  CHECK(tokenizer.vocab_size() == 256);
  CHECK(tokenizer.eos().empty());
  CHECK(ids_of(std::string("\x00\xff"
                           "a",
                           3)) == std::vector<std::int32_t>{0, 255, 97});
  CHECK(tokenizer.bytes_of(255) == "\xff");
  CHECK(tokenizer.bytes_of(0) == std::string_view("\0", 1));
  for (const std::int32_t id : {-1, 256, 2147483647}) {
    CHECK(tokenizer.bytes_of(id).empty());
    CHECK_FALSE(tokenizer.is_special(id));
  }
}

TEST_CASE("NFC: as Unicode 9 has it") {
  const auto nfc = [](std::string_view text) {
    std::string normalized(text);
    normalize_nfc(text, normalized);
    return normalized;
  };
  CHECK(nfc("plain") == "plain");
  CHECK(nfc("e\xCC\x81") == "\xC3\xA9");                                 // e, acute
  CHECK(nfc("\xE2\x84\xAB") == "\xC3\x85");                              // Angstrom sign
  CHECK(nfc("q\xCC\x87\xCC\xA3") == "q\xCC\xA3\xCC\x87");                // marks are ordered
  CHECK(nfc("\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8") == "\xEA\xB0\x81");  // Hangul
  CHECK(nfc("\xE0\xA5\x98") == "\xE0\xA4\x95\xE0\xA4\xBC");      // excluded from composition
  CHECK(nfc("a\xFF\xCC\x81\xC3") == "a\xFF\xCC\x81\xC3");        // not UTF-8
  const std::string apart = "\xF0\x91\xA4\xB5\xF0\x91\xA4\xB0";  // U+11935 U+11930
  CHECK(nfc(apart) == apart);
  CHECK(nfc("\xF0\x91\xA4\xB8") == "\xF0\x91\xA4\xB8");  // U+11938, of Unicode 13
  // A mark of Unicode 10 above, one below: the first is not moved, nor the second before it.
  CHECK(nfc("q\xE1\xB7\xB6\xCC\xA3") == "q\xE1\xB7\xB6\xCC\xA3");
  CHECK(nfc("e\xE1\xB7\xBA\xCC\x81") == "e\xE1\xB7\xBA\xCC\x81");
  CHECK(nfc("q\xE1\xB7\xB5\xCC\xA3") == "q\xCC\xA3\xE1\xB7\xB5");  // of Unicode 9
  std::string marks = "a";
  for (int i = 0; i < 20000; ++i) marks += i % 2 == 0 ? "\xCC\x81" : "\xCC\xA3";
  CHECK(nfc(marks).starts_with(
      "\xE1\xBA\xA1\xCC\xA3\xCC\xA3"));  // a with a dot below, the other dots
  CHECK(nfc(marks).size() == marks.size());
}

}  // namespace lintel
