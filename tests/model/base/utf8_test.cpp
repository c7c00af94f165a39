// SPDX-License-Identifier: Apache-2.0
// Bytes as text, in pieces.
#include "model/core/utf8.h"

#include <utility>

#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// The text of pieces that end where the bits of `cuts` say.
std::string text_in_pieces(const std::string& bytes, unsigned cuts) {
  Utf8Stream utf8;
  std::string text, piece;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    piece += bytes[i];
    if ((cuts >> i & 1u) != 0) utf8.push(std::exchange(piece, {}), text);
  }
  utf8.push(piece, text);
  utf8.finish(text);
  return text;
}

const std::string kReplaced = "\xef\xbf\xbd";

}  // namespace

TEST_CASE(
    "bytes become the text that Python's errors=replace makes of them, however they are cut") {
  const std::string r = kReplaced;
  // Results of bytes.decode(errors="replace") of CPython 3.11.
  const std::pair<std::string, std::string> cases[] = {
      {"plain", "plain"},
      {"d\xc3\xa9j\xc3\xa0 \xe2\x82\xac \xf0\x9f\x99\x82",
       "d\xc3\xa9j\xc3\xa0 \xe2\x82\xac \xf0\x9f\x99\x82"},
      {"\xff", r},
      {"\xc3", r},
      {"\xc3(", r + "("},
      {"\xe2\x82", r},
      {"\xe2(\xa1", r + "(" + r},
      {"\xed\xa0\x80", r + r + r},
      {"\xf0\x9f\x98", r},
      {"\xf0\x9f\x98z", r + "z"},
      {"\xf0\x80\x80\x80", r + r + r + r},
      {"\xf5\x80", r + r},
      {"\xc0\xaf", r + r},
      {"\xe0\x80\xaf", r + r + r},
      {"\xf4\x90\x80\x80", r + r + r + r},
      {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},
      {"a\x80\x80z", "a" + r + r + "z"},
      {"\xe2\xe2\x82\xac", r + "\xe2\x82\xac"},
      {"\xf0\x9f\xc3\xa9", r + "\xc3\xa9"},
  };
  for (const auto& [bytes, expected] : cases) {
    for (unsigned cuts = 0; cuts < 1u << (bytes.size() < 8 ? bytes.size() : 8); ++cuts) {
      CAPTURE(bytes, cuts);
      CHECK(text_in_pieces(bytes, cuts) == expected);
    }
  }
}

TEST_CASE("a character is held back until it is whole, and counted then") {
  Utf8Stream utf8;
  std::string text;
  utf8.push("a\xe2\x82", text);
  CHECK(text == "a");
  CHECK(utf8.num_characters() == 1);
  CHECK(utf8.holds_back());
  utf8.push("\xac", text);
  CHECK(text == "a\xe2\x82\xac");
  CHECK(utf8.num_characters() == 2);
  CHECK_FALSE(utf8.holds_back());
  utf8.push("\xf0\x9f", text);
  utf8.finish(text);
  CHECK(text == "a\xe2\x82\xac" + kReplaced);
  CHECK(utf8.num_characters() == 3);
}

}  // namespace lintel::testing
