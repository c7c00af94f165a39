// SPDX-License-Identifier: Apache-2.0
// Snapshots in pieces.
#include "server/sessions/snapshot.h"
#include "tests/server/sessions/snapshot/snapshots.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Catch::Contains;

TEST_CASE("a snapshot in pieces of any size is the whole one") {
  const Bytes bytes = write_snapshot(small_snapshot());
  for (const std::size_t size : {1, 7, 63, 64, 65, 1000, 100'000}) {
    CAPTURE(size);
    SnapshotReader reader(bytes.size());
    for (std::size_t at = 0; at < bytes.size(); at += size) {
      CHECK(reader.total_bytes().has_value() == (at >= kSnapshotPreambleBytes));
      reader.add(std::span(bytes).subspan(at, std::min(size, bytes.size() - at)));
    }
    CHECK(reader.total_bytes() == bytes.size());
    const SnapshotOf viewed = reader.view();
    CHECK(viewed.image.state.empty());
    CHECK(viewed.image.state_elsewhere.size() == small_snapshot().image.state.size());
    CHECK(same(viewed, small_snapshot()));
    CHECK(same(reader.finish(), small_snapshot()));
  }
}

TEST_CASE("a snapshot that is larger than allowed is refused with its first 64 bytes") {
  const Bytes bytes = write_snapshot(small_snapshot());
  SnapshotReader reader(bytes.size() - 1);
  reader.add(std::span(bytes).first(63));
  CHECK_THROWS_WITH(reader.add(std::span(bytes).subspan(63, 1)),
                    Contains("expected at most " + std::to_string(bytes.size() - 1)));
}

TEST_CASE("sizes that lie take no memory, and are damaged in the end") {
  const Bytes bytes = write_snapshot(small_snapshot());
  SnapshotPreamble lie = read_snapshot_preamble(bytes);
  lie.body_bytes = std::uint64_t{1} << 61;
  const auto front = lie.encode();
  SnapshotReader reader(UINT64_MAX);
  reader.add(front);
  reader.add(std::span(bytes).subspan(64));
  CHECK(reader.bytes() == bytes.size());
  CHECK_THROWS_WITH(reader.finish(), Contains("found " + std::to_string(bytes.size()) + " bytes"));
}

TEST_CASE("more bytes than a snapshot says are refused as they come") {
  const Bytes bytes = write_snapshot(small_snapshot());
  SnapshotReader reader(UINT64_MAX);
  reader.add(bytes);
  reader.add({});
  CHECK_THROWS_AS(reader.add(std::span(bytes).first(1)), SnapshotError);
}

TEST_CASE("bytes that are no snapshot are refused with their first 64 bytes") {
  SnapshotReader reader(UINT64_MAX);
  const Bytes zeros(64);
  CHECK_THROWS_WITH(reader.add(zeros), Contains("no snapshot"));
  SnapshotReader nothing(UINT64_MAX);
  CHECK_THROWS_AS(nothing.finish(), SnapshotError);
}

}  // namespace
}  // namespace lintel::testing
