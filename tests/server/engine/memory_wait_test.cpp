// SPDX-License-Identifier: Apache-2.0
// Requests that wait for memory: their turn, their end, and that they hold nothing until then.
#include <chrono>
#include <memory>
#include <utility>

#include "tests/server/support/harness.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using std::chrono::minutes;

// A core whose memory holds one sample of 30 tokens, or several.
struct WaitingCore {
  explicit WaitingCore(std::size_t samples = 1)
      : core(model, without_threads(),
             {.session_memory_bytes = samples * bytes, .max_queue_wait = minutes(10)}) {}

  Core::Call submit(const GenerationRequest& request, SharedAdapter adapter = nullptr) {
    Core::Call call{std::make_shared<RecordingSink>(request.num_samples), {}, {}};
    auto leased = core.store.lease_one_shot("tiny", core.model, kTokens, request.num_samples, {}, 0,
                                            std::move(adapter), /*may_wait=*/true);
    REQUIRE(leased.lease);
    call.error = core.scheduler.submit(request, std::move(leased.lease), call.sink, call.handle);
    return call;
  }

  static constexpr std::int64_t kTokens = 30;
  std::shared_ptr<const Transformer> model = tiny_model(TinyModel::kTokens);
  const std::size_t bytes = SessionManager::admitted_bytes(*model, kTokens - 1);
  Core core;
};

TEST_CASE(
    "requests that wait for memory hold none, run one by one, and have the bits of one alone") {
  WaitingCore f;
  std::vector<Core::Call> calls;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    calls.push_back(f.submit(tokens_request(4, 20, seed)));
    CHECK(calls.back().error == Scheduler::SubmitError::kNone);
  }
  CHECK(f.core.store.bytes_in_use() == f.bytes);
  CHECK(f.core.store.waiting().waiting == 4);
  CHECK(f.core.scheduler.stats().queued == 5);
  f.core.run();
  CHECK(f.core.store.bytes_in_use() == 0);
  CHECK(f.core.store.waiting().waited.total() == 4);
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const RecordingSink& sink = *calls[seed - 1].sink;
    CHECK(sink.outcome == RequestOutcome::kDone);
    Core alone(f.model);
    CHECK(sink.recorded == alone.generate(tokens_request(4, 20, seed))->recorded);
  }
}

TEST_CASE(
    "requests that wait for memory end with the time for that, or at their deadline before it") {
  WaitingCore f;
  const Core::Call first = f.submit(tokens_request(4, 20));
  GenerationRequest hurried = tokens_request(4, 20);
  hurried.deadline = f.core.clock.now() + minutes(5);
  GenerationRequest patient = tokens_request(4, 20);
  patient.deadline = f.core.clock.now() + minutes(50);
  const Core::Call early = f.submit(hurried);
  const Core::Call late = f.submit(patient);
  f.core.clock.advance(minutes(5));
  f.core.scheduler.run_one_step();
  CHECK(early.sink->outcome == RequestOutcome::kDeadline);
  CHECK(early.sink->result().reason == FinishReason::kDeadline);
  CHECK_FALSE(late.sink->finished());
  f.core.clock.advance(minutes(5));
  f.core.scheduler.run_one_step();
  CHECK(late.sink->outcome == RequestOutcome::kMemory);
  CHECK(f.core.store.waiting().waiting == 0);
  CHECK_FALSE(first.sink->finished());
  f.core.run();
  CHECK(first.sink->outcome == RequestOutcome::kDone);
}

TEST_CASE("requests whose wait for memory ends at one time end for that, also the last of them") {
  WaitingCore f(2);
  GenerationRequest wide = tokens_request(4, 20);
  wide.num_samples = 2;
  const Core::Call first = f.submit(tokens_request(4, 20));
  const Core::Call second = f.submit(wide);
  const Core::Call third = f.submit(tokens_request(4, 20));  // fits once the second has left
  CHECK(f.core.store.waiting().waiting == 2);
  f.core.clock.advance(minutes(10));
  f.core.scheduler.run_one_step();
  CHECK(second.sink->outcome == RequestOutcome::kMemory);
  CHECK(third.sink->outcome == RequestOutcome::kMemory);
  f.core.run();
  CHECK(first.sink->outcome == RequestOutcome::kDone);
  CHECK(f.core.store.bytes_in_use() == 0);
}

TEST_CASE(
    "a request that is cancelled while it waits for memory leaves, and the next has its turn") {
  WaitingCore f;
  const Core::Call first = f.submit(tokens_request(4, 20));
  const Core::Call second = f.submit(tokens_request(4, 20));
  const Core::Call third = f.submit(tokens_request(4, 20, 3));
  f.core.scheduler.cancel(second.handle);
  f.core.scheduler.run_one_step();
  CHECK(second.sink->outcome == RequestOutcome::kCancelled);
  CHECK(second.sink->result().reason == FinishReason::kCancelled);
  CHECK(f.core.store.waiting().waiting == 1);
  f.core.scheduler.cancel(first.handle);
  f.core.run();
  CHECK(third.sink->outcome == RequestOutcome::kDone);
  CHECK(f.core.store.bytes_in_use() == 0);
}

TEST_CASE("a scheduler that stops ends what waits for memory, and drains it before") {
  WaitingCore f;
  const Core::Call first = f.submit(tokens_request(4, 20));
  const Core::Call second = f.submit(tokens_request(4, 20));
  const Core::Call third = f.submit(tokens_request(4, 20));
  f.core.scheduler.begin_drain();
  while (!second.sink->finished()) REQUIRE(f.core.scheduler.run_one_step());
  CHECK(second.sink->outcome == RequestOutcome::kDone);
  f.core.scheduler.stop();
  CHECK(third.sink->outcome == RequestOutcome::kShutdown);
  CHECK(f.core.scheduler.idle());
  CHECK(f.core.store.waiting().waiting == 0);
  CHECK(f.core.store.bytes_in_use() == 0);
}

TEST_CASE("requests of a model that goes wait no longer for memory, and what has some continues") {
  WaitingCore f;
  const Core::Call first = f.submit(tokens_request(4, 20));
  const Core::Call second = f.submit(tokens_request(4, 20));
  f.core.scheduler.end_memory_waits();
  const Core::Call third = f.submit(tokens_request(4, 20));
  CHECK(third.error == Scheduler::SubmitError::kDraining);
  f.core.scheduler.run_one_step();
  CHECK(second.sink->outcome == RequestOutcome::kShutdown);
  CHECK(second.sink->result().reason == FinishReason::kCancelled);
  CHECK(f.core.store.waiting().waiting == 0);
  CHECK_FALSE(first.sink->finished());
  f.core.run();
  CHECK(first.sink->outcome == RequestOutcome::kDone);
  const Core::Call fourth = f.submit(tokens_request(4, 20));  // it need not wait
  CHECK(fourth.error == Scheduler::SubmitError::kNone);
  f.core.run();
  CHECK(fourth.sink->outcome == RequestOutcome::kDone);
}

TEST_CASE("a request whose adapter is being unloaded waits no longer for memory") {
  WaitingCore f(2);
  const auto adapter = std::make_shared<ServedAdapter>();
  GenerationRequest wide = tokens_request(4, 20);
  wide.num_samples = 2;
  const Core::Call first = f.submit(tokens_request(4, 20), adapter);
  const Core::Call second = f.submit(wide, adapter);
  const Core::Call third = f.submit(tokens_request(4, 20), adapter);  // fits beside the first
  const Core::Call other = f.submit(tokens_request(4, 20));
  adapter->retired.store(true);
  f.core.scheduler.note_adapter_end();
  f.core.scheduler.run_one_step();
  CHECK(second.sink->outcome == RequestOutcome::kAdapterEnded);
  CHECK(third.sink->outcome == RequestOutcome::kAdapterEnded);
  CHECK_FALSE(first.sink->finished());
  f.core.run();
  CHECK(first.sink->outcome == RequestOutcome::kDone);
  CHECK(other.sink->outcome == RequestOutcome::kDone);
}

TEST_CASE("requests that wait for memory count in the queue") {
  WaitingCore f;
  Scheduler small(f.model, {.workers = 0, .max_queued_requests = 2}, f.core.clock);
  const auto submit = [&] {
    auto lease =
        f.core.store.lease_one_shot("tiny", f.model, WaitingCore::kTokens, 1, {}, 0, nullptr, true)
            .lease;
    return small.submit(tokens_request(4, 20), std::move(lease), std::make_shared<RecordingSink>());
  };
  CHECK(submit() == Scheduler::SubmitError::kNone);
  CHECK(submit() == Scheduler::SubmitError::kNone);
  CHECK(submit() == Scheduler::SubmitError::kQueueFull);
  CHECK(f.core.store.waiting().waiting == 1);
  small.stop();
}

TEST_CASE("a session that may leave memory makes room for a call that waits") {
  struct Waiter final : MemoryWaiter {
    void on_memory() noexcept override {}
  };
  const std::shared_ptr<const Transformer> model = tiny_model(TinyModel::kTokens);
  ManualClock clock;
  SessionManager store(
      {.session_memory_bytes = SessionManager::session_bytes(*model, {.max_tokens = 30}),
       .max_queue_wait = minutes(10)},
      clock);
  const std::string id = store.create("tiny", model, {.max_tokens = 30}).info.id;
  Waiter waiter;
  SessionLease lease = store.lease_one_shot("tiny", model, 30, 1, {}, 0, nullptr, true).lease;
  lease.wait_for_memory("caller", waiter);
  CHECK(lease.waits_for_memory());
  SECTION("once it is stored") { store.set_stored(id, {}); }
  SECTION("once no call looks at it") {
    const SessionPin pin = store.pin(id);
    store.set_stored(id, {});
    CHECK(lease.waits_for_memory());
  }
  CHECK_FALSE(lease.waits_for_memory());
  CHECK_FALSE(store.get(id));
}

TEST_CASE("a session never waits for memory") {
  const std::shared_ptr<const Transformer> model = tiny_model(TinyModel::kTokens);
  ManualClock clock;
  SessionManager store(
      {.session_memory_bytes = SessionManager::session_bytes(*model, {.max_tokens = 30}),
       .max_queue_wait = minutes(10)},
      clock);
  const SessionLease held = store.lease_one_shot("tiny", model, 30, 1).lease;
  REQUIRE(held);
  CHECK(store.create("tiny", model, 30).refusal.error == SessionError::kOutOfMemory);
  CHECK(store.waiting().waiting == 0);
}

}  // namespace
}  // namespace lintel::testing
