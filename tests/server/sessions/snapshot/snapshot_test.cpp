// SPDX-License-Identifier: Apache-2.0
// Snapshots: there and back, damaged, and of a former day.
#include "server/sessions/snapshot.h"

#include <chrono>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/server/sessions/snapshot/snapshots.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Kind = SnapshotError::Kind;

TEST_CASE("a snapshot that is written reads back as it was") {
  SnapshotOf of = small_snapshot();
  SECTION("as it is") {}
  SECTION("of tokens that two machines computed") { of.numerics_changed_at = 5; }
  SECTION("of a model with a KV cache") { of.kv_type = "int8"; }
  SECTION("without its history") {
    of.image.tokens.clear();
    of.image.marks.clear();
    of.image.state_position = 8;
  }
  SECTION("without its state") {
    of.image.state.clear();
    of.image.state_position = 0;
    of.image.base = 0;
    of.image.tokens.insert(of.image.tokens.begin(), {1, 2, 3});
  }
  SECTION("of larger vocabularies") { of.image.tokens[2] = GENERATE(256, 65535, 65536, INT32_MAX); }
  SECTION("of nothing yet") {
    of.image = {};
    of.image.model = "empty";
  }
  SECTION("as large as a session of images") {
    std::mt19937 generator(1);
    of.image.state.resize(271'360);
    for (std::byte& byte : of.image.state) byte = static_cast<std::byte>(generator());
    of.image.base = 0;
    of.image.position = of.image.state_position = 784;
    of.image.tokens.assign(784, 200);
  }
  const Bytes bytes = write_snapshot(of);
  CHECK(bytes.size() % 64 == 0);
  CHECK(same(read_snapshot(bytes), of));
  // A state written into the draft gives the same bytes.
  SnapshotDraft draft(of, of.image, of.image.state.size());
  const std::size_t capacity = draft.bytes().capacity();
  draft.bytes().insert(draft.bytes().end(), of.image.state.begin(), of.image.state.end());
  const Bytes drafted = draft.finish(of.image);
  CHECK(drafted == bytes);
  CHECK(drafted.capacity() == capacity);
  CHECK(write_snapshot(read_snapshot(bytes)) == bytes);
}

TEST_CASE("a snapshot that is cut off anywhere, or too long, is damaged") {
  const Bytes bytes = write_snapshot(small_snapshot());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    CAPTURE(size);
    const auto refused = refusal_of(std::span(bytes).first(size));
    REQUIRE(refused);
    REQUIRE(refused->kind() == Kind::kDamaged);
  }
  Bytes longer = bytes;
  longer.push_back({});
  REQUIRE(refusal_of(longer));
  CHECK(refusal_of(longer)->kind() == Kind::kDamaged);
}

TEST_CASE("a snapshot with any bit changed is refused") {
  Bytes bytes = write_snapshot(small_snapshot());
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      CAPTURE(at, bit);
      bytes[at] ^= static_cast<std::byte>(1 << bit);
      const auto refused = refusal_of(bytes);
      REQUIRE(refused);
      // After the preamble the checksum finds it.
      if (at >= kSnapshotPreambleBytes) REQUIRE(refused->kind() == Kind::kDamaged);
      bytes[at] ^= static_cast<std::byte>(1 << bit);
    }
  }
  CHECK_FALSE(refusal_of(bytes));
}

TEST_CASE("bytes that are no snapshot, or of another version, are refused as such") {
  using Catch::Contains;
  Bytes bytes = write_snapshot(small_snapshot());
  const auto refused_with = [&](std::size_t at, int value) {
    Bytes other = bytes;
    other[at] = static_cast<std::byte>(value);
    const auto refused = refusal_of(other);
    REQUIRE(refused);
    CHECK(refused->kind() == Kind::kInvalid);
    return std::string(refused->what());
  };
  CHECK(refused_with(0, 'X') == "snapshot: preamble: these bytes are no snapshot");
  CHECK(refused_with(63, 1) == "snapshot: preamble: these bytes are no snapshot");
  CHECK(refused_with(8, 2) == "snapshot: version: found 2, expected 1");
  CHECK_THAT(refused_with(12, 1), Contains("header_bytes: found"));
  CHECK_THAT(refused_with(15, 1), Contains("header_bytes: found"));
  CHECK_THAT(refused_with(16, 1), Contains("body_bytes: found"));
  CHECK_THAT(refused_with(23, 0x80), Contains("body_bytes: found"));
}

// Format 1 as it was first written: it stays readable for as long as there are sessions in it.
TEST_CASE("the kept snapshot of format 1 reads as its session") {
  std::ifstream in(LINTEL_TEST_DATA "/server/sessions/snapshot/format-1.snapshot",
                   std::ios::binary);
  const std::string file{std::istreambuf_iterator<char>(in), {}};
  REQUIRE_FALSE(file.empty());
  const auto bytes = std::as_bytes(std::span(file));
  CHECK(same(read_snapshot(bytes), small_snapshot()));
}

// Not run by itself: "[.write]" writes the file above, "[.speed]" says how long it takes.
TEST_CASE("write format-1.snapshot", "[.write]") {
  const Bytes bytes = write_snapshot(small_snapshot());
  std::ofstream("format-1.snapshot", std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

TEST_CASE("how long a snapshot of 271360 bytes takes", "[.speed]") {
  SnapshotOf of = small_snapshot();
  of.image.state.assign(271'360, std::byte{7});
  of.image.base = 0;
  of.image.position = of.image.state_position = 784;
  of.image.tokens.assign(784, 200);
  const auto best_micros = [](const auto& what) {
    double best = 1e9;
    for (int i = 0; i < 2000; ++i) {
      const auto start = std::chrono::steady_clock::now();
      what();
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - start;
      best = std::min(best, took.count());
    }
    return best;
  };
  const Bytes bytes = write_snapshot(of);
  std::size_t sink = 0;
  WARN("write " << best_micros([&] { sink += write_snapshot(of).size(); }) << " us, read "
                << best_micros([&] { sink += read_snapshot(bytes).image.state.size(); })
                << " us, hash "
                << best_micros([&] { sink += std::to_integer<int>(digest_of(bytes).bytes[0]); })
                << " us " << sink % 2);
}

}  // namespace
}  // namespace lintel::testing
