// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <span>
#include <vector>

#include "tests/support/catch.h"

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

TEST_CASE("two pieces have the digest of one, on any machine and at any place in memory") {
  std::vector<std::byte> bytes(300'000);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i * i >> 3);
  }
  for (const std::size_t size : {0, 1, 900, 1023, 1024, 1025, 1100, 4097, 271'360}) {
    for (const std::size_t head : {0, 1, 17, 48, 1030}) {
      for (const std::size_t offset : {0, 1, 8}) {
        CAPTURE(size, head, offset);
        const auto all = std::span(bytes).subspan(offset, head + size);
        Digest expected;  // as it is computed where there are no wide registers
        XXH128_canonical_t canonical;
        XXH128_canonicalFromHash(&canonical, XXH3_128bits(all.data(), all.size()));
        std::memcpy(expected.bytes.data(), canonical.digest, expected.bytes.size());
        REQUIRE(digest_of(all) == expected);
        REQUIRE(digest_of(all.first(head), all.subspan(head)) == expected);
      }
    }
  }
}

TEST_CASE("digests are XXH3-128 as specified") {
  // The digest of nothing, as the specification's own tests have it.
  CHECK(to_hex(digest_of({})) == "99aa06d3014798d86001c324468d497f");
}

}  // namespace
}  // namespace lintel::testing
