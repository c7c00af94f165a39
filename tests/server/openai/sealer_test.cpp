// SPDX-License-Identifier: Apache-2.0
// Texts that a client keeps and cannot read or change.
#include "server/openai/sealer.h"

#include <string>

#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

TEST_CASE("sealer: a text opens as it was, for its owner, purpose and secret alone",
          "[threat-83]") {
  Sealer::Secret secret{}, other{};
  other[31] = std::byte{1};
  const Sealer sealer(secret, "ada");
  for (const std::size_t size : {0, 1, 2, 3, 100, 100'000}) {
    const std::string text(size, 'x');
    const std::string sealed = sealer.seal("reasoning", text);
    CHECK(sealer.open("reasoning", sealed) == text);
    CHECK(Sealer(secret, "ada").open("reasoning", sealed) == text);
    CHECK(sealed != sealer.seal("reasoning", text));
    CHECK_FALSE(sealer.open("compaction", sealed));
    CHECK_FALSE(Sealer(secret, "eve").open("reasoning", sealed));
    CHECK_FALSE(Sealer(other, "ada").open("reasoning", sealed));
    CHECK(sealed.find("eHh4eHh4") == std::string::npos);  // "xxxxxx" in Base64
  }
}

TEST_CASE("sealer: a changed or cut text does not open", "[threat-83]") {
  const Sealer sealer(Sealer::Secret{}, "");
  const std::string sealed = sealer.seal("p", "some text");
  for (std::size_t i = 0; i < sealed.size(); ++i) {
    std::string changed = sealed;
    changed[i] = changed[i] == 'A' ? 'B' : 'A';
    CAPTURE(i);
    CHECK_FALSE(sealer.open("p", changed));
    CHECK_FALSE(sealer.open("p", sealed.substr(0, i)));
  }
  CHECK_FALSE(sealer.open("p", "no base64!!!"));
  CHECK_FALSE(sealer.open("p", std::string(4000, 'A')));
}

}  // namespace
}  // namespace lintel::testing
