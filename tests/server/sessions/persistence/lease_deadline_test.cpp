// SPDX-License-Identifier: Apache-2.0
// Calls whose claim is good until a time by the steady clock: which tokens are delivered before and
// after.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tests/server/sessions/persistence/persistent_requests.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kMany = 400;

// A call on a session that is claimed for two seconds.
struct LentCall {
  explicit LentCall(Durability level, bool waits = false) : calls(level), id(calls.kept()) {
    calls.dying->hold_commits(waits);
    until = calls.clock.now() + seconds(2);
    lease->prolong(until);
    calls.dying->lend(lease);
    started = calls.process->call(tokens_call(5, kMany, 3), id, named("a"));
    REQUIRE_FALSE(started.refusal);
  }
  void step() {
    calls.process->model->scheduler->run_one_step();
    calls.process->durable.write();
  }
  void advance_to(TimePoint time) { calls.clock.advance(time - calls.clock.now()); }
  const std::vector<RecordedToken>& seen() const { return started.sink->recorded[0]; }
  // The server that takes the session over, and what it says to the call's repeat.
  std::vector<RecordedToken> repeated() {
    calls.begin();
    return calls.process->finish(tokens_call(5, kMany, 3), id, named("a"))->recorded[0];
  }

  Calls calls;
  const std::string id;
  const std::shared_ptr<ClaimLease> lease = std::make_shared<ClaimLease>();
  TimePoint until;
  DurableProcess::Call started;
};

TEST_CASE("tokens are delivered until the claim's lease is over, and none from then on",
          "[durable][threat-67]") {
  const Durability level = GENERATE(Durability::kCall, Durability::kInput, Durability::kToken);
  CAPTURE(level);
  LentCall call(level);
  const auto delivers = [&] {
    const std::size_t before = call.seen().size();
    for (int i = 0; i < 3; ++i) call.step();
    return call.seen().size() > before;
  };
  CHECK(delivers());
  call.advance_to(call.until - milliseconds(1));
  CHECK(delivers());
  // The lease was renewed in time.
  call.lease->prolong(call.until + seconds(2));
  call.advance_to(call.until + seconds(1));
  CHECK(delivers());
  call.advance_to(call.until + seconds(2));
  CHECK_FALSE(delivers());
  CHECK(call.seen().size() < kMany);
  call.calls.process->run();
  CHECK(call.started.sink->finishes == 1);
  CHECK(call.started.sink->outcome->error() == SessionError::kStoreAway);
  // The tokens delivered before it are the first of those that the next holder delivers.
  const std::vector<RecordedToken> seen = call.seen();
  const std::vector<RecordedToken> all = call.repeated();
  CHECK(all.size() == kMany);
  CHECK(std::equal(seen.begin(), seen.end(), all.begin()));
}

TEST_CASE("tokens that wait for the store while the lease ends are not delivered when it answers",
          "[durable]") {
  const Durability level = GENERATE(Durability::kInput, Durability::kToken);
  const bool is_in_time = GENERATE(true, false);
  CAPTURE(level, is_in_time);
  LentCall call(level, true);
  for (int i = 0; i < 6; ++i) call.step();
  REQUIRE(call.calls.dying->held() > 0);
  CHECK(call.seen().empty());
  call.advance_to(is_in_time ? call.until - milliseconds(1) : call.until);
  call.calls.dying->hold_commits(false);
  call.calls.process->durable.write();
  CHECK(call.seen().empty() == !is_in_time);
}

TEST_CASE("an end that stands in the store is delivered, however late the answer is", "[durable]") {
  LentCall call(Durability::kInput);
  while (call.calls.process->model->scheduler->run_one_step()) {
    call.calls.dying->hold_commits(call.seen().size() == kMany);
    call.calls.process->durable.write();
  }
  call.calls.process->run();
  REQUIRE(call.calls.dying->held() == 1);
  CHECK(call.started.sink->finishes == 0);
  call.advance_to(call.until + seconds(1));
  for (int i = 0; i < 3; ++i) {
    call.calls.dying->hold_commits(false);
    call.calls.process->durable.write();
  }
  CHECK(call.started.sink->finishes == 1);
  CHECK(call.started.sink->outcome == RequestOutcome::kDone);
  CHECK(call.seen().size() == kMany);
}

}  // namespace
}  // namespace lintel::testing
