#include "server/vault/value_ring.h"

#include <catch2/catch.hpp>
#include <thread>
#include <vector>

namespace lintel::testing {
namespace {

TEST_CASE("a ring gives what was pushed, in order, and is full when it is full") {
  ValueRing ring(8);
  CHECK(ring.capacity() == 8);
  CHECK(ValueRing().capacity() == 64 * 1024);
  std::vector<ValueRing::Entry> taken(5);
  std::uint64_t next_in = 0, next_out = 0;
  for (int round = 0; round < 10; ++round) {
    while (ring.push({next_in, static_cast<std::int32_t>(next_in) * 3, ValueSource::kGiven})) {
      ++next_in;
    }
    CHECK(next_in - next_out == 8);
    const std::size_t count = ring.take(taken);
    CHECK(count == 5);
    for (std::size_t i = 0; i < count; ++i, ++next_out) {
      CHECK(taken[i].call == next_out);
      CHECK(taken[i].value == static_cast<std::int32_t>(next_out) * 3);
      CHECK(taken[i].source == ValueSource::kGiven);
    }
  }
  CHECK(ring.take(taken) == 3);
  CHECK(ring.take(taken) == 0);
}

TEST_CASE("a ring between two threads loses and repeats nothing") {
  constexpr std::uint64_t kValues = 200'000;
  ValueRing ring(64);
  std::thread worker([&] {
    for (std::uint64_t i = 0; i < kValues;) {
      if (ring.push({i, static_cast<std::int32_t>(i), ValueSource::kSampled})) {
        ++i;
      } else {
        std::this_thread::yield();
      }
    }
  });
  std::vector<ValueRing::Entry> taken(48);
  std::uint64_t next = 0, wrong = 0;
  while (next < kValues) {
    const std::size_t count = ring.take(taken);
    if (count == 0) std::this_thread::yield();
    for (std::size_t i = 0; i < count; ++i, ++next) wrong += taken[i].call == next ? 0 : 1;
  }
  worker.join();
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace lintel::testing
