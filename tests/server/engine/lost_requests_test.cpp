// SPDX-License-Identifier: Apache-2.0
// Requests that are cancelled or expire while they wait weigh nothing afterwards.
#include "server/engine/request_queue.h"
#include "tests/server/support/harness.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// Requests that are never stepped: prompts of one token, four bytes.
struct Waiting {
  std::unique_ptr<SequenceGroup> request(int num_samples = 1,
                                         std::optional<TimePoint> deadline = std::nullopt) {
    GenerationRequest wanted;
    wanted.prompt = {1};
    wanted.num_samples = num_samples;
    wanted.deadline = deadline;
    return std::make_unique<SequenceGroup>(
        wanted, store.lease_one_shot("tiny", model, 0, num_samples).lease,
        std::make_shared<RecordingSink>(num_samples), std::make_shared<RequestControl>(), *model,
        clock.now(), counters);
  }
  // Loses the request that `push` queued, in one of the two ways.
  void lose(RequestQueue& queue, SequenceGroup& queued, bool cancels) {
    if (cancels) {
      queued.control().cancelled.store(true);
      queue.note_cancel();
    } else {
      clock.advance(std::chrono::seconds(10));
    }
    REQUIRE(queue.take_lost(clock.now()).size() == 1);
  }
  SequenceGroup* push(RequestQueue& queue, int num_samples = 1,
                      std::optional<TimePoint> deadline = std::nullopt) {
    auto made = request(num_samples, deadline);
    SequenceGroup* const queued = made.get();
    REQUIRE(queue.push(made) == RequestQueue::Push::kAccepted);
    return queued;
  }

  std::shared_ptr<const Transformer> model = tiny_model(TinyModel::kTokens);
  ManualClock clock;
  SessionManager store{{.session_memory_bytes = 1u << 30}, clock};
  SchedulerMetrics counters;
  const TimePoint soon = clock.now() + std::chrono::seconds(5);
};

TEST_CASE("a request that is lost while it waits leaves its bytes to others") {
  const bool cancels = GENERATE(true, false);
  Waiting w;
  const std::size_t each = w.request()->held_bytes();
  RequestQueue queue(100, /*num_workers=*/1, /*capacity_bytes=*/2 * each + each / 2);
  w.push(queue);
  SequenceGroup* const lost = w.push(queue, 1, w.soon);
  auto third = w.request();
  REQUIRE(queue.push(third) == RequestQueue::Push::kFull);
  w.lose(queue, *lost, cancels);
  CHECK(queue.push(third) == RequestQueue::Push::kAccepted);
  CHECK(queue.size() == 2);
}

TEST_CASE("a request that is lost while it waits is no worker's load") {
  const bool cancels = GENERATE(true, false);
  Waiting w;
  RequestQueue queue(100, /*num_workers=*/2);
  SequenceGroup* const lost = w.push(queue, /*num_samples=*/6, w.soon);
  w.push(queue);
  w.push(queue);
  w.lose(queue, *lost, cancels);
  // Two rows are left for two workers: each has one.
  CHECK(queue.pop(0, 64));
  CHECK(!queue.pop(0, 64));
  CHECK(queue.pop(1, 64));
}

TEST_CASE("cancelled requests leave a full queue to others") {
  const auto model = tiny_model(TinyModel::kTokens);
  Core core(model, {.workers = 0, .max_batch_rows = 1, .max_queued_requests = 2});
  const auto running = core.submit(tokens_request(1, 1000));
  core.scheduler.run_one_step();
  for (int round = 0; round < 5; ++round) {
    const Core::Call waiting[] = {core.submit(tokens_request(1, 5)),
                                  core.submit(tokens_request(1, 5))};
    REQUIRE(core.submit(tokens_request(1, 5)).error == Scheduler::SubmitError::kQueueFull);
    for (const Core::Call& call : waiting) core.scheduler.cancel(call.handle);
    core.scheduler.run_one_step();
    for (const Core::Call& call : waiting) {
      REQUIRE(call.sink->outcome == RequestOutcome::kCancelled);
    }
    REQUIRE(core.scheduler.stats().queued == 0);
  }
  CHECK(!running.sink->finished());
}

TEST_CASE("a request that was cancelled before it was submitted ends in the next step") {
  Core core(tiny_model(TinyModel::kTokens), {.workers = 0, .max_batch_rows = 1});
  const auto running = core.submit(tokens_request(1, 1000));
  core.scheduler.run_one_step();
  const auto sink = std::make_shared<RecordingSink>();
  const RequestHandle handle;
  core.scheduler.cancel(handle);
  core.scheduler.run_one_step();  // the queue has looked for it, in vain
  auto lease = core.store.lease_one_shot("tiny", core.model, 0, 1).lease;
  REQUIRE(core.scheduler.submit(tokens_request(1, 5), std::move(lease), sink, handle) ==
          Scheduler::SubmitError::kNone);
  REQUIRE_FALSE(sink->finished());
  core.scheduler.run_one_step();
  REQUIRE(sink->outcome == RequestOutcome::kCancelled);
  CHECK(sink->recorded[0].empty());
  CHECK_FALSE(running.sink->finished());
}

TEST_CASE("a sink has its handle from its first call on") {
  Core core(tiny_model(TinyModel::kTokens), {.workers = 1});
  for (int i = 0; i < 50; ++i) {
    const auto sink = std::make_shared<RecordingSink>();
    const RequestHandle handle;
    sink->when_token = [&](const TokenEvent&) { core.scheduler.cancel(handle); };
    auto lease = core.store.lease_one_shot("tiny", core.model, 0, 1).lease;
    core.scheduler.submit(tokens_request(1, 1'000'000), std::move(lease), sink, handle);
    sink->wait_until_finished();
    REQUIRE(sink->outcome == RequestOutcome::kCancelled);
  }
}

}  // namespace
}  // namespace lintel::testing
