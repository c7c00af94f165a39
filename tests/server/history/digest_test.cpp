#include "server/history/digest.h"

#include <catch2/catch.hpp>
#include <vector>

namespace lintel::testing {
namespace {

TEST_CASE("a record of a chain has the digest of what it is made of, one after the other") {
  const Digest before = digest_of({});
  for (std::size_t size = 0; size <= 200; ++size) {
    CAPTURE(size);
    std::vector<std::byte> bytes(size);
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(7 * i + size);
    std::vector<std::byte> all(before.bytes.begin(), before.bytes.end());
    all.push_back(static_cast<std::byte>(DigestKind::kRewind));
    all.insert(all.end(), bytes.begin(), bytes.end());
    REQUIRE(extend(before, DigestKind::kRewind, bytes) == digest_of(all));
  }
}

TEST_CASE("digests are XXH3-128 as everybody has it") {
  // Of nothing, as the specification's own tests have it.
  CHECK(to_hex(digest_of({})) == "99aa06d3014798d86001c324468d497f");
}

}  // namespace
}  // namespace lintel::testing
