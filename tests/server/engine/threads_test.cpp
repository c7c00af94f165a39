// SPDX-License-Identifier: Apache-2.0
// Real workers: for ThreadSanitizer, and for waking up.
#include <atomic>
#include <chrono>
#include <system_error>
#include <thread>

#include "tests/server/support/harness.h"
#include "tests/support/catch.h"
#include "tests/support/one_more_thread.h"

namespace lintel::testing {
namespace {

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("a scheduler whose second worker the system refuses is not made", "[limits]") {
  const auto model = tiny_model(TinyModel::kTokens);
  const ManualClock clock;
  {
    const OneMoreThread one;
    CHECK_THROWS_AS(Scheduler(model, {.workers = 3}, clock), std::system_error);
    CHECK_NOTHROW(Scheduler(model, {.workers = 1}, clock));
  }
  CHECK_NOTHROW(Scheduler(model, {.workers = 3}, clock));
}
#endif

TEST_CASE("an idle worker wakes for a request, a resume and a cancel") {
  Core core(tiny_model(TinyModel::kTokens), {.workers = 2});
  const auto sink = std::make_shared<RecordingSink>();
  std::atomic<int> seen{0};
  sink->room = 1;
  sink->when_token = [&](const TokenEvent&) {
    ++seen;
    seen.notify_all();
  };
  const auto call = core.submit(tokens_request(3, 1000000, 1), "", sink);
  seen.wait(0);
  sink->room = 1;  // safe: the request is paused, or pauses after this step
  core.scheduler.resume(call.handle);
  seen.wait(1);
  core.scheduler.cancel(call.handle);
  sink->wait_until_finished();
  REQUIRE(sink->outcome == RequestOutcome::kCancelled);
  REQUIRE(sink->recorded[0].size() == 2);
}

TEST_CASE("an idle worker wakes for the deadline of a paused request") {
  const SteadyClock clock;
  const auto model = tiny_model(TinyModel::kTokens);
  SessionManager store({.session_memory_bytes = 1u << 30}, clock);
  Scheduler scheduler(model, {.workers = 1}, clock);
  const auto sink = std::make_shared<RecordingSink>();
  sink->room = 1;
  GenerationRequest request = tokens_request(3, 1000000, 1);
  request.deadline = clock.now() + std::chrono::milliseconds(20);
  scheduler.submit(request, std::move(store.lease_one_shot("tiny", model, 0, 1).lease), sink);
  sink->wait_until_finished();
  REQUIRE(sink->outcome == RequestOutcome::kDeadline);
  REQUIRE(clock.now() >= *request.deadline);
}

TEST_CASE("requests spread over the workers and all are answered once") {
  Core core(tiny_model(TinyModel::kTokens),
            {.workers = 3, .max_batch_rows = 4, .max_queued_requests = 10000});
  std::vector<std::thread> clients;
  std::atomic<int> answered{0};
  for (std::uint64_t client = 0; client < 4; ++client) {
    clients.emplace_back([&, client] {
      for (std::uint64_t i = 0; i < 40; ++i) {
        auto sink = std::make_shared<RecordingSink>();
        auto leased = core.store.lease_one_shot("tiny", core.model, 0, 1);
        const RequestHandle handle;
        if (i % 10 == 0) core.scheduler.cancel(handle);  // before a request has it
        core.scheduler.submit(
            tokens_request(3, 1 + static_cast<std::int64_t>(i % 17), client * 1000 + i),
            std::move(leased.lease), sink, handle);
        if (i % 5 == 0) core.scheduler.cancel(handle);
        if (i % 7 == 0) core.scheduler.resume(handle);
        if (i % 3 == 0) core.scheduler.stats();
        sink->wait_until_finished();
        const bool right = sink->outcome == RequestOutcome::kDone
                               ? sink->recorded[0].size() == 1 + i % 17
                               : i % 5 == 0 && sink->outcome == RequestOutcome::kCancelled;
        if (right && sink->finishes == 1 && sink->out_of_order == 0) ++answered;
      }
    });
  }
  for (auto& client : clients) client.join();
  REQUIRE(answered == 160);
  core.scheduler.stop();
  REQUIRE(core.scheduler.idle());
  REQUIRE(core.store.bytes_in_use() == 0);
}

TEST_CASE("sessions used from several threads keep their own state") {
  Core core(tiny_model(TinyModel::kTokens), {.workers = 2});
  std::vector<std::thread> clients;
  std::atomic<int> right{0};
  for (std::uint64_t client = 0; client < 4; ++client) {
    clients.emplace_back([&, client] {
      const std::string id = core.store.create("tiny", core.model, 0).info.id;
      std::vector<std::int32_t> tokens;
      for (int call = 0; call < 10; ++call) {
        GenerationRequest request = tokens_request(3, 5, client);
        if (call > 0) request.prompt.clear();
        auto sink = std::make_shared<RecordingSink>();
        auto leased = core.store.lease(id);
        if (leased.refusal.error != SessionError::kNone) return;
        core.scheduler.submit(request, std::move(leased.lease), sink);
        sink->wait_until_finished();
        for (const auto token : sink->tokens()) tokens.push_back(token);
        core.store.list("", "", 10);
      }
      SequenceState sequence = core.model->new_sequence();
      const auto twin = generate_naively(*core.model, tokens_request(3, 50, client), 0, sequence);
      std::vector<std::int32_t> expected;
      for (const RecordedToken& each : twin.tokens) expected.push_back(each.token);
      if (tokens == expected && core.store.remove(id).error == SessionError::kNone) ++right;
    });
  }
  for (auto& client : clients) client.join();
  REQUIRE(right == 4);
}

TEST_CASE("stop in the middle of everything answers every request") {
  for (int round = 0; round < 20; ++round) {
    Core core(tiny_model(TinyModel::kTokens), {.workers = 2, .max_batch_rows = 2});
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (std::uint64_t i = 0; i < 12; ++i) {
      auto sink = std::make_shared<RecordingSink>();
      if (i % 3 == 0) sink->room = 2;
      auto leased = core.store.lease_one_shot("tiny", core.model, 0, 1);
      core.scheduler.submit(tokens_request(3, i % 2 == 0 ? 1000000 : 3, i), std::move(leased.lease),
                            sink);
      sinks.push_back(std::move(sink));
    }
    if (round % 2 == 0) sinks[1]->wait_until_finished();
    core.scheduler.stop();
    for (const auto& sink : sinks) {
      REQUIRE(sink->finishes == 1);
      REQUIRE(sink->out_of_order == 0);
    }
    REQUIRE(core.store.bytes_in_use() == 0);
  }
}

}  // namespace
}  // namespace lintel::testing
