// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/request_budget.h"

#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

TEST_CASE("budget: a refusal stays, also where others have released memory since") {
  RequestMemory account({.bytes = std::size_t{1} << 20});
  RequestMemory::Charge others(&account, "b");
  REQUIRE_FALSE(others.add(std::size_t{900} << 10));
  RequestMemory::Charge memory(&account, "a");
  const std::function<bool()> never;
  RequestBudget budget(memory, /*copies=*/1, never);
  REQUIRE(budget.charge(std::int64_t{100} << 10));
  REQUIRE_FALSE(budget.charge(std::int64_t{100} << 10));
  REQUIRE(budget.refusal());
  others = {};
  CHECK_FALSE(budget.charge(-(std::int64_t{50} << 10)));
  CHECK_FALSE(budget.charge(std::int64_t{1} << 10));
  CHECK(budget.refusal());
  CHECK(memory.bytes() == std::size_t{100} << 10);
}

}  // namespace
}  // namespace lintel::testing
