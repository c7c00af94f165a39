// SPDX-License-Identifier: Apache-2.0
// Requests whose tokens are paid for as they come: a call is never faster than its identity's rate,
// and never locks it out.
#include "server/security/quotas.h"
#include "tests/server/support/harness.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct ThrottlingFixture {
  Core::Call submit(std::size_t prompt_length, std::int64_t max_new_tokens,
                    const std::string& identity = "alice") {
    GenerationRequest request = tokens_request(prompt_length, max_new_tokens);
    request.allowance = std::make_shared<QuotaAllowance>(quotas, identity);
    return core.submit(request);
  }
  // Steps in so much time, at most one in a millisecond.
  void run_for(milliseconds time) {
    for (milliseconds passed{0}; passed < time; passed += milliseconds(1)) {
      core.run();
      core.clock.advance(milliseconds(1));
    }
    core.run();
  }

  Core core{tiny_model(TinyModel::kTokens),
            {.workers = 0, .max_batch_rows = 8, .speculation = Speculation::kOff}};
  Quotas quotas{{.tokens_per_second = 100, .token_burst = 50}, core.clock};
};

TEST_CASE("a call runs at full speed on what is saved up, and then at its identity's rate") {
  ThrottlingFixture f;
  const auto call = f.submit(1, 400);
  f.core.run();
  CHECK(call.sink->recorded[0].size() >= 49);
  CHECK(call.sink->recorded[0].size() <= 51);
  f.run_for(seconds(1));
  CHECK(call.sink->recorded[0].size() >= 145);
  CHECK(call.sink->recorded[0].size() <= 152);
  f.run_for(seconds(1));
  CHECK(call.sink->recorded[0].size() >= 245);
  CHECK(call.sink->recorded[0].size() <= 252);
  CHECK(f.core.scheduler.stats().running == 1);
  f.run_for(seconds(2));
  REQUIRE(call.sink->finished());
  // Nothing is owed afterwards: the next call begins at once.
  CHECK(f.quotas.wait_to_begin("alice") == Duration::zero());
  CHECK(f.quotas.pay("alice", 0) <= milliseconds(20));
  const auto next = f.submit(1, 1);
  f.run_for(milliseconds(30));
  CHECK(next.sink->finished());
}

TEST_CASE("throttling changes no token") {
  ThrottlingFixture f;
  const auto call = f.submit(5, 200);
  f.run_for(seconds(4));
  REQUIRE(call.sink->finished());
  CHECK(call.sink->tokens() == f.core.generate(tokens_request(5, 200))->tokens());
  CHECK(call.sink->out_of_order == 0);
}

TEST_CASE("calls of one identity share its rate, and others are not held up", "[threat-53]") {
  ThrottlingFixture f;
  const auto first = f.submit(1, 1000);
  const auto second = f.submit(1, 1000);
  f.run_for(seconds(2));
  const auto other = f.submit(1, 40, "bob");
  f.core.run();
  CHECK(other.sink->finished());
  const std::size_t together = first.sink->recorded[0].size() + second.sink->recorded[0].size();
  CHECK(together <= 50 + 200 + 16);
  CHECK(together >= 50 + 200 - 16);
  CHECK(first.sink->recorded[0].size() >= 80);
  CHECK(second.sink->recorded[0].size() >= 80);
  // One that comes now does not have to wait for their end.
  const auto third = f.submit(1, 5);
  f.run_for(seconds(1));
  CHECK(third.sink->finished());
}

TEST_CASE("calls that begin in debt wait before their first step, however many there are") {
  ThrottlingFixture f;
  std::vector<Core::Call> calls;
  for (int i = 0; i < 60; ++i) calls.push_back(f.submit(30, 1));
  const auto behind_them = f.submit(1, 5, "bob");
  f.core.run();
  CHECK(behind_them.sink->finished());
  const auto read = [&] { return f.core.scheduler.stats().prompt_tokens; };
  f.run_for(seconds(1));
  CHECK(read() <= 50 + 100 + 80);
  f.run_for(seconds(5));
  CHECK(read() <= 50 + 600 + 80);
  CHECK(read() >= 600 - 64);
  f.run_for(seconds(20));
  for (const auto& call : calls) CHECK(call.sink->finished());
}

TEST_CASE("a call without anything to pay with still ends when it is cancelled or expires") {
  ThrottlingFixture f;
  f.quotas.pay("alice", 1000);
  GenerationRequest expiring = tokens_request(1, 5);
  expiring.allowance = std::make_shared<QuotaAllowance>(f.quotas, "alice");
  expiring.deadline = f.core.clock.now() + seconds(2);
  const auto late = f.core.submit(expiring);
  const auto gone = f.submit(1, 5);
  f.core.run();
  CHECK_FALSE(late.sink->finished());
  f.core.scheduler.cancel(gone.handle);
  f.core.run();
  CHECK(gone.sink->outcome == RequestOutcome::kCancelled);
  f.run_for(seconds(2));
  CHECK(late.sink->outcome == RequestOutcome::kDeadline);
  CHECK(late.sink->recorded[0].empty());
}

TEST_CASE("a throttled call whose sink is full waits for both") {
  ThrottlingFixture f;
  const auto sink = std::make_shared<RecordingSink>();
  sink->room = 10;
  GenerationRequest request = tokens_request(1, 100);
  request.allowance = std::make_shared<QuotaAllowance>(f.quotas, "alice");
  const auto call = f.core.submit(request, "", sink);
  f.run_for(seconds(1));
  CHECK(sink->recorded[0].size() == 10);
  f.quotas.pay("alice", 1000);
  sink->room = 1000;
  f.core.scheduler.resume(call.handle);
  f.core.run();
  CHECK(sink->recorded[0].size() <= 11);
  f.run_for(seconds(5));
  CHECK(sink->recorded[0].size() <= 11);
  f.run_for(seconds(20));
  CHECK(sink->finished());
}

}  // namespace
}  // namespace lintel::testing
