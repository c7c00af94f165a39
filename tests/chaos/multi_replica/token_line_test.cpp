// SPDX-License-Identifier: Apache-2.0
// The checker of the campaign notices what it is there for.
#include "tests/chaos/multi_replica/token_line.h"

#include "tests/support/catch.h"

namespace lintel::testing {

using Catch::Matchers::Contains;

TEST_CASE("a line of tokens detects lost, doubled and changed tokens") {
  TokenLine line;
  CHECK_FALSE(line.received("a", 0, 7));
  CHECK_FALSE(line.received("a", 1, 8));
  CHECK_FALSE(line.received("a", 1, 8));  // a repeat
  CHECK_FALSE(line.ended("a", 2));
  CHECK_THAT(*line.ended("a", 1), Contains("has ended before position 1"));
  CHECK_THAT(*line.ended("a", 3), Contains("did not send all"));
  CHECK_THAT(*line.received("a", 1, 9), Contains("as 8 and as 9"));
  CHECK_THAT(*line.received("b", 1, 8), Contains("was sent to a and to b"));
  CHECK(line.difference({7, 8}).empty());
  CHECK_THAT(line.difference({7}), Contains("position 1 of a is gone"));
  CHECK_THAT(line.difference({7, 9}), Contains("is 9, not 8"));
  CHECK_THAT(line.difference({7, 8, 9}), Contains("3 tokens are stored, 2 were sent"));
  CHECK(line.difference({8}, 1).empty());
  CHECK_THAT(line.difference({9}, 1), Contains("is 9, not 8"));
  CHECK_THAT(line.difference({8, 9}, 1), Contains("3 tokens are stored, 2 were sent"));
}

}  // namespace lintel::testing
