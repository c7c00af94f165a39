// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "server/http/encoding/json_bodies.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

std::vector<std::string> all_of(JsonPieces& pieces) {
  std::vector<std::string> all;
  while (!pieces.is_over()) all.push_back(pieces.next());
  CHECK(pieces.next().empty());
  return all;
}

TEST_CASE("JSON in pieces: a short document is one piece") {
  JsonPieces pieces;
  pieces.raw("{\"text\":");
  pieces.quoted("a \"b\"\n\xe2\x82\xac \xff");
  pieces.raw(",\"empty\":");
  pieces.quoted("");
  pieces.raw(",\"list\":[");
  pieces.items(8, [at = 0](std::string& out) mutable {
    if (at == 3) return false;
    out += std::to_string(at++);
    return true;
  });
  pieces.raw("],\"none\":[");
  pieces.items(0, [](std::string&) { return false; });
  pieces.raw("]}");
  CHECK(pieces.bytes() > 8);
  const std::vector<std::string> all = all_of(pieces);
  REQUIRE(all.size() == 1);
  CHECK(all[0] ==
        "{\"text\":\"a \\\"b\\\"\\n\xe2\x82\xac \xef\xbf\xbd\",\"empty\":\"\",\"list\":[0,1,2],"
        "\"none\":[]}");
  CHECK(pieces.bytes() == 0);
}

TEST_CASE("JSON in pieces: a long text and a long list are cut, and no character of the text is",
          "[threat-86]") {
  std::string text = "x";  // so that no character of three bytes ends where a piece does
  while (text.size() < 5 * JsonPieces::kPieceBytes) text += "\xe2\x82\xac\"";
  JsonPieces pieces;
  pieces.raw("[");
  pieces.quoted(text);
  const std::string made = "," + nlohmann::json(text).dump();
  pieces.refer(made);
  pieces.raw(made);
  pieces.raw(",[");
  constexpr int kItems = 100'000;
  pieces.items(1000, [at = 0](std::string& out) mutable {
    if (at == kItems) return false;
    out += std::to_string(at++);
    return true;
  });
  pieces.raw("]]");
  std::size_t held = pieces.bytes();
  std::string whole;
  int count = 0;
  while (!pieces.is_over()) {
    const std::string piece = pieces.next();
    // Quotes take two bytes, and an item may go beyond.
    CHECK(piece.size() <= 3 * JsonPieces::kPieceBytes);
    CHECK(pieces.bytes() <= held);
    held = pieces.bytes();
    whole += piece;
    ++count;
  }
  CHECK(count > 8);
  CHECK(held == 0);
  const nlohmann::json document = nlohmann::json::parse(whole);
  for (int i = 0; i < 3; ++i) CHECK(document[i] == text);
  CHECK(document[3].size() == kItems);
  CHECK(document[3].back() == kItems - 1);
}

}  // namespace
}  // namespace lintel::testing
