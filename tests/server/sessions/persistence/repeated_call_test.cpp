// SPDX-License-Identifier: Apache-2.0
// Calls on durable sessions that are asked for once more: after their end, after an interruption.
#include <optional>
#include <vector>

#include "tests/server/sessions/persistence/persistent_requests.h"
#include "tests/support/catch.h"
#include "tests/support/text_model.h"

namespace lintel::testing {
namespace {

TEST_CASE("a repeat of an ended call gives the same tokens, from the position that it asks for",
          "[durable]") {
  const Durability level = GENERATE(Durability::kCall, Durability::kInput, Durability::kToken);
  const bool dies = GENERATE(false, true);
  Calls calls(level);
  const std::string id = calls.kept();
  GenerationRequest request = tokens_call(5, 40, 3);
  request.sampling.frequency_penalty = 0.5f;
  request.top_log2_probs = 2;
  calls.process->finish(tokens_call(4, 9, 1), id, named("a"));
  const auto first = calls.process->finish(request, id, named("b"));
  const SessionStorage::Row row = calls.storage.find(id, kAlice).row;
  if (dies) calls.begin();
  request.seed = 77;  // its own counts
  const auto again = calls.process->finish(request, id, named("b"));
  CHECK(again->recorded == first->recorded);
  CHECK(again->result().seed == first->result().seed);
  CHECK(again->result().digest == first->result().digest);
  CHECK(again->result().generated_tokens == first->result().generated_tokens);
  IdempotencyKey rest = named("b");
  rest.from_position = 30;
  const auto part = calls.process->finish(request, id, rest);
  CHECK(part->recorded[0] ==
        std::vector<RecordedToken>(first->recorded[0].end() - 28, first->recorded[0].end()));
  CHECK(calls.storage.find(id, kAlice).row.digest == row.digest);
  CHECK(calls.storage.find(id, kAlice).row.last_calls == row.last_calls);
  // Then the session continues.
  const auto next = calls.process->finish(tokens_call(2, 9, 5), id, named("c"));
  GenerationRequest same = request;
  same.seed = 3;
  CHECK(
      next->recorded ==
      undisturbed(calls.transformer, {tokens_call(4, 9, 1), same, tokens_call(2, 9, 5)})->recorded);
}

TEST_CASE("one of the last calls is replayed from the history", "[durable]") {
  Calls calls(Durability::kInput);
  const bool dies = GENERATE(false, true);
  const std::string id = calls.kept();
  GenerationRequest request = tokens_request(5, 40, 3);
  request.given = {{9, 1}, {10, 2}, {20, 3}};
  const auto first = calls.process->finish(request, id, {.id = "a"});
  for (std::size_t i = 1; i < kLastCalls; ++i) {
    calls.process->finish(tokens_request(2, 5, 4), id, {.id = "later " + std::to_string(i)});
  }
  if (dies) calls.begin();
  const auto again = calls.process->call(request, id, {.id = "a"});
  REQUIRE_FALSE(again.refusal);
  CHECK(again.sink->recorded == first->recorded);
  CHECK(again.sink->result().digest == first->result().digest);
  CHECK(again.sink->result().position == 45);
  CHECK(again.sink->result().seed == first->result().seed);
  CHECK_FALSE(calls.process->store.get(id, kAlice)->busy);
  IdempotencyKey more{.id = "a", .log2_probs = true};
  CHECK(calls.process->call(request, id, more).refusal.error == SessionError::kNoProbabilities);
  CHECK(calls.process->call(request, id, named("a", 2)).refusal.error ==
        SessionError::kCallDiffers);
  CHECK_FALSE(calls.process->store.get(id, kAlice)->busy);
  // The last calls are remembered, as many as the limit.
  calls.process->finish(tokens_request(2, 5, 4), id, {.id = "the last"});
  const std::int64_t position = calls.stored(id);
  const auto fresh = calls.process->finish(tokens_request(1, 5, 3), id, {.id = "a"});
  CHECK(fresh->recorded[0][0].position == position + 1);
}

TEST_CASE("a replay ends inside of the token that a stop string began in", "[durable]") {
  Calls calls(Durability::kInput, text_model());
  const bool dies = GENERATE(false, true);
  const std::string id = calls.kept();
  GenerationRequest request;
  request.prompt = {3, 1, 4};
  request.max_new_tokens = 20;
  request.sampling.logit_bias = {{264, 10'000.0f}};  // "there", for ever
  request.stop.strings = {"ereth"};
  const auto first = calls.process->finish(request, id, {.id = "a"});
  REQUIRE(first->recorded[0].size() == 1);
  REQUIRE(first->recorded[0][0].cut_bytes == 3);
  // Not the last call any more: it is not run again.
  request.stop.strings = {"no such"};
  calls.process->finish(request, id, {.id = "b"});
  if (dies) calls.begin();
  request.stop.strings = {"ereth"};
  const auto again = calls.process->call(request, id, {.id = "a"});
  REQUIRE_FALSE(again.refusal);
  REQUIRE(again.past != nullptr);
  CHECK(again.sink->recorded == first->recorded);
  CHECK(again.sink->result().stop_string == "ereth");
}

TEST_CASE("calls are stored as servers of the last release read them, unless a token was cut") {
  LastCall call{.id = "a", .start = 2, .end = 12, .shown_end = 11};
  const std::string whole = encode_last_calls({call});
  CHECK(whole[0] == 1);
  call.result.cut_bytes = 7;
  const std::string cut = encode_last_calls({call});
  CHECK(cut[0] == 2);
  const auto calls = decode_last_calls(cut);
  REQUIRE(calls);
  CHECK(calls->at(0).result.cut_bytes == 7);
  CHECK(decode_last_calls(whole)->at(0).result.cut_bytes == 0);
}

TEST_CASE("a replay leaves the prompt out, read or not, unless it is echoed", "[durable]") {
  Calls room(Durability::kInput);
  LastCall call{.id = "a", .start = 2, .end = 12, .shown_end = 11};
  call.result.cached_tokens = 3;
  call.result.prompt_tokens = 2;
  const auto calls = decode_last_calls(encode_last_calls({call}));
  REQUIRE(calls);
  SessionStorage::Row row;
  row.position = 12;
  const auto shown = [&](bool echo_prompt, std::int64_t from_position) {
    IdempotencyKey terms{.from_position = from_position};
    terms.echo_prompt = echo_prompt;
    const auto past = ReplayedResponse::of(room.process->durable, row, {}, calls->at(0), {}, terms);
    return past == nullptr ? std::pair<std::int64_t, std::int64_t>(-1, -1)
                           : std::pair(past->first(), past->end());
  };
  using Range = std::pair<std::int64_t, std::int64_t>;
  CHECK(shown(false, 0) == Range(7, 11));
  CHECK(shown(true, 0) == Range(2, 11));
  CHECK(shown(true, 9) == Range(9, 11));
  CHECK(shown(false, 30) == Range(30, 30));
  row.base = 3;  // the storage has not all of it
  CHECK(shown(true, 0) == Range(-1, -1));
  CHECK(shown(true, 3) == Range(3, 11));
}

TEST_CASE("an interrupted call is repeated or given up, and blocks others until then",
          "[durable]") {
  const Durability level = GENERATE(Durability::kInput, Durability::kToken);
  Calls calls(level);
  const std::string id = calls.kept();
  calls.process->finish(tokens_call(4, 6, 1), id, named("a"));
  calls.process->call(tokens_call(5, 40, 3), id, named("b"));
  for (int i = 0; i < 12; ++i) {
    calls.process->model->scheduler->run_one_step();
    calls.process->durable.write();
  }
  const std::int64_t stored = calls.stored(id);
  REQUIRE(stored > 15);
  REQUIRE(stored < 50);
  calls.begin();

  const SessionInfo info = *calls.process->durable.find(id, kAlice);
  REQUIRE(info.interrupted);
  CHECK(info.interrupted->call_id == "b");
  CHECK(info.interrupted->start_position == 10);
  CHECK(info.interrupted->stored_position == stored);
  CHECK(calls.process->durable.list("", "", 9, kAlice).at(0).interrupted);
  const auto refused = [&](const IdempotencyKey& terms) {
    const auto call = calls.process->call(tokens_call(1, 4, 9), id, terms);
    CHECK_FALSE(calls.process->store.get(id, kAlice)->busy);
    return call.refusal;
  };
  CHECK(refused(named("c")).error == SessionError::kCallInterrupted);
  CHECK(refused({}).error == SessionError::kCallInterrupted);
  CHECK(refused({}).lowest == 10);
  CHECK(refused({}).highest == stored);
  CHECK(refused(named("b", 2)).error == SessionError::kCallDiffers);
  IdempotencyKey expects = named("c");
  for (const std::int64_t position : {std::int64_t{9}, stored + 1}) {
    expects.expected_position = position;
    CHECK(refused(expects).error == SessionError::kPositionMismatch);
    CHECK(refused(expects).highest == stored);
  }
  // Copies of what is stored.
  const auto fork = calls.process->store.fork(id, kAlice, 12, 1);
  REQUIRE_FALSE(fork.refusal);
  REQUIRE_FALSE(calls.process->durable.persist(fork.infos[0].id, kAlice));
  CHECK_FALSE(calls.process->store.image(id, kAlice, stored, true, true).refusal);

  const int way = GENERATE(0, 1, 2);
  if (way == 0) {
    const auto again = calls.process->finish(tokens_call(5, 40, 3), id, named("b"));
    CHECK(again->recorded ==
          undisturbed(calls.transformer, {tokens_call(4, 6, 1), tokens_call(5, 40, 3)})->recorded);
  } else {
    if (way == 1) {
      expects.expected_position = 14;
      const auto other = calls.process->finish(tokens_call(1, 4, 9), id, expects);
      CHECK(other->recorded[0][0].position == 15);
    } else {
      REQUIRE_FALSE(calls.process->durable.rewind(id, kAlice, 14, std::nullopt).refusal);
      expects.expected_position.reset();
      calls.process->finish(tokens_call(1, 4, 9), id, expects);
    }
    const auto history = calls.process->store.history(id, kAlice, 0, std::nullopt);
    CHECK(history.tokens.size() == 19);
    CHECK_FALSE(calls.process->durable.find(id, kAlice)->interrupted);
  }
}

TEST_CASE("a call that was cut off resumes where it was when it is repeated", "[durable]") {
  const Durability level = GENERATE(Durability::kCall, Durability::kInput, Durability::kToken);
  const bool dies = GENERATE(false, true);
  const int how = GENERATE(0, 1, 2);
  Calls calls(level);
  const std::string id = calls.kept();
  GenerationRequest request = tokens_call(5, 40, 3);
  if (how == 1) request.deadline = calls.clock.now() + std::chrono::seconds(1);
  const auto started = calls.process->call(request, id, named("a"));
  for (int i = 0; i < 12; ++i) calls.process->model->scheduler->run_one_step();
  if (how == 0) calls.process->model->scheduler->cancel(started.handle);
  if (how == 1) calls.clock.advance(std::chrono::seconds(1));
  if (how == 2) calls.process->model->scheduler->stop();
  calls.process->run();
  calls.process->durable.write();
  CHECK(started.sink->outcome == (how == 0   ? RequestOutcome::kCancelled
                                  : how == 1 ? RequestOutcome::kDeadline
                                             : RequestOutcome::kMoved));
  const std::int64_t position = calls.stored(id);
  if (how == 2) {
    CHECK_FALSE(started.sink->results[0]);
  } else {
    CHECK(position == started.sink->result().position);
  }
  CHECK(position < 45);
  if (dies || how == 2) calls.begin();
  // One that was handed over has not ended: no other call may come in between.
  const bool is_open = how == 2 && level != Durability::kCall;
  CHECK(calls.process->durable.find(id, kAlice)->interrupted.has_value() == is_open);
  request.deadline.reset();
  const auto expected = undisturbed(calls.transformer, {request});
  if (GENERATE(false, true)) {  // cut off once more, before it has come as far
    const auto brief = calls.process->call(request, id, named("a"));
    REQUIRE_FALSE(brief.refusal);
    calls.process->model->scheduler->cancel(brief.handle);
    calls.process->run();
    CHECK(brief.sink->outcome == RequestOutcome::kCancelled);
    CHECK(calls.stored(id) == position);
    CHECK(calls.process->durable.find(id, kAlice)->interrupted.has_value() == is_open);
  }
  IdempotencyKey rest = named("a");
  rest.from_position = position;
  const auto again = calls.process->finish(request, id, rest);
  const auto& all = expected->recorded[0];
  CHECK(again->recorded[0] == std::vector<RecordedToken>(all.begin() + (position - 5), all.end()));
  CHECK(calls.stored(id) == 45);
}

TEST_CASE("a repeat that is cut off before the tokens that its client has leaves the call open",
          "[durable]") {
  Calls calls(Durability::kInput);
  calls.options.lazy_tokens = 1000;  // its tokens are not stored before its end
  calls.begin();
  const std::string id = calls.kept();
  const GenerationRequest request = tokens_call(5, 60, 3);
  const auto started = calls.process->call(request, id, named("a"));
  calls.process->durable.write();
  while (started.sink->recorded[0].size() < 7) calls.process->model->scheduler->run_one_step();
  IdempotencyKey rest = named("a");
  rest.from_position = started.sink->recorded[0].back().position + 1;
  calls.begin();
  REQUIRE(calls.stored(id) == 0);
  const int steps = GENERATE(0, 1);
  const auto brief = calls.process->call(request, id, rest);
  REQUIRE_FALSE(brief.refusal);
  for (int i = 0; i < steps; ++i) calls.process->model->scheduler->run_one_step();
  calls.process->model->scheduler->cancel(brief.handle);
  calls.process->run();
  CHECK(brief.sink->outcome == RequestOutcome::kCancelled);
  CHECK(brief.sink->recorded[0].empty());
  CHECK(calls.process->call(tokens_call(1, 4, 9), id, named("b")).refusal.error ==
        SessionError::kCallInterrupted);
  const auto again = calls.process->finish(request, id, rest);
  const auto expected = undisturbed(calls.transformer, {request})->recorded[0];
  std::vector<RecordedToken> shown = started.sink->recorded[0];
  shown.resize(static_cast<std::size_t>(rest.from_position - shown.front().position));
  shown.insert(shown.end(), again->recorded[0].begin(), again->recorded[0].end());
  CHECK(shown == expected);
}

TEST_CASE("a repeat of a call that the session has forgotten is not run as a new one",
          "[durable]") {
  Calls calls(GENERATE(Durability::kCall, Durability::kInput, Durability::kToken));
  const std::string id = calls.kept();
  const auto first = calls.process->finish(tokens_call(5, 8, 3), id, named("a"));
  for (std::size_t i = 0; i < kLastCalls; ++i) {
    calls.process->finish(tokens_call(1, 4, 9), id, named("later " + std::to_string(i)));
  }
  IdempotencyKey rest = named("a");
  rest.from_position = first->recorded[0].back().position;
  const std::int64_t position = calls.stored(id);
  const auto repeated = calls.process->call(tokens_call(5, 8, 3), id, rest);
  CHECK(repeated.refusal.error == SessionError::kPositionMismatch);
  CHECK(calls.stored(id) == position);
}

}  // namespace
}  // namespace lintel::testing
