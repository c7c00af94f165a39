// Two servers with one vault: what one reads of a session while the other writes it.
#include <catch2/catch.hpp>

#include "tests/server/durable/durable_calls.h"

namespace lintel::testing {
namespace {

TEST_CASE("a session that another server writes while it is read is read again", "[durable]") {
  Calls calls(Durability::kInput);
  DyingVault shared(calls.vault);
  shared.share();
  DurableProcess other(shared, calls.transformer, calls.clock, calls.options);
  const std::string id = calls.kept();
  calls.process->finish(tokens_call(5, 40, 3), id, named("one"));
  // Between the row and the values of the session: back, and on with other values.
  int writes = 0;
  shared.before_read([&] {
    if (writes++ > 0) return;
    REQUIRE_FALSE(calls.process->durable.rewind(id, kAlice, 4, std::nullopt).refusal);
    calls.process->finish(tokens_call(2, 60, 8), id, named("two"));
  });
  REQUIRE_FALSE(other.durable.bring(id, kAlice));
  CHECK(writes >= 2);
  CHECK(other.store.get(id, kAlice)->digest == calls.process->store.get(id, kAlice)->digest);
  // One that never comes to rest is not damaged either.
  DurableProcess third(shared, calls.transformer, calls.clock, calls.options);
  shared.before_read([&] {
    REQUIRE_FALSE(calls.process->durable.rewind(id, kAlice, 4, std::nullopt).refusal);
    ++writes;
    calls.process->finish(tokens_call(2, 50, static_cast<std::uint64_t>(writes)), id,
                          named("c" + std::to_string(writes)));
  });
  CHECK(third.durable.bring(id, kAlice).error == SessionError::kStoreAway);
  shared.before_read([] {});
  CHECK_FALSE(third.durable.bring(id, kAlice));
}

TEST_CASE("a session of a shared vault that has expired is gone, not away", "[durable]") {
  Calls calls(Durability::kInput);
  DyingVault shared(calls.vault);
  shared.share();
  DurableProcess other(shared, calls.transformer, calls.clock, calls.options);
  SessionOptions brief{.max_values = 1000};
  brief.expire_after = std::chrono::seconds(10);
  const std::string id = calls.kept(brief);
  calls.process->finish(tokens_call(5, 4, 3), id, named("one"));
  calls.clock.advance(std::chrono::seconds(20));
  CHECK(other.durable.bring(id, kAlice).error == SessionError::kNotFound);
}

}  // namespace
}  // namespace lintel::testing
