// Requests that are cancelled or expire while they wait weigh nothing afterwards.
#include <catch2/catch.hpp>

#include "server/scheduler/request_queue.h"
#include "tests/server/support/harness.h"

namespace lintel::testing {
namespace {

// Requests that are never stepped: prompts of one value, four bytes.
struct Waiting {
  std::unique_ptr<RunningRequest> request(int num_samples = 1,
                                          std::optional<TimePoint> deadline = std::nullopt) {
    GenerationRequest wanted;
    wanted.prompt = {1};
    wanted.num_samples = num_samples;
    wanted.deadline = deadline;
    return std::make_unique<RunningRequest>(
        wanted, store.lease_one_shot("tiny", model, 0, num_samples).lease,
        std::make_shared<RecordingSink>(num_samples), std::make_shared<RequestControl>(), *model,
        clock.now(), counters);
  }
  // Loses the request that `push` queued, in one of the two ways.
  void lose(RequestQueue& queue, RunningRequest& queued, bool cancels) {
    if (cancels) {
      queued.control().cancelled.store(true);
      queue.note_cancel();
    } else {
      clock.advance(std::chrono::seconds(10));
    }
    REQUIRE(queue.take_lost(clock.now()).size() == 1);
  }
  RunningRequest* push(RequestQueue& queue, int num_samples = 1,
                       std::optional<TimePoint> deadline = std::nullopt) {
    auto made = request(num_samples, deadline);
    RunningRequest* const queued = made.get();
    REQUIRE(queue.push(made) == RequestQueue::Push::kAccepted);
    return queued;
  }

  std::shared_ptr<const Transformer> model = tiny_model(TinyModel::kTokens);
  ManualClock clock;
  SessionStore store{{.session_memory_bytes = 1u << 30}, clock};
  SchedulerCounters counters;
  const TimePoint soon = clock.now() + std::chrono::seconds(5);
};

TEST_CASE("a request that is lost while it waits leaves its bytes to others") {
  const bool cancels = GENERATE(true, false);
  Waiting w;
  const std::size_t each = w.request()->held_bytes();
  RequestQueue queue(100, /*num_workers=*/1, /*capacity_bytes=*/2 * each + each / 2);
  w.push(queue);
  RunningRequest* const lost = w.push(queue, 1, w.soon);
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
  RunningRequest* const lost = w.push(queue, /*num_samples=*/6, w.soon);
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

}  // namespace
}  // namespace lintel::testing
