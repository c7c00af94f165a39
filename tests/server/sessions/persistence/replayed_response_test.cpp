// SPDX-License-Identifier: Apache-2.0
// Calls that are replayed from the storage: longer than the history in memory, to slow readers, to
// readers that leave, of sessions that are rewound meanwhile.
#include "server/sessions/persistence/replayed_response.h"

#include <vector>

#include "tests/server/sessions/persistence/persistent_requests.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

const SessionOptions kShortHistory{.max_tokens = 30'000, .history_tokens = 1024};

// A session with one finished call of so many tokens, far more than its history in memory has.
struct Finished : Calls {
  explicit Finished(Durability level = Durability::kInput, std::int64_t tokens = 5000)
      : Calls(level), id(kept(kShortHistory)), request(tokens_request(5, tokens, 3)) {
    request.given = {{9, 1}, {10, 2}, {2000, 3}};
    first = process->finish(request, id, {.id = "a"});
  }
  DurableProcess::Call again(std::int64_t from_position = 0,
                             std::shared_ptr<RecordingSink> sink = nullptr) {
    return process->call(request, id, {.id = "a", .from_position = from_position}, std::move(sink));
  }

  const std::string id;
  GenerationRequest request;
  std::shared_ptr<RecordingSink> first;
};

TEST_CASE("a finished call longer than the history in memory is replayed", "[durable]") {
  const Durability level = GENERATE(Durability::kCall, Durability::kInput, Durability::kToken);
  const bool dies = GENERATE(false, true);
  const bool is_last = GENERATE(false, true);
  Finished finished(level);
  if (!is_last) finished.process->finish(tokens_request(2, 9, 4), finished.id, {.id = "b"});
  if (dies) finished.begin();
  const auto again = finished.again();
  REQUIRE_FALSE(again.refusal);
  CHECK(again.sink->recorded == finished.first->recorded);
  CHECK(again.sink->result().digest == finished.first->result().digest);
  CHECK(again.sink->result().position == 5005);
  CHECK(again.sink->result().generated_tokens == 5000);
  CHECK(again.sink->outcome == RequestOutcome::kDone);
  CHECK_FALSE(finished.process->store.get(finished.id, kAlice)->busy);
  for (const std::int64_t from : {6, 1500, 1501, 3000, 5004, 5005, 9000}) {
    const auto part = finished.again(from);
    REQUIRE_FALSE(part.refusal);
    const std::size_t left = static_cast<std::size_t>(std::max<std::int64_t>(5005 - from, 0));
    CHECK(part.sink->recorded[0] ==
          std::vector<RecordedToken>(
              finished.first->recorded[0].end() - static_cast<std::ptrdiff_t>(left),
              finished.first->recorded[0].end()));
    CHECK(part.sink->result().digest == finished.first->result().digest);
  }
  // For its owner alone.
  CHECK(finished.process->call(finished.request, finished.id, {.id = "a"}, nullptr, "bob")
            .refusal.error == SessionError::kNotFound);
  // And the session continues as it would have.
  const auto next = finished.process->finish(tokens_request(2, 30, 6), finished.id, {.id = "c"});
  std::vector<GenerationRequest> all{finished.request, tokens_request(2, 9, 4),
                                     tokens_request(2, 30, 6)};
  if (is_last) all.erase(all.begin() + 1);
  CHECK(next->recorded == undisturbed(finished.transformer, all, kShortHistory)->recorded);
}

TEST_CASE("a slow reader: the replay waits, and reads little ahead", "[durable]") {
  Finished finished;
  const auto sink = std::make_shared<RecordingSink>();
  sink->room = 10;
  const auto again = finished.again(0, sink);
  REQUIRE_FALSE(again.refusal);
  const std::size_t piece = ReplayedResponse::kPieceTokens;
  CHECK(sink->recorded[0].size() == piece);
  CHECK(sink->finishes == 0);
  CHECK_FALSE(finished.process->store.get(finished.id, kAlice)->busy);
  sink->room = 10;
  again.past->resume();
  CHECK(sink->recorded[0].size() == 2 * piece);
  sink->room = 1'000'000;
  again.past->resume();
  CHECK(sink->finishes == 1);
  CHECK(sink->recorded == finished.first->recorded);
  again.past->resume();
  again.past->cancel();
  CHECK(sink->finishes == 1);
}

TEST_CASE("a reader that leaves: the replay ends", "[durable]") {
  Finished finished;
  const auto sink = std::make_shared<RecordingSink>();
  sink->room = 10;
  const auto again = finished.again(0, sink);
  again.past->cancel();
  CHECK(sink->finishes == 1);
  CHECK(sink->outcome == RequestOutcome::kCancelled);
  CHECK(sink->recorded[0].size() == static_cast<std::size_t>(ReplayedResponse::kPieceTokens));
  CHECK_FALSE(sink->results[0]);
}

TEST_CASE("a rewind during a replay: no token of the new history is delivered", "[durable]") {
  Finished finished;
  const auto sink = std::make_shared<RecordingSink>();
  sink->room = 10;
  const auto again = finished.again(0, sink);
  SECTION("taken back") {
    REQUIRE_FALSE(
        finished.process->durable.rewind(finished.id, kAlice, 5004, std::nullopt).refusal);
    finished.process->finish(tokens_request(1, 9, 8), finished.id, {.id = "z"});
  }
  SECTION("removed") { REQUIRE_FALSE(finished.process->durable.remove(finished.id, kAlice)); }
  sink->room = 1'000'000;
  again.past->resume();
  CHECK(sink->outcome->error() == SessionError::kStoreAway);
  CHECK(sink->recorded[0].size() == static_cast<std::size_t>(ReplayedResponse::kPieceTokens));
}

TEST_CASE("a store keeps the tokens of calls that it remembers, and not those before",
          "[durable]") {
  Finished finished(Durability::kInput, 3000);
  const auto base = [&] { return finished.storage.find(finished.id, kAlice).row.base; };
  CHECK(base() == 0);
  CHECK(finished.process->durable.find(finished.id, kAlice)->oldest_position > 1000);
  GenerationRequest next = tokens_request(1, 3000, 4);
  // The last of them have few tokens, the first as many as the call before them.
  for (std::size_t i = 1; i < kLastCalls; ++i) {
    finished.process->finish(next, finished.id,
                             {.id = i == 1 ? "b" : "later " + std::to_string(i)});
    if (i == 2) next.max_new_tokens = 1100;
  }
  next.max_new_tokens = 3000;
  CHECK(base() == 0);
  CHECK(finished.again().sink->recorded == finished.first->recorded);
  const auto e = finished.process->finish(next, finished.id, {.id = "e"});
  CHECK(base() > 1000);
  CHECK(base() <= 3005);
  const auto b = finished.process->call(next, finished.id, {.id = "b"});
  REQUIRE_FALSE(b.refusal);
  CHECK(b.sink->recorded[0].size() == 3000);
  finished.begin();
  const auto again = finished.process->call(next, finished.id, {.id = "e"});
  CHECK(again.sink->recorded == e->recorded);
  CHECK(again.sink->result().digest == e->result().digest);
  CHECK(finished.process->call(next, finished.id, {.id = "b"}).sink->result().digest ==
        b.sink->result().digest);
}

TEST_CASE("a session whose first tokens the store has dropped is rewound and loaded", "[durable]") {
  Calls calls(Durability::kInput);
  calls.options.park.tokens = 100'000;
  calls.begin();
  SessionOptions session{.max_tokens = 30'000, .history_tokens = 2048};
  session.checkpoint_every = 500;
  session.checkpoint_keep = 4;
  const std::string id = calls.kept(session);
  calls.process->finish(tokens_request(5, 6000, 3), id);  // without a name: it is not remembered
  REQUIRE(calls.storage.find(id, kAlice).row.base > 2000);
  REQUIRE_FALSE(calls.process->durable.rewind(id, kAlice, 5800, std::nullopt).refusal);
  const auto before = calls.process->store.history(id, kAlice, 5000, std::nullopt).tokens;
  calls.begin();
  REQUIRE_FALSE(calls.process->durable.load(id, kAlice).refusal);
  CHECK(calls.process->store.history(id, kAlice, 5000, std::nullopt).tokens == before);
  CHECK(calls.process->finish(tokens_request(1, 9, 4), id, {.id = "b"})->recorded[0].size() == 9);
}

}  // namespace
}  // namespace lintel::testing
