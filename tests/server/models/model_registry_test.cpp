// SPDX-License-Identifier: Apache-2.0
// Which model a name stands for, and the state it is in.
#include "server/models/model_registry.h"

#include <thread>

#include "tests/server/support/models_fixture.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

struct RegistryFixture : ModelsFixture {
  RegistryFixture() { options.scheduling.workers = 0; }
  ModelRegistry registry;
};

TEST_CASE("a name stands for its highest version that is ready") {
  RegistryFixture f;
  CHECK(f.registry.only() == nullptr);
  CHECK(f.registry.find("b") == nullptr);
  f.registry.add(f.model("b", 2));
  f.registry.add(f.model("b", 10));
  f.registry.add(f.model("b", 9));
  CHECK(f.registry.find("b")->version == 10);
  CHECK(f.registry.only()->version == 10);
  CHECK(f.registry.find("b", 2)->version == 2);
  CHECK(f.registry.find("b", 3) == nullptr);
  f.registry.add(f.model("bb", 1));  // begins as the other does
  CHECK(f.registry.find("b")->version == 10);
  CHECK(f.registry.only() == nullptr);
  f.registry.retire("b", 10);
  CHECK(f.registry.find("b")->version == 9);
}

TEST_CASE("a version is loading, ready, unloading, unavailable") {
  RegistryFixture f;
  const auto state = [&] { return f.registry.index().at(0).state; };
  const auto reason = [&] { return f.registry.index().at(0).reason; };
  f.registry.set_loading("a", 1);
  CHECK(state() == ModelState::kLoading);
  CHECK(f.registry.find("a") == nullptr);
  CHECK(reason().empty());
  f.registry.set_progress("a", 1, "40 % of 2.1 GB read");
  CHECK(reason() == "40 % of 2.1 GB read");
  f.registry.set_progress("b", 1, "1 % of 2.1 GB read");  // it is not loading
  CHECK(f.registry.index().size() == 1);
  f.registry.set_failed("a", 1, "it is broken");
  CHECK(state() == ModelState::kUnavailable);
  CHECK(reason() == "it is broken");

  f.registry.set_loading("a", 1);
  f.registry.add(f.model("a", 1));
  CHECK(state() == ModelState::kReady);
  f.registry.set_loading("a", 1);  // a reload
  CHECK(state() == ModelState::kReady);
  f.registry.set_failed("a", 1, "it is broken");
  f.registry.set_progress("a", 1, "99 % of 2.1 GB read");
  CHECK(state() == ModelState::kReady);
  CHECK(reason() == "it is broken");  // the earlier model serves on
  for (const SharedModel& old : f.registry.add(f.model("a", 1)).replaced) {
    CHECK(f.registry.set_ending(old.get()));
    f.registry.forget(old.get());
  }
  CHECK(reason().empty());

  SharedModel used = f.registry.find("a");
  const ServedModel* const retired = f.registry.retire("a", std::nullopt).at(0).get();
  CHECK(retired == used.get());
  CHECK(used->retired.load());
  CHECK(state() == ModelState::kUnloading);
  CHECK_FALSE(f.registry.is_unused(retired));
  used.reset();
  CHECK(f.registry.is_unused(retired));
  CHECK(f.registry.set_ending(retired));
  CHECK_FALSE(f.registry.set_ending(retired));  // already
  CHECK(state() == ModelState::kUnloading);
  f.registry.forget(retired);
  CHECK(state() == ModelState::kUnavailable);
  CHECK(f.registry.all().empty());
}

TEST_CASE("a version that is loaded again while its last model drains is loading") {
  RegistryFixture f;
  f.registry.add(f.model("a", 1));
  f.registry.retire("a", 1);
  const auto state = [&] { return f.registry.index().at(0).state; };
  CHECK(state() == ModelState::kUnloading);
  f.registry.set_loading("a", 1);
  CHECK(state() == ModelState::kLoading);
  f.registry.set_failed("a", 1, "it is broken");
  CHECK(state() == ModelState::kUnloading);
}

TEST_CASE("a version replaces its like, or all others") {
  RegistryFixture f;
  CHECK(f.registry.add(f.model("a", 1)).replaced.empty());
  CHECK(f.registry.add(f.model("a", 2)).replaced.empty());
  CHECK(f.registry.add(f.model("a", 2)).replaced.size() == 1);
  CHECK(f.registry.add(f.model("b", 3), /*replace_all=*/true).replaced.empty());  // of its name
  CHECK(f.registry.add(f.model("a", 3), /*replace_all=*/true).replaced.size() == 2);
  CHECK(f.registry.ready().size() == 2);
  CHECK(f.registry.all().size() == 5);
}

TEST_CASE("a load goes from state to state one way only") {
  constexpr LoadState kStates[] = {LoadState::kLoading, LoadState::kReady, LoadState::kDraining,
                                   LoadState::kEnding, LoadState::kGone};
  for (const LoadState from : kStates) {
    for (const LoadState to : kStates) {
      const int step = static_cast<int>(to) - static_cast<int>(from);
      const bool failed = from == LoadState::kLoading && to == LoadState::kGone;
      CHECK(may_follow(from, to) == (step == 1 || failed));
    }
  }
}

TEST_CASE("the last call to release a retired model rings the bell, and no call before it") {
  RegistryFixture f;
  f.registry.add(f.model("a", 1));
  SharedModel first = f.registry.find("a");
  SharedModel second = f.registry.find("a");
  const ServedModel* const retired = f.registry.retire("a", 1).at(0).get();
  first.reset();
  CHECK_FALSE(f.registry.is_unused(retired));
  f.registry.unused_bell()->wait(TimePoint());  // has not rung
  CHECK_FALSE(f.registry.is_unused(retired));
  std::thread call([held = std::move(second)]() mutable { held.reset(); });
  f.registry.unused_bell()->wait(std::nullopt);
  CHECK(f.registry.is_unused(retired));
  call.join();
}

TEST_CASE("a call that outlives the registry keeps its model") {
  RegistryFixture f;
  SharedModel held;
  {
    ModelRegistry registry;
    registry.add(f.model("a", 1));
    held = registry.find("a");
  }
  CHECK(held->name == "a");
  CHECK(held->scheduler->idle());
}

}  // namespace
}  // namespace lintel::testing
