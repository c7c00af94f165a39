// SPDX-License-Identifier: Apache-2.0
// AdapterTable: who finds an adapter, and when it is gone.
#include "server/sessions/adapter_table.h"

#include <thread>

#include "tests/server/support/adapters_fixture.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

TEST_CASE("an adapter is found from add to retire, and kept by the call that found it") {
  AdapterTable table;
  const auto bell = std::make_shared<Notification>();
  std::weak_ptr<const Adapter> weights;
  {
    std::shared_ptr<const Adapter> loaded = random_adapter(TinyModel::kTokens, 1);
    weights = loaded;
    REQUIRE(table.add("a", std::move(loaded)) != nullptr);
  }
  CHECK(table.find("b") == nullptr);
  SharedAdapter found = table.find("a");
  REQUIRE(found != nullptr);
  CHECK(found->name == "a");
  CHECK(table.ready().size() == 1);
  CHECK(table.retired("a") == nullptr);
  CHECK_FALSE(table.is_unused("a"));

  REQUIRE(table.retire("a", bell));
  CHECK(table.find("a") == nullptr);
  CHECK(table.ready().empty());
  CHECK(table.has("a"));
  CHECK_FALSE(table.retire("a", bell));  // it was
  CHECK(table.retired("a") == found);
  CHECK_FALSE(table.is_unused("a"));
  CHECK(table.add("a", random_adapter(TinyModel::kTokens, 2)) == nullptr);  // its name is taken

  std::shared_ptr<const Adapter> in_a_sequence = weights_of(found);
  found.reset();
  CHECK_FALSE(table.is_unused("a"));  // a sequence has it
  CHECK_FALSE(weights.expired());
  std::thread waiting([&] { bell->wait(std::nullopt); });
  in_a_sequence.reset();
  waiting.join();
  CHECK(table.is_unused("a"));
  CHECK(weights.expired());
  table.forget("a");
  CHECK_FALSE(table.has("a"));
  CHECK(table.add("a", random_adapter(TinyModel::kTokens, 2)) != nullptr);
  table.forget("a");  // a ready adapter is not forgotten
  CHECK(table.find("a") != nullptr);
}

TEST_CASE("a table has so many names and no more") {
  AdapterTable table;
  const std::shared_ptr<const Adapter> weights = random_adapter(TinyModel::kTokens, 1);
  for (std::size_t i = 0; i < AdapterTable::kMost; ++i) {
    REQUIRE(table.add(std::to_string(i), weights) != nullptr);
  }
  CHECK(table.add("one-more", weights) == nullptr);
  REQUIRE(table.retire("7", std::make_shared<Notification>()));
  CHECK(table.add("one-more", weights) == nullptr);  // until it is gone
  table.forget("7");
  CHECK(table.add("one-more", weights) != nullptr);
}

}  // namespace
}  // namespace lintel::testing
