// SPDX-License-Identifier: Apache-2.0
// The way of tokens from a scheduler that must not wait to a wire that may be slow.
#include <algorithm>
#include <atomic>
#include <thread>

#include "server/api/token_stream.h"
#include "tests/server/support/call_fixture.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// A wire of a third kind: records its calls.
struct RecordingWire final : ResponseWriter {
  void write(std::span<const OutboxEntry> entries) override {
    take(entries);
    ++in_flight;
  }
  void end(std::span<const OutboxEntry> entries, grpc::Status status, TokenUse used) override {
    if (!entries.empty()) take(entries);
    ended = std::move(status);
    use = used;
  }
  void gone(grpc::Status status, TokenUse used) noexcept override {
    is_gone = true;
    ended = std::move(status);
    use = used;
  }
  void over() noexcept override { ++overs; }

  void take(std::span<const OutboxEntry> entries) {
    int tokens = 0;
    for (const OutboxEntry& entry : entries) {
      if (entry.finished != nullptr) {
        ++finishes;
      } else {
        positions.push_back(entry.position);
        ++tokens;
      }
    }
    messages.push_back(tokens);
  }

  std::vector<int> messages;  // the number of tokens of each
  std::vector<std::int64_t> positions;
  int finishes = 0;
  int in_flight = 0;
  int overs = 0;
  bool is_gone = false;
  std::optional<grpc::Status> ended;
  TokenUse use;
};

struct OutboxFixture : CallFixture {
  OutboxFixture() : CallFixture("tokens") {}

  std::shared_ptr<TokenStream> outbox(TokenStream::Options options) {
    return std::make_shared<TokenStream>(wire, model, clock, calls, std::move(options));
  }
  // Steps once; writes of before are out first.
  void step(TokenStream& box) {
    while (wire.in_flight > 0 && !wire.ended) {
      --wire.in_flight;
      box.written(true);
    }
    served->scheduler->run_one_step();
  }
  grpc::Status submit(TokenStream& box, std::int64_t max_new_tokens) {
    PreparedGeneration made = prepared(max_new_tokens);
    made.checked.request.sampling.temperature = 1.0f;
    return box.submit(std::move(made.checked.request), std::move(made.lease));
  }
  void run(TokenStream& box) {
    for (int i = 0; i < 10'000 && !wire.ended; ++i) step(box);
    REQUIRE(wire.ended);
  }
  void check_positions(std::size_t count) {
    REQUIRE(wire.positions.size() == count);
    for (std::size_t i = 0; i < count; ++i) {
      CHECK(wire.positions[i] == static_cast<std::int64_t>(i) + 2);
    }
  }

  RecordingWire wire;
};

TEST_CASE("every token goes out once and in order, and the usage comes at the end") {
  OutboxFixture f;
  const auto box = f.outbox({.max_tokens_per_message = 7, .tells_sample_ends = true});
  REQUIRE(f.submit(*box, 100).ok());
  f.run(*box);
  f.check_positions(100);
  CHECK(f.wire.ended->ok());
  CHECK(f.wire.finishes == 1);
  CHECK(f.wire.overs == 1);
  CHECK(f.wire.use.prompt == 2);
  CHECK(f.wire.use.generated == 100);
  CHECK(*std::ranges::max_element(f.wire.messages) <= 7);
}

TEST_CASE("tokens gather for an interval, but the first goes out at once") {
  OutboxFixture f;
  const auto box = f.outbox({.chunk_interval = std::chrono::milliseconds(10)});
  REQUIRE(f.submit(*box, 50).ok());
  while (f.wire.messages.empty()) f.step(*box);
  for (int i = 0; i < 5; ++i) f.step(*box);
  CHECK(f.wire.messages.size() == 1);
  f.clock.advance(std::chrono::milliseconds(10));
  f.step(*box);
  CHECK(f.wire.messages.size() == 2);
  f.run(*box);
  f.check_positions(50);
}

TEST_CASE("the end of a sample is sent at once, if the wire asks for it") {
  const bool sends_end = GENERATE(true, false);
  OutboxFixture f;
  const auto box =
      f.outbox({.chunk_interval = std::chrono::hours(1), .tells_sample_ends = sends_end});
  REQUIRE(f.submit(*box, 5).ok());
  f.run(*box);
  f.check_positions(5);
  CHECK(f.wire.finishes == (sends_end ? 1 : 0));
}

TEST_CASE("an accepted request writes a message without entries at once, if the wire asks for it") {
  OutboxFixture f;
  const auto box = f.outbox({.begins_at_once = true});
  REQUIRE(f.submit(*box, 5).ok());
  CHECK(f.wire.messages == std::vector{0});
  // The token is out late: the request is over.
  while (f.served->scheduler->run_one_step()) {
  }
  CHECK(f.wire.messages == std::vector{0});
  f.run(*box);
  f.check_positions(5);
  CHECK(f.wire.messages == std::vector{0, 5});
}

TEST_CASE("a slow wire pauses the request, which resumes when half is out") {
  OutboxFixture f;
  const auto box = f.outbox({.outbox_tokens = 16, .max_tokens_per_message = 4});
  REQUIRE(f.submit(*box, 100).ok());
  for (int i = 0; i < 200; ++i) f.served->scheduler->run_one_step();
  REQUIRE(f.wire.in_flight == 1);
  const auto generated = f.served->scheduler->stats().generated_tokens;
  CHECK(generated >= 16);
  CHECK(generated < 40);  // a step may have drafts in hand
  f.run(*box);
  f.check_positions(100);
  CHECK(std::ranges::count(f.wire.messages, 4) >= 3);  // of those that waited
}

TEST_CASE("tokens that come while a message is made up go into it") {
  OutboxFixture f;
  const auto box = f.outbox({.max_tokens_per_message = 10});
  REQUIRE(f.submit(*box, 60).ok());
  while (f.wire.in_flight == 0) f.served->scheduler->run_one_step();
  for (int i = 0; i < 200; ++i) f.served->scheduler->run_one_step();  // all wait
  f.run(*box);
  f.check_positions(60);
  REQUIRE(f.wire.messages.size() >= 3);
  for (std::size_t i = 1; i + 1 < f.wire.messages.size(); ++i) CHECK(f.wire.messages[i] == 10);
}

TEST_CASE("a client that disconnects ends the request, then the wire receives gone") {
  OutboxFixture f;
  const bool before = GENERATE(true, false);
  const auto box = f.outbox({});
  if (before) box->gone();
  REQUIRE(f.submit(*box, 1'000'000).ok());
  if (!before) {
    for (int i = 0; i < 5; ++i) f.step(*box);
    box->gone();
  }
  CHECK_FALSE(f.wire.ended);
  for (int i = 0; i < 2; ++i) f.step(*box);
  REQUIRE(f.wire.ended);
  CHECK(f.wire.is_gone);
  CHECK(f.wire.ended->error_code() == grpc::StatusCode::CANCELLED);
  CHECK(f.served->scheduler->idle());
}

TEST_CASE("a message that is not written is the last one, also while more tokens come") {
  struct CountingWire final : ResponseWriter {
    void write(std::span<const OutboxEntry>) override { ++writes; }
    void end(std::span<const OutboxEntry>, grpc::Status, TokenUse) override { ++writes; }
    void gone(grpc::Status, TokenUse) noexcept override { is_gone = true; }
    void over() noexcept override {}

    std::atomic<int> writes{0};
    bool is_gone = false;
  };
  OutboxFixture f;
  int most = 0;
  for (int round = 0; round < 500; ++round) {
    CountingWire wire;
    const auto box =
        std::make_shared<TokenStream>(wire, f.model, f.clock, f.calls, TokenStream::Options{});
    std::thread reader([&] {
      while (wire.writes == 0) std::this_thread::yield();
      box->written(false);
    });
    for (int i = 0; i < 200; ++i) {
      box->on_token({});
      box->on_step_end();
    }
    reader.join();
    box->on_finish(RequestOutcome::kCancelled);
    REQUIRE(wire.is_gone);
    most = std::max(most, wire.writes.load());
  }
  CHECK(most == 1);
}

TEST_CASE("an outbox whose request is over keeps no model, however slow its wire is") {
  OutboxFixture f;
  const auto box = f.outbox({.max_tokens_per_message = 1});
  REQUIRE(f.submit(*box, 20).ok());
  while (f.served->scheduler->run_one_step()) {
  }
  CHECK_FALSE(f.wire.ended);
  CHECK(f.served.use_count() == 2);
  f.run(*box);
  f.check_positions(20);
}

TEST_CASE("a full queue refuses an outbox's request without a call to its wire") {
  OutboxFixture f;
  f.served->scheduler = std::make_unique<Scheduler>(
      f.model->transformer, Scheduler::Options{.workers = 0, .max_queued_requests = 1}, f.clock);
  const auto first = f.outbox({});
  REQUIRE(f.submit(*first, 5).ok());
  const auto box = f.outbox({.begins_at_once = true});
  const grpc::Status refused = f.submit(*box, 5);
  CHECK(refused.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK_THAT(refused.error_message(), Catch::Contains("the queue is full: 1 requests wait"));
  f.served->scheduler->stop();
  CHECK(f.wire.overs == 1);  // of the first
  CHECK(f.wire.messages.empty());
}

}  // namespace
}  // namespace lintel::testing
