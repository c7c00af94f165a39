// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/named_states.h"

#include <string>

#include "tests/support/catch.h"

namespace lintel {
namespace {

NamedStates::Shared state_named(SessionMemory& memory, const std::string& name,
                                bool is_public = false) {
  auto admitted = memory.reserve("", 1, /*takes_place=*/false);
  const auto state = std::make_shared<NamedState>(std::move(admitted.reservation), SessionImage{});
  state->name = name;
  state->is_public = is_public;
  return state;
}

TEST_CASE("an owner has a thousand named states, and others as many") {
  SessionMemory memory({.bytes = 1 << 20});
  NamedStates states;
  for (std::size_t i = 0; i < NamedStates::kMostOfOwner; ++i) {
    REQUIRE(states.save("alice", state_named(memory, "s" + std::to_string(i))));
  }
  CHECK_FALSE(states.has_place("alice", "more", false));
  CHECK_FALSE(states.save("alice", state_named(memory, "more")));
  CHECK(states.save("alice", state_named(memory, "s7")));  // in place of another
  CHECK(states.save("bob", state_named(memory, "more")));
  CHECK(states.save("alice", state_named(memory, "more", /*is_public=*/true)));
  CHECK(states.remove("alice", "s8", false));
  CHECK(states.save("alice", state_named(memory, "more")));
}

TEST_CASE("an owner's named state goes before a public one of the name") {
  SessionMemory memory({.bytes = 1 << 20});
  NamedStates states;
  const auto mine = state_named(memory, "name");
  const auto everybodys = state_named(memory, "name", /*is_public=*/true);
  REQUIRE(states.save("root", everybodys));
  CHECK(states.find("alice", "name") == everybodys);
  REQUIRE(states.save("alice", mine));
  CHECK(states.find("alice", "name") == mine);
  CHECK(states.find("bob", "name") == everybodys);
  CHECK(states.list("alice", "", std::nullopt, 10).size() == 2);
  CHECK(states.list("alice", "", NamedStates::Place{"name", false}, 10).size() == 1);
  CHECK_FALSE(states.remove("bob", "name", false));
  CHECK(states.remove("alice", "name", false));
  CHECK(states.find("alice", "name") == everybodys);
}

TEST_CASE("a named state holds its memory until the last reference to it is released") {
  SessionMemory memory({.bytes = 1 << 20});
  NamedStates states;
  auto used = state_named(memory, "name");
  REQUIRE(states.save("alice", used));
  REQUIRE(states.remove("alice", "name", false));
  CHECK(memory.bytes_in_use() == 1);
  used.reset();
  CHECK(memory.bytes_in_use() == 0);
}

}  // namespace
}  // namespace lintel
