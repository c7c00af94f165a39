// SPDX-License-Identifier: Apache-2.0
// What a scheduler counts and times, with a clock that the test moves.
#include <thread>

#include "server/engine/work_metrics.h"
#include "tests/server/support/harness.h"
#include "tests/support/catch.h"

namespace lintel::testing {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr Scheduler::Options kOneRowAValue = {.workers = 0, .speculation = Speculation::kOff};

GenerationRequest request_of(std::size_t prompt_length, std::int64_t max_new_tokens) {
  GenerationRequest request;
  request.prompt.assign(prompt_length, 1);
  request.max_new_tokens = max_new_tokens;
  return request;
}

}  // namespace

TEST_CASE("a histogram's buckets end at their bounds, the last at infinity") {
  Histogram<3> histogram({1.0, 10.0, 100.0});
  for (const double value : {0.0, 1.0, 1.5, 10.0, 100.0, 100.1, 1e9}) histogram.observe(value);
  const HistogramSnapshot snapshot = histogram.snapshot();
  CHECK(snapshot.bounds == std::vector<double>{1, 10, 100});
  CHECK(snapshot.counts == std::vector<std::uint64_t>{2, 2, 1, 2});
  CHECK(snapshot.sum == Approx(1e9 + 212.6));
  CHECK(snapshot.total() == 7);
  HistogramSnapshot both = snapshot;
  both.add(snapshot);
  CHECK(both.counts == std::vector<std::uint64_t>{4, 4, 2, 4});
  CHECK(both.sum == 2 * snapshot.sum);
}

TEST_CASE("a histogram may be read while it is written") {
  SecondsHistogram histogram(kSecondsBounds);
  std::thread writer([&] {
    for (int i = 0; i < 100'000; ++i) histogram.observe(milliseconds(i % 100));
  });
  std::uint64_t last = 0;
  while (last < 100'000) {
    const std::uint64_t now = histogram.snapshot().total();
    REQUIRE(now >= last);
    last = now;
  }
  writer.join();
  CHECK(histogram.snapshot().sum == Approx(100'000 * 0.0495));
}

TEST_CASE("queue time, time to first token and time between tokens are what the clock says") {
  Core core(tiny_model(TinyModel::kTokens), kOneRowAValue);
  const auto call = core.submit(request_of(3, 4));
  core.clock.advance(seconds(2));
  call.sink->when_token = [&](const TokenEvent&) { core.clock.advance(milliseconds(100)); };
  core.run();
  REQUIRE(call.sink->outcome == RequestOutcome::kDone);
  const SchedulerTimings timings = core.scheduler.timings();
  CHECK(timings.queued.total() == 1);
  CHECK(timings.queued.sum == Approx(2.0));
  CHECK(timings.first_token.total() == 1);
  CHECK(timings.first_token.sum == Approx(2.0));
  CHECK(timings.between_tokens.total() == 3);
  CHECK(timings.between_tokens.sum == Approx(0.3));
  CHECK(timings.rows.total() == 4);
  CHECK(timings.rows.sum == 6);  // the prompt's three in one step, then one a token but the last
  // The clock moves in the sinks only, which are called while tokens are placed.
  for (std::size_t i = 0; i < kNumWorkParts; ++i) CHECK(timings.step[i].total() == 4);
  const auto sum = [&](WorkPart part) { return timings.step[static_cast<std::size_t>(part)].sum; };
  CHECK(sum(WorkPart::kSample) == Approx(0.4));
  for (const WorkPart part : {WorkPart::kSchedule, WorkPart::kProducts, WorkPart::kAttention,
                              WorkPart::kOther, WorkPart::kDeliver}) {
    CHECK(sum(part) == 0);
  }
}

TEST_CASE("a request that comes while a step begins has waited for no time, not for less") {
  Core core(tiny_model(TinyModel::kTokens), kOneRowAValue);
  // The step ends what is cancelled after it has looked at the clock.
  const auto cancelled = core.submit(request_of(1, 100));
  core.scheduler.cancel(cancelled.handle);
  Core::Call late;
  cancelled.sink->when_finished = [&] {
    core.clock.advance(seconds(1));
    late = core.submit(request_of(1, 0));  // needs no row: the step looks at no clock again
  };
  core.scheduler.run_one_step();
  REQUIRE(late.sink->finished());
  const SampleResult& result = late.sink->result();
  CHECK(result.queued == Duration::zero());
  CHECK(result.prompt == Duration::zero());
  CHECK(core.scheduler.timings().queued.sum == 0);
  for (const Duration after : core.scheduler.stats().ended_after) CHECK(after == Duration::zero());
}

TEST_CASE("a request that is cancelled while a step begins has taken no time, not less") {
  Core core(tiny_model(TinyModel::kTokens), kOneRowAValue);
  // A running request ends before a queued one.
  const auto running = core.submit(request_of(1, 100));
  core.scheduler.run_one_step();
  core.scheduler.cancel(running.handle);
  Core::Call late;
  running.sink->when_finished = [&] {
    core.clock.advance(seconds(1));
    late = core.submit(request_of(1, 100));
    core.scheduler.cancel(late.handle);
  };
  core.scheduler.run_one_step();
  REQUIRE(late.sink->finished());
  CHECK(late.sink->result().queued == Duration::zero());
  for (const Duration after : core.scheduler.stats().ended_after) CHECK(after == Duration::zero());
}

TEST_CASE("the parts of a step add up to the time it took") {
  class TickingClock : public Clock {  // every look takes a millisecond
   public:
    TimePoint now() const override { return TimePoint(milliseconds(++looks)); }
    mutable std::atomic<std::int64_t> looks{1'000'000};
  } clock;
  SessionManager store({.session_memory_bytes = 1u << 20}, clock);
  const auto model = tiny_model(TinyModel::kTokens);
  Scheduler scheduler(model, kOneRowAValue, clock);
  auto lease = store.lease_one_shot("m", model, 0, 1).lease;
  scheduler.submit(request_of(1, 1), std::move(lease), std::make_shared<RecordingSink>());
  const std::int64_t before = clock.looks;
  REQUIRE(scheduler.run_one_step());
  const double took = static_cast<double>(clock.looks - before) / 1000;
  const SchedulerTimings timings = scheduler.timings();
  double sum = 0;
  for (const HistogramSnapshot& part : timings.step) {
    CHECK(part.total() == 1);
    CHECK(part.sum > 0);
    sum += part.sum;
  }
  CHECK(sum <= took);
  CHECK(sum >= took - 0.004);  // looks that begin and end a part
}

TEST_CASE("a request has one first token, however many samples it has, and a score has none") {
  Core core(tiny_model(TinyModel::kTokens), kOneRowAValue);
  GenerationRequest request = request_of(2, 5);
  request.num_samples = 3;
  core.generate(request);
  SchedulerTimings timings = core.scheduler.timings();
  CHECK(timings.first_token.total() == 1);
  CHECK(timings.between_tokens.total() == 3 * 4);
  core.generate(request_of(8, 0));
  timings = core.scheduler.timings();
  CHECK(timings.first_token.total() == 1);
  CHECK(timings.queued.total() == 2);
}

TEST_CASE("requests are counted by how they ended") {
  Core core(tiny_model(TinyModel::kTokens), kOneRowAValue);
  core.generate(request_of(1, 2));
  const auto cancelled = core.submit(request_of(1, 100));
  core.scheduler.run_one_step();
  core.scheduler.cancel(cancelled.handle);
  core.run();
  GenerationRequest late = request_of(1, 100);
  late.deadline = core.clock.now() + seconds(1);
  core.submit(late);
  core.clock.advance(seconds(2));
  core.run();
  const auto broken = core.submit(request_of(1, 100));
  broken.sink->when_token = [](const TokenEvent&) { throw std::runtime_error("no"); };
  core.run();
  core.submit(request_of(1, 100));
  core.scheduler.stop();
  const auto ended = core.scheduler.stats().ended;
  const auto of = [&](RequestOutcome outcome) { return ended[static_cast<std::size_t>(outcome)]; };
  CHECK(of(RequestOutcome::kDone) == 1);
  CHECK(of(RequestOutcome::kCancelled) == 1);
  CHECK(of(RequestOutcome::kDeadline) == 1);
  CHECK(of(RequestOutcome::kInternal) == 1);
  CHECK(of(RequestOutcome::kShutdown) == 1);
  CHECK(of(RequestOutcome::kNonFinite) == 0);
}

TEST_CASE("a refused request does not count as ended") {
  Core core(tiny_model(TinyModel::kTokens), {.workers = 0, .max_queued_requests = 1});
  core.submit(request_of(1, 1));
  REQUIRE(core.submit(request_of(1, 1)).error == Scheduler::SubmitError::kQueueFull);
  core.run();
  std::uint64_t all = 0;
  for (const std::uint64_t count : core.scheduler.stats().ended) all += count;
  CHECK(all == 1);
}

}  // namespace lintel::testing
