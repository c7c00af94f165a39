// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include "bench/measure.h"

namespace lintel::bench {

TEST_CASE("the median is the middle one, or the mean of the middle two") {
  CHECK(summarize({3, 1, 2}) == Summary{2, 1, 3, 3});
  CHECK(summarize({4, 1, 3, 2}) == Summary{2.5, 1, 4, 4});
  CHECK(summarize({7}) == Summary{7, 7, 7, 1});
}

TEST_CASE("one outlier moves the spread and not the median") {
  CHECK(summarize({10, 11, 9, 10, 1000}) == Summary{10, 9, 1000, 5});
}

TEST_CASE("a quantile lies between the ranks around it") {
  CHECK(quantile({10, 20, 30, 40, 50}, 0) == 10);
  CHECK(quantile({50, 40, 30, 20, 10}, 1) == 50);
  CHECK(quantile({10, 20, 30, 40, 50}, 0.9) == Approx(46));
  CHECK(quantile({5}, 0.99) == 5);
}

TEST_CASE("images a second are least where seconds are most") {
  const Summary rate = quotient(8, Summary{2, 1, 4, 5});
  CHECK(rate == Summary{4, 2, 8, 5});
}

}  // namespace lintel::bench
