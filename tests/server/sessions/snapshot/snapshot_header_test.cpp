// SPDX-License-Identifier: Apache-2.0
// The header of a snapshot that a stranger made: whole, and wrong.
#include <nlohmann/json.hpp>

#include "server/sessions/snapshot.h"
#include "tests/server/sessions/snapshot/snapshots.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Catch::Contains;
using nlohmann::ordered_json;

// Sealed again, with the right checksum.
template <typename Change>
std::string refusal_with(Change&& change) {
  Parts parts = parts_of(write_snapshot(small_snapshot()));
  ordered_json header = ordered_json::parse(parts.header);
  change(header, parts.body);
  const auto refused = refusal_of(sealed(header.dump(), parts.body));
  if (!refused) return "taken";
  CHECK(refused->kind() == SnapshotError::Kind::kInvalid);
  return refused->what();
}

TEST_CASE("an unchanged snapshot is taken, sealed again") {
  CHECK(refusal_with([](ordered_json&, Bytes&) {}) == "taken");
}

TEST_CASE("every key of the header is needed, of its type and of no more than its size") {
  const ordered_json header =
      ordered_json::parse(parts_of(write_snapshot(small_snapshot())).header);
  for (const auto& [key, value] : header.items()) {
    CAPTURE(key);
    CHECK_THAT(refusal_with([&](ordered_json& h, Bytes&) { h.erase(key); }), Contains(key));
    for (const ordered_json& awkward :
         {ordered_json(nullptr), ordered_json(true), ordered_json(1.5), ordered_json(-1),
          ordered_json(1e300), ordered_json(UINT64_MAX), ordered_json::object(),
          ordered_json::array(), ordered_json::array({1}), ordered_json(std::string(5000, 'x')),
          ordered_json("control\n")}) {
      CAPTURE(awkward.dump().substr(0, 30));
      CHECK_THAT(refusal_with([&](ordered_json& h, Bytes&) { h[key] = awkward; }), Contains(key));
    }
  }
  CHECK_THAT(refusal_with([](ordered_json& h, Bytes&) { h["more"] = 1; }), Contains("more"));
  CHECK_THAT(refusal_with([](ordered_json& h, Bytes&) { h["digest"] = std::string(32, 'F'); }),
             Contains("digest"));
  CHECK_THAT(refusal_with([](ordered_json& h, Bytes&) { h["digest"] = std::string(31, '0'); }),
             Contains("digest"));
}

TEST_CASE("the position of a change of numerics is present only with one, and within the tokens") {
  const auto with = [](std::int64_t position) {
    return refusal_with([&](ordered_json& h, Bytes&) { h["numerics_changed_at"] = position; });
  };
  CHECK(parts_of(write_snapshot(small_snapshot())).header.find("numerics_changed_at") ==
        std::string::npos);
  CHECK(with(1) == "taken");
  CHECK(with(8) == "taken");
  CHECK_THAT(with(0), Contains("numerics_changed_at"));
  CHECK_THAT(with(9), Contains("numerics_changed_at"));
}

TEST_CASE("the type of a KV cache is present only with one, as a text") {
  const auto with = [](const ordered_json& type) {
    return refusal_with([&](ordered_json& h, Bytes&) { h["kv_type"] = type; });
  };
  SnapshotOf of = small_snapshot();
  CHECK(parts_of(write_snapshot(of)).header.find("kv_type") == std::string::npos);
  of.kv_type = "bf16";
  CHECK(
      parts_of(write_snapshot(of)).header.find("\"weight_type\":\"int8\",\"kv_type\":\"bf16\",") !=
      std::string::npos);
  CHECK(with("int8") == "taken");
  CHECK_THAT(with(8), Contains("kv_type"));
  CHECK_THAT(with("a\nb"), Contains("kv_type"));
}

TEST_CASE("contradictory positions are refused") {
  const auto with = [](const char* key, auto value) {
    return refusal_with([&](ordered_json& h, Bytes&) { h[key] = value; });
  };
  CHECK_THAT(with("max_values", 7), Contains("\"position\": found 8"));
  CHECK(with("max_values", 8) == "taken");
  CHECK(with("max_values", 0) == "taken");
  CHECK_THAT(with("base", 9), Contains("base"));
  CHECK_THAT(with("base", 2), Contains("5 tokens, expected 6"));
  CHECK_THAT(with("position", 9), Contains("5 tokens, expected 6"));
  CHECK_THAT(with("state_position", 9), Contains("state_position"));
  CHECK_THAT(with("state_position", 2),
             Contains("\"state_position\": found 2, expected at least 3"));
  CHECK_THAT(with("value_bytes", 3), Contains("value_bytes"));
  CHECK_THAT(with("value_bytes", 2), Contains("multiple of value_bytes"));
}

TEST_CASE("sections that overlap, are out of order or huge are refused") {
  const auto with = [](std::size_t i, const char* key, auto value) {
    return refusal_with([&](ordered_json& h, Bytes&) { h["sections"][i][key] = value; });
  };
  CHECK_THAT(with(0, "offset", 64), Contains("sections[0].offset"));
  CHECK_THAT(with(1, "offset", 0), Contains("sections[1].offset"));
  CHECK_THAT(with(1, "offset", 192), Contains("sections[1].offset"));
  CHECK_THAT(with(2, "offset", 129), Contains("sections[2].offset"));
  CHECK_THAT(with(0, "bytes", 0), Contains("sections[1].offset"));
  CHECK_THAT(with(2, "bytes", 64), Contains("position"));
  CHECK_THAT(with(2, "bytes", 47), Contains("sections[2].bytes"));
  CHECK_THAT(with(2, "bytes", 80), Contains("sections"));
  for (const std::uint64_t huge : {std::uint64_t{257}, std::uint64_t{1} << 32,
                                   std::uint64_t{1} << 62, std::uint64_t{INT64_MAX}, UINT64_MAX}) {
    for (const std::size_t i : {0, 1, 2}) {
      CHECK_THAT(with(i, "bytes", huge), Contains("sections[" + std::to_string(i) + "].bytes"));
      CHECK_THAT(with(i, "offset", huge), Contains("sections[" + std::to_string(i) + "].offset"));
    }
  }
  CHECK_THAT(with(1, "name", "state"), Contains("sections[1].name"));
  CHECK_THAT(with(1, "more", 1), Contains("more"));
  CHECK_THAT(refusal_with([](ordered_json& h, Bytes&) { h["sections"].erase(1); }),
             Contains("sections"));
  CHECK_THAT(
      refusal_with([](ordered_json& h, Bytes&) { std::swap(h["sections"][0], h["sections"][1]); }),
      Contains("sections[0].name"));
}

TEST_CASE("a body that differs from its sections is refused") {
  CHECK_THAT(refusal_with([](ordered_json&, Bytes& b) { b.resize(b.size() + 64); }),
             Contains("bytes of sections"));
  CHECK_THAT(refusal_with([](ordered_json&, Bytes& b) { b.resize(b.size() - 64); }),
             Contains("sections"));
  CHECK_THAT(refusal_with([](ordered_json&, Bytes& b) { b[70] = std::byte{1}; }),
             Contains("section state is not followed by zeros"));
  CHECK_THAT(refusal_with([](ordered_json&, Bytes& b) { b[192] = std::byte{9}; }),
             Contains("marks[0].position: found 9, expected 0 to 8"));
  CHECK_THAT(refusal_with([](ordered_json&, Bytes& b) { b[208] = std::byte{2}; }),
             Contains("marks[1].position: found 2, expected 3 to 8"));
  CHECK_THAT(refusal_with([](ordered_json&, Bytes& b) { b[199] = std::byte{0x80}; }),
             Contains("marks[0].position"));
  CHECK_THAT(refusal_with([](ordered_json&, Bytes& b) { b[200] = std::byte{3}; }),
             Contains("marks[0].source: found 3"));
  CHECK_THAT(refusal_with([](ordered_json&, Bytes& b) { b[207] = std::byte{1}; }),
             Contains("marks[0].source"));
}

TEST_CASE("an id that is no token of any vocabulary is refused") {
  SnapshotOf of = small_snapshot();
  of.image.tokens[1] = INT32_MAX;
  Parts parts = parts_of(write_snapshot(of));
  parts.body[128 + 7] = std::byte{0xff};
  const auto refused = refusal_of(sealed(parts.header, parts.body));
  REQUIRE(refused);
  CHECK_THAT(refused->what(), Contains("values[1]: found 4294967295"));
}

TEST_CASE("a header that is no JSON object is refused, however deep and long") {
  for (const std::string& header :
       {std::string("{"), std::string("[]"), std::string("7"), std::string(60'000, '['),
        std::string("{\"model\":1,\"model\":2}"), std::string(65'536, ' '),
        std::string("\xff\xfe{}")}) {
    const auto refused = refusal_of(sealed(header, Bytes(64)));
    REQUIRE(refused);
    CHECK(refused->kind() == SnapshotError::Kind::kInvalid);
    CHECK(std::string(refused->what()).size() < 1000);
  }
}

}  // namespace
}  // namespace lintel::testing
