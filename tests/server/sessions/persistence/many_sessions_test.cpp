// SPDX-License-Identifier: Apache-2.0
// More sessions than there is memory for.
#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "server/sessions/storage/sqlite/sqlite_storage.h"
#include "tests/server/sessions/persistence/crash_test_process.h"
#include "tests/support/catch.h"
#include "tests/support/sanitized.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

constexpr int kSessions = kSanitized ? 500 : 10'000;
constexpr int kInMemory = kSanitized ? 20 : 100;

// The call that continues a session with so many tokens.
GenerationRequest next_of(int session, std::int64_t position) {
  GenerationRequest request;
  if (position == 0 || position % 3 == 0) {
    request.prompt = {static_cast<std::int32_t>((session + position) % 50)};
  }
  request.max_new_tokens = 2 + position % 2;
  request.seed = static_cast<std::uint64_t>(session) * 1000 + static_cast<std::uint64_t>(position);
  request.log2_probs = true;
  return request;
}

TEST_CASE("many sessions go through memory for a few, and none is lost or another's", "[durable]") {
  const auto model = tiny_model(TinyModel::kTokens);
  ManualClock clock;
  MemoryStorage storage(clock);
  const SessionOptions kDurable{.max_tokens = 60, .durability = Durability::kInput};
  const std::size_t bytes = SessionManager::session_bytes(*model, kDurable);
  const std::size_t budget = kInMemory * bytes + (1u << 16);  // and what a call holds
  DurableProcess process(storage, model, clock, {.threads = 0}, {.session_memory_bytes = budget});
  // A twin that has all of them in memory.
  Core twin(model);
  std::vector<std::string> ids, twins;
  for (int i = 0; i < kSessions; ++i) {
    ids.push_back(process.create(kDurable));
    REQUIRE_FALSE(process.durable.persist(ids.back(), kAlice));
    twins.push_back(twin.new_session(60));
  }
  const unsigned seed = Catch::rngSeed();
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::vector<int> turns(static_cast<std::size_t>(kSessions));
  for (std::size_t i = 0; i < turns.size(); ++i) turns[i] = static_cast<int>(i);
  std::shuffle(turns.begin(), turns.end(), random);
  for (int i = 0; i < kSessions; ++i) {  // some of them again, a few often
    turns.push_back(static_cast<int>(random() % (i % 2 == 0 ? kSessions : kInMemory / 2)));
  }
  for (const int turn : turns) {
    const auto i = static_cast<std::size_t>(turn);
    const std::int64_t position = twin.session_tokens(twins[i]);
    if (position > 50) continue;
    const GenerationRequest request = next_of(turn, position);
    const auto got = process.finish(request, ids[i],
                                    {.id = "call " + std::to_string(position), .log2_probs = true});
    REQUIRE(got->recorded == twin.generate(request, twins[i])->recorded);
    REQUIRE(process.store.bytes_in_use() <= budget);
    REQUIRE(process.store.num_sessions() <= budget / bytes);
    clock.advance(std::chrono::milliseconds(1));
  }
  const SessionManager::Stats stats = process.store.stats();
  CHECK(stats.unloaded >= kSessions - budget / bytes);
  CHECK(stats.loaded > kSessions / 2);
  CHECK(stats.evicted == 0);
  int listed = 0;
  for (std::string after;;) {
    const auto page = process.durable.list("tiny", after, 1000, kAlice);
    if (page.empty()) break;
    listed += static_cast<int>(page.size());
    after = page.back().id;
  }
  CHECK(listed == kSessions);
}

TEST_CASE("calls at once on sessions that have no room together are lost or mixed up by none",
          "[durable]") {
  const auto model = tiny_model(TinyModel::kTokens);
  SteadyClock clock;
  const TemporaryDirectory directory;
  std::unique_ptr<SessionStorage> kept_in = std::make_unique<MemoryStorage>(clock);
  if (GENERATE(false, true)) {
    kept_in = std::make_unique<SqliteStorage>(
        SqliteStorage::Options{.directory = directory.path() / "store"}, clock);
  }
  SessionStorage& storage = *kept_in;
  constexpr int kEach = 60;
  constexpr int kThreads = 4;
  const SessionOptions kDurable{.max_tokens = 60, .durability = Durability::kToken};
  const std::size_t bytes = SessionManager::session_bytes(*model, kDurable);
  PersistentSessions::Options options{.commit_interval = std::chrono::microseconds(100),
                                      .threads = kThreads};
  // Memory for the sessions that run at once, and for as many that are loaded meanwhile.
  DurableProcess process(storage, model, clock, options,
                         {.session_memory_bytes = 2 * kThreads * bytes});
  process.model->scheduler->stop();
  const auto served = served_model(model, clock, "tiny", {.workers = 2});
  process.models.add(served, /*replace_all=*/true);
  process.model = served;
  std::vector<std::string> ids;
  for (int i = 0; i < 30; ++i) {
    const auto created = process.store.create("tiny", model, kDurable, kAlice);
    REQUIRE_FALSE(created.refusal);
    REQUIRE_FALSE(process.durable.persist(created.info.id, kAlice));
    ids.push_back(created.info.id);
  }
  Core twin(model);
  std::vector<std::vector<std::vector<RecordedToken>>> expected(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::string id = twin.new_session(60);
    for (int k = 0; k < 4; ++k) {
      const GenerationRequest request = next_of(static_cast<int>(i), twin.session_tokens(id));
      expected[i].push_back(twin.generate(request, id)->recorded[0]);
    }
  }
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t k = 0; k < 4; ++k) {
        for (std::size_t i = static_cast<std::size_t>(t); i < ids.size(); i += kThreads) {
          SessionManager::LeaseResult leased = process.durable.load_and_lease(ids[i], kAlice);
          if (leased.refusal) {
            ++failures;
            continue;
          }
          GenerationRequest request = next_of(static_cast<int>(i), leased.lease.num_tokens());
          PersistentSessions::OpenedCall opened;
          const IdempotencyKey terms{.id = "call " + std::to_string(k)};
          if (process.durable.open_call(leased.lease, served, terms, opened)) {
            ++failures;
            continue;
          }
          Replay replay = leased.lease.replay();
          request.replay = std::move(replay.tokens);
          request.replay_tail = std::move(replay.tail);
          const auto prompt = static_cast<std::int64_t>(request.prompt.size());
          const auto sink = std::make_shared<RecordingSink>();
          if (opened.call->begin(leased.lease, request, prompt) ||
              opened.call->submit(std::move(request), std::move(leased.lease), sink,
                                  RequestHandle()) != Scheduler::SubmitError::kNone) {
            ++failures;
            continue;
          }
          sink->wait_until_finished();
          if (sink->outcome != RequestOutcome::kDone || sink->recorded[0] != expected[i][k]) {
            ++failures;
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(failures == 0);
  CHECK(process.store.stats().unloaded > kEach);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    CHECK(process.durable.find(ids[i], kAlice)->num_tokens ==
          expected[i].back().back().position + 1);
  }
}

}  // namespace
}  // namespace lintel::testing
