// SPDX-License-Identifier: Apache-2.0
#include "server/engine/request_queue.h"

#include "tests/server/support/harness.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// Requests that are never stepped.
struct QueueFixture {
  std::unique_ptr<SequenceGroup> request(int num_samples = 1,
                                         std::optional<TimePoint> deadline = std::nullopt) {
    GenerationRequest wanted;
    wanted.deadline = deadline;
    wanted.prompt = {1};
    wanted.num_samples = num_samples;
    auto lease = store.lease_one_shot("tiny", model, 0, num_samples).lease;
    auto made = std::make_unique<SequenceGroup>(
        wanted, std::move(lease), std::make_shared<RecordingSink>(num_samples),
        std::make_shared<RequestControl>(), *model, clock.now(), counters);
    return made;
  }
  void push(RequestQueue& queue, int num_samples = 1) {
    auto made = request(num_samples);
    REQUIRE(queue.push(made) == RequestQueue::Push::kAccepted);
  }

  std::shared_ptr<const Transformer> model = tiny_model(TinyModel::kTokens);
  ManualClock clock;
  SessionManager store{{.session_memory_bytes = 1u << 30}, clock};
  SchedulerMetrics counters;
};

TEST_CASE("a worker takes no more than its share of the load") {
  QueueFixture f;
  RequestQueue queue(100, /*num_workers=*/2);
  for (int i = 0; i < 5; ++i) f.push(queue);
  int taken = 0;
  while (queue.pop(0, 64)) ++taken;
  REQUIRE(taken == 3);
  while (queue.pop(1, 64)) ++taken;
  REQUIRE(taken == 5);
  // The first has lost all of its rows: what comes now is its own.
  queue.set_running_rows(0, 0);
  f.push(queue);
  REQUIRE(!queue.pop(1, 64));
  REQUIRE(queue.pop(0, 64));
}

TEST_CASE("with a least share a worker fills it before another one leads") {
  QueueFixture f;
  RequestQueue queue(100, /*num_workers=*/2, RequestQueue::kMostQueuedBytes, /*least_share=*/4);
  for (int i = 0; i < 3; ++i) f.push(queue);
  REQUIRE(queue.pop(0, 4));
  CHECK_FALSE(queue.pop(1, 4));
  REQUIRE(queue.pop(0, 4));
  REQUIRE(queue.pop(0, 4));
  f.push(queue, 2);
  CHECK_FALSE(queue.pop(0, 4));  // it has one row left
  REQUIRE(queue.pop(1, 4));
  f.push(queue);
  CHECK_FALSE(queue.pop(1, 4));  // the fuller one has room for it
  REQUIRE(queue.pop(0, 4));
  f.push(queue);
  CHECK_FALSE(queue.pop(0, 4));
  REQUIRE(queue.pop(1, 4));
}

TEST_CASE("the memory of waiting requests is bounded, and one request always fits") {
  QueueFixture f;
  const std::size_t each = f.request()->held_bytes();
  CHECK(each >= 4096);
  RequestQueue queue(100, /*num_workers=*/1, /*capacity_bytes=*/5 * each / 2);
  f.push(queue);
  f.push(queue);
  auto third = f.request();
  CHECK(queue.push(third) == RequestQueue::Push::kFull);
  REQUIRE(third != nullptr);
  REQUIRE(queue.pop(0, 64));
  CHECK(queue.push(third) == RequestQueue::Push::kAccepted);
  queue.take_all();
  f.push(queue);
  f.push(queue);
  RequestQueue tiny(100, 1, /*capacity_bytes=*/1);
  f.push(tiny);
}

TEST_CASE("a request holds its tokens, what its caller keeps for it, and itself") {
  QueueFixture f;
  const std::size_t least = f.request()->held_bytes();
  CHECK(f.request(/*num_samples=*/8)->held_bytes() >= least + 7 * sizeof(Sequence));
  GenerationRequest wanted;
  wanted.prompt.assign(1000, 1);
  wanted.given.assign(1000, {.position = 1, .token = 1});
  wanted.held_bytes = 50'000;
  SequenceGroup large(wanted, f.store.lease_one_shot("tiny", f.model, 0, 1).lease,
                      std::make_shared<RecordingSink>(), std::make_shared<RequestControl>(),
                      *f.model, f.clock.now(), f.counters);
  CHECK(large.held_bytes() >= least + 1000 * (4 + sizeof(GivenToken)) + 50'000 - 16);
  CHECK(large.held_bytes() <= least + 1000 * (4 + sizeof(GivenToken)) + 50'000 + 1024);
}

TEST_CASE("samples weigh as much as requests") {
  QueueFixture f;
  RequestQueue queue(100, /*num_workers=*/2);
  f.push(queue, 6);
  f.push(queue);
  f.push(queue);
  REQUIRE(queue.pop(0, 64));
  REQUIRE(!queue.pop(0, 64));
  REQUIRE(queue.pop(1, 64));
  REQUIRE(queue.pop(1, 64));
}

TEST_CASE("with one worker the first request is not overtaken by one that would fit") {
  QueueFixture f;
  RequestQueue queue(100, 1);
  f.push(queue, 6);
  f.push(queue, 1);
  queue.set_running_rows(0, 1);
  REQUIRE(!queue.pop(0, 6));
  queue.set_running_rows(0, 0);
  REQUIRE(queue.pop(0, 6)->slots() == 6);
}

TEST_CASE("a request too wide for the free rows is overtaken, but not where rows are saved for it",
          "[threat-56]") {
  QueueFixture f;
  RequestQueue queue(100, /*num_workers=*/2);
  queue.set_running_rows(0, 3);
  queue.set_running_rows(1, 2);  // the emptiest
  f.push(queue, 6);
  f.push(queue, 4);
  f.push(queue, 2);
  f.push(queue, 3);
  CHECK(!queue.pop(1, 6));
  CHECK(queue.pop(0, 6)->slots() == 2);  // the first that fits
  CHECK(!queue.pop(0, 6));
  CHECK(!queue.pop(1, 6));  // its own rows are left alone while there are any
  queue.set_running_rows(1, 0);
  CHECK(queue.pop(1, 6)->slots() == 6);
  queue.set_running_rows(0, 1);
  CHECK(queue.pop(0, 6)->slots() == 4);  // and first come, first served again
  CHECK(queue.size() == 1);
}

// Streams without an end on one worker, a request for all rows, and one more queued after it.
TEST_CASE("a wide request does not hold up others while it waits, and gets its turn") {
  QueueFixture f;
  RequestQueue queue(1000, /*num_workers=*/2);
  queue.set_running_rows(0, 1);  // endless
  queue.set_running_rows(1, 3);
  f.push(queue, 8);
  int rows_of_second = 3;
  int served = 0;
  for (int step = 0; step < 100; ++step) {
    f.push(queue);
    if (queue.pop(0, 8)) FAIL("rows are saved here");
    if (queue.pop(1, 8)) ++served, ++rows_of_second;
    if (rows_of_second == 8) queue.set_running_rows(1, rows_of_second = 3);  // some have ended
  }
  CHECK(served == 100);
  queue.set_running_rows(0, 0);
  CHECK(queue.pop(0, 8)->slots() == 8);
}

TEST_CASE("the next deadline is that of a queued request, not of one that left") {
  QueueFixture f;
  RequestQueue queue(100, 1);
  const TimePoint soon = f.clock.now() + std::chrono::seconds(1);
  const TimePoint later = f.clock.now() + std::chrono::seconds(5);
  REQUIRE(!queue.next_deadline());
  for (const auto& deadline : {soon, later}) {
    auto made = f.request(1, deadline);
    REQUIRE(queue.push(made) == RequestQueue::Push::kAccepted);
  }
  f.push(queue);
  REQUIRE(queue.next_deadline() == soon);
  REQUIRE(queue.pop(0, 64));
  REQUIRE(queue.next_deadline() == later);
  REQUIRE(queue.take_lost(later - Duration(1)).empty());
  REQUIRE(queue.take_lost(later).size() == 1);
  REQUIRE(!queue.next_deadline());
  REQUIRE(queue.size() == 1);
}

TEST_CASE("a closed queue accepts nothing and keeps what it has") {
  QueueFixture f;
  RequestQueue queue(100, 1);
  f.push(queue);
  queue.close();
  auto late = f.request();
  REQUIRE(queue.push(late) == RequestQueue::Push::kClosed);
  REQUIRE(late != nullptr);
  REQUIRE(queue.size() == 1);
  REQUIRE(queue.pop(0, 64));
}

TEST_CASE("a request that is dropped is still answered, once") {
  QueueFixture f;
  auto sink = std::make_shared<RecordingSink>();
  {
    GenerationRequest wanted;
    wanted.prompt = {1};
    SequenceGroup dropped(wanted, f.store.lease_one_shot("tiny", f.model, 0, 1).lease, sink,
                          std::make_shared<RequestControl>(), *f.model, f.clock.now(), f.counters);
    REQUIRE(f.counters.in_flight == 1);
  }
  REQUIRE(f.counters.in_flight == 0);
  REQUIRE(sink->finishes == 1);
  REQUIRE(sink->outcome == RequestOutcome::kInternal);
  REQUIRE(f.store.bytes_in_use() == 0);
}

}  // namespace
}  // namespace lintel::testing
