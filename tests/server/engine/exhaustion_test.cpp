// SPDX-License-Identifier: Apache-2.0
// Allocations that fail anywhere on a request's way: it is answered all the same, once, and the
// scheduler continues and stops.
#include "server/engine/request_queue.h"
#include "tests/server/support/harness.h"
#include "tests/support/allocation_count.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// Keeps nothing, so that it needs no memory itself.
class EndSink final : public TokenSink {
 public:
  bool on_token(const TokenEvent&) override { return --room > 0; }
  void on_sample_finish(const SampleResult&) override {}
  void on_step_end() override {}
  void on_finish(RequestOutcome outcome) override {
    ++finishes;
    last = outcome;
  }
  int room = 1000;
  int finishes = 0;
  std::optional<RequestOutcome> last;
};

struct Call {
  std::shared_ptr<EndSink> sink = std::make_shared<EndSink>();
  RequestHandle handle;
};

GenerationRequest request(std::int64_t max_new_tokens) {
  GenerationRequest wanted;
  wanted.prompt = {1, 2, 3};
  wanted.max_new_tokens = max_new_tokens;
  return wanted;
}

// Every way a request can end: by itself, at a stop string, in several samples, in a session,
// paused for good, cancelled and expired in the batch and in the queue, and with the scheduler.
std::vector<Call> submit_all(Core& core, const std::string& session) {
  std::vector<Call> calls;
  const auto submit = [&](GenerationRequest wanted, const std::string& id = "") -> Call& {
    Call& call = calls.emplace_back();
    SessionLease lease =
        id.empty() ? core.store.lease_one_shot("tiny", core.model, 0, wanted.num_samples).lease
                   : core.store.lease(id).lease;
    REQUIRE(lease);
    core.scheduler.submit(std::move(wanted), std::move(lease), call.sink, call.handle);
    return call;
  };
  submit(request(4));
  GenerationRequest stopping = request(6);
  stopping.stop.strings = {"some text that is hardly drawn"};
  stopping.top_log2_probs = 2;
  submit(stopping);
  GenerationRequest wide = request(5);
  wide.num_samples = 3;
  submit(wide);
  submit(request(3), session);
  submit(request(50)).sink->room = 2;
  GenerationRequest late = request(1000);
  late.deadline = core.clock.now() + std::chrono::seconds(4);
  submit(late);
  submit(request(1000));
  for (int i = 0; i < 4; ++i) submit(request(1000));  // wait in the queue
  submit(late);
  return calls;
}

TEST_CASE(
    "every request is answered once and the scheduler stops, for each allocation that may fail") {
  const auto model = tiny_model(TinyModel::kBytes);
  std::size_t failures = 0;
  for (std::size_t successes = 0;; ++successes) {
    CAPTURE(successes);
    Core core(model, {.workers = 0, .max_batch_rows = 8});
    const std::string session = core.new_session();
    const std::vector<Call> calls = submit_all(core, session);
    bool failed = false;
    {
      const FailingAllocation failing(successes);
      for (int step = 0; step < 12; ++step) {
        core.clock.advance(std::chrono::seconds(1));
        if (step == 3) core.scheduler.cancel(calls[6].handle);
        if (step == 3) core.scheduler.cancel(calls[8].handle);
        if (step == 3) core.scheduler.cancel(calls[9].handle);
        core.scheduler.run_one_step();
      }
      core.scheduler.stop();
      failed = failing.has_failed();
    }
    for (std::size_t i = 0; i < calls.size(); ++i) {
      CAPTURE(i);
      REQUIRE(calls[i].sink->finishes == 1);
    }
    REQUIRE(core.scheduler.idle());
    REQUIRE(core.scheduler.stats().queued == 0);
    core.store.remove(session);
    REQUIRE(core.store.bytes_in_use() == 0);
    if (!failed) break;
    ++failures;
  }
  CHECK(failures > 20);
}

TEST_CASE("taking requests out of the queue allocates nothing") {
  const auto model = tiny_model(TinyModel::kTokens);
  Core core(model, {.workers = 0, .max_batch_rows = 1});
  std::vector<Call> calls;
  for (int i = 0; i < 100; ++i) {
    Call& call = calls.emplace_back();
    core.scheduler.submit(tokens_request(2, 3),
                          core.store.lease_one_shot("tiny", model, 0, 1).lease, call.sink,
                          call.handle);
  }
  core.scheduler.run_one_step();
  for (int i = 1; i < 60; ++i) core.scheduler.cancel(calls[static_cast<std::size_t>(i)].handle);
  {
    const FailingAllocation failing(0);
    core.scheduler.stop();
  }
  for (const Call& call : calls) {
    CHECK(call.sink->finishes == 1);
    CHECK(call.sink->last != RequestOutcome::kDone);
  }
  CHECK(core.store.bytes_in_use() == 0);
}

}  // namespace
}  // namespace lintel::testing
