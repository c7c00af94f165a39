// Calls on sessions that outlive the process.
#include "server/durable/durable_call.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>
#include <vector>

#include "tests/server/durable/durable_process.h"
#include "tests/server/durable/dying_vault.h"

namespace lintel::testing {
namespace {

CallTerms named(const std::string& id, std::uint8_t request = 1) {
  CallTerms terms{.id = id, .log2_probs = true};
  terms.request.bytes[0] = std::byte{request};
  return terms;
}

GenerationRequest tokens_call(std::size_t prompt, std::int64_t values, std::uint64_t seed) {
  GenerationRequest request = tokens_request(prompt, values, seed);
  request.log2_probs = true;
  return request;
}

// A vault that outlives its processes.
struct Calls {
  explicit Calls(Durability level,
                 std::shared_ptr<const Transformer> model = tiny_model(TinyModel::kTokens))
      : transformer(std::move(model)), durability(level) {
    begin();
  }
  ~Calls() {
    dying->die();
    process.reset();
  }
  // The process dies, and another one begins.
  void begin() {
    if (dying) dying->die();
    process.reset();
    vault.end_claims();
    dying.emplace(vault);
    process.emplace(*dying, transformer, clock, options);
  }
  std::string kept(SessionOptions session = {.max_values = 1000}) {
    session.durability = durability;
    const std::string id = process->create(session);
    REQUIRE_FALSE(process->durable.keep(id, kAlice));
    return id;
  }
  std::int64_t stored(const std::string& id) { return vault.find(id, kAlice).row.position; }

  const std::shared_ptr<const Transformer> transformer;
  const Durability durability;
  ManualClock clock;
  MemoryVault vault{clock};
  DurableSessions::Options options{.lazy_values = 7, .park_tokens = 20, .threads = 0};
  std::optional<DyingVault> dying;
  std::optional<DurableProcess> process;
};

// The same without a store.
std::shared_ptr<RecordingSink> undisturbed(const std::shared_ptr<const Transformer>& model,
                                           const std::vector<GenerationRequest>& calls,
                                           SessionOptions session = {.max_values = 1000}) {
  Core core(model, {.workers = 0, .speculation = Speculation::kOff});
  const std::string id = core.store.create("tiny", model, session).info.id;
  std::shared_ptr<RecordingSink> last;
  for (const GenerationRequest& call : calls) last = core.generate(call, id);
  return last;
}

TEST_CASE("a call's end is told when it is durable, and the session is free then", "[durable]") {
  const Durability level = GENERATE(Durability::kCall, Durability::kInput, Durability::kToken);
  Calls calls(level);
  const std::string id = calls.kept();
  bool was_free = false;
  const auto sink = std::make_shared<RecordingSink>();
  sink->when_finished = [&] {
    was_free = !calls.process->store.get(id, kAlice)->busy;
    CHECK(calls.stored(id) == 15);
  };
  const auto begun = calls.process->call(tokens_call(5, 10, 3), id, named("a"), sink);
  REQUIRE_FALSE(begun.refusal);
  calls.dying->hold_commits(true);
  while (calls.process->model->scheduler->run_one_step()) calls.process->durable.write();
  calls.process->durable.write();
  CHECK(sink->finishes == 0);
  CHECK(calls.process->store.get(id, kAlice)->busy);
  CHECK(calls.process->store.lease(id, kAlice).refusal.error == SessionError::kBusy);
  CHECK(sink->values[0].size() == (level == Durability::kToken ? 0 : 10));
  for (int i = 0; i < 3; ++i) {  // what was held back lets more be written
    calls.dying->hold_commits(false);
    calls.process->durable.write();
  }
  CHECK(sink->finishes == 1);
  CHECK(was_free);
  CHECK(sink->values == undisturbed(calls.transformer, {tokens_call(5, 10, 3)})->values);
  CHECK(sink->result().digest == calls.process->store.get(id, kAlice)->digest);
}

TEST_CASE("values are seen when they may be: at once, once the call is durable, once they are",
          "[durable]") {
  const Durability level = GENERATE(Durability::kCall, Durability::kInput, Durability::kToken);
  Calls calls(level);
  const std::string id = calls.kept();
  calls.dying->hold_commits(true);
  const auto begun = calls.process->call(tokens_call(5, 30, 3), id, named("a"));
  Scheduler& scheduler = *calls.process->model->scheduler;
  for (int i = 0; i < 6; ++i) scheduler.run_one_step();
  const auto seen = [&] { return begun.sink->values[0].size(); };
  const std::size_t drawn =
      static_cast<std::size_t>(calls.process->store.get(id, kAlice)->num_values) - 5;
  CHECK(drawn >= 5);
  CHECK(seen() == (level == Durability::kCall ? drawn : 0));
  calls.dying->hold_commits(false);  // the beginning
  CHECK(seen() == (level == Durability::kToken ? 0 : drawn));
  calls.process->durable.write();
  CHECK(seen() == drawn);
  // INPUT: they were so many that they are written; CALL: nothing before the end.
  const std::int64_t stored = calls.stored(id);
  CHECK(stored == (level == Durability::kCall ? 0
                   : level == Durability::kToken || drawn + 5 >= 7
                       ? static_cast<std::int64_t>(drawn) + 5
                       : 0));
  calls.process->run();
  CHECK(begun.sink->values == undisturbed(calls.transformer, {tokens_call(5, 30, 3)})->values);
}

TEST_CASE("the beginning of a TOKEN call goes with its first values, or alone after the interval",
          "[durable]") {
  Calls calls(Durability::kToken);
  const std::string id = calls.kept();
  const bool has_values = GENERATE(true, false);
  const std::uint64_t before = calls.vault.health().writes;
  calls.process->call(tokens_call(5, 30, 3), id, named("a"));
  calls.process->durable.write();
  CHECK(calls.vault.health().writes == before);
  if (has_values) {
    calls.process->model->scheduler->run_one_step();
  } else {
    calls.clock.advance(calls.options.commit_interval);
  }
  calls.process->durable.write();
  CHECK(calls.vault.health().writes == before + (has_values ? 2 : 1));
  CHECK_FALSE(calls.vault.find(id, kAlice).row.call.empty());
  CHECK((calls.stored(id) > 0) == has_values);
  calls.begin();  // either way the call is there, and goes on
  CHECK(calls.process->finish(tokens_call(5, 30, 3), id, named("a"))->values ==
        undisturbed(calls.transformer, {tokens_call(5, 30, 3)})->values);
}

TEST_CASE("an INPUT call's values are written once they are old enough", "[durable]") {
  Calls calls(Durability::kInput);
  calls.options.lazy_values = 1000;
  calls.begin();
  const std::string id = calls.kept();
  calls.process->call(tokens_call(5, 30, 3), id, named("a"));
  for (int i = 0; i < 4; ++i) calls.process->model->scheduler->run_one_step();
  calls.process->durable.write();
  CHECK(calls.stored(id) == 0);
  calls.clock.advance(std::chrono::seconds(1));
  calls.process->durable.write();
  CHECK(calls.stored(id) == calls.process->store.get(id, kAlice)->num_values);
  calls.process->run();
}

TEST_CASE("a CALL call that is longer than its history is written down on its way", "[durable]") {
  Calls calls(Durability::kCall);
  const SessionOptions session{.max_values = 6000, .history_tokens = 1024};
  const std::string id = calls.kept(session);
  const auto call = calls.process->call(tokens_call(5, 5000, 3), id, named("a"));
  const auto run_to = [&](std::int64_t position) {
    while (calls.process->store.get(id, kAlice)->num_values < position) {
      calls.process->model->scheduler->run_one_step();
      calls.process->durable.write();
    }
  };
  run_to(500);
  CHECK(calls.stored(id) == 0);
  run_to(3000);
  CHECK(calls.stored(id) > 2000);
  calls.process->run();
  REQUIRE(call.sink->outcome == RequestOutcome::kDone);
  const auto twin =
      undisturbed(calls.transformer, {tokens_call(5, 5000, 3), tokens_call(1, 40, 4)}, session);
  CHECK(calls.process->finish(tokens_call(1, 40, 4), id, named("b"))->tokens() == twin->tokens());
  CHECK(calls.stored(id) == 5046);
}

TEST_CASE("at a call's end the state is stored where many values came, or memory is short",
          "[durable]") {
  Calls calls(Durability::kInput);
  calls.options.park_tokens = 80;
  calls.begin();
  const std::string id = calls.kept();
  const auto states = [&] { return calls.vault.find(id, kAlice).row.states; };
  calls.process->finish(tokens_call(5, 60, 3), id, named("a"));
  CHECK(states().empty());
  calls.process->finish(tokens_call(5, 20, 3), id, named("b"));
  REQUIRE(states().size() == 1);
  CHECK(states()[0].position == 90);
  calls.process->finish(tokens_call(1, 20, 3), id, named("c"));
  CHECK(states().size() == 1);
  {
    // Another's session takes all but a tenth of what there is.
    const auto others = calls.process->store.admit_bytes("bob", (1u << 30) / 10 * 9).reservation;
    calls.process->finish(tokens_call(1, 4, 3), id, named("d"));
    REQUIRE(states().size() == 2);
    CHECK(states()[1].position == 116);
    calls.process->finish(tokens_call(1, 18, 3), id, named("e"));
    CHECK(states().back().position == 116);
  }
  calls.begin();
  CHECK_FALSE(calls.process->durable.bring(id, kAlice));
  CHECK(calls.process->durable.stats().brought_from_slot == 1);
}

TEST_CASE("a stream that holds too much back pauses, and goes on", "[durable]") {
  Calls calls(Durability::kToken);
  const std::string id = calls.kept({.max_values = 20'000});
  calls.dying->hold_commits(true);
  const auto begun = calls.process->call(tokens_call(5, 6000, 3), id, named("a"));
  while (calls.process->model->scheduler->run_one_step()) {
  }
  CHECK(begun.sink->values[0].empty());
  CHECK(calls.process->store.get(id, kAlice)->num_values <
        static_cast<std::int64_t>(DurableCall::kMostHeld) + 100);
  calls.dying->hold_commits(false);
  calls.process->run();
  calls.process->run();
  CHECK(begun.sink->finishes == 1);
  CHECK(begun.sink->values[0].size() == 6000);
  // A reader that is slow makes it pause as well.
  struct SlowSink final : RecordingSink {
    bool has_room() const override { return room > 0; }
  };
  const auto slow = std::make_shared<SlowSink>();
  slow->room = 10;
  const auto second = calls.process->call(tokens_call(1, 600, 3), id, named("b"), slow);
  calls.process->run();
  CHECK(slow->finishes == 0);
  CHECK(slow->values[0].size() < 60);
  slow->room = 10'000;
  calls.process->model->scheduler->resume(second.handle);
  calls.process->run();
  CHECK(slow->finishes == 1);
}

TEST_CASE("a repeat of a call that ended gives the same once more, from where it is wanted",
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
  const SessionVault::Row row = calls.vault.find(id, kAlice).row;
  if (dies) calls.begin();
  request.seed = 77;  // its own counts
  const auto again = calls.process->finish(request, id, named("b"));
  CHECK(again->values == first->values);
  CHECK(again->result().seed == first->result().seed);
  CHECK(again->result().digest == first->result().digest);
  CHECK(again->result().generated_tokens == first->result().generated_tokens);
  CallTerms rest = named("b");
  rest.from_position = 30;
  const auto part = calls.process->finish(request, id, rest);
  CHECK(part->values[0] == std::vector<Value>(first->values[0].end() - 28, first->values[0].end()));
  CHECK(calls.vault.find(id, kAlice).row.digest == row.digest);
  CHECK(calls.vault.find(id, kAlice).row.last_calls == row.last_calls);
  // Then the session goes on.
  const auto next = calls.process->finish(tokens_call(2, 9, 5), id, named("c"));
  GenerationRequest same = request;
  same.seed = 3;
  CHECK(next->values ==
        undisturbed(calls.transformer, {tokens_call(4, 9, 1), same, tokens_call(2, 9, 5)})->values);
}

TEST_CASE("one of the last calls is told again from the history", "[durable]") {
  Calls calls(Durability::kInput);
  const bool dies = GENERATE(false, true);
  const std::string id = calls.kept();
  GenerationRequest request = tokens_request(5, 40, 3);
  request.given = {{9, 1}, {10, 2}, {20, 3}};
  const auto first = calls.process->finish(request, id, {.id = "a"});
  for (const char* const name : {"b", "c", "d"}) {
    calls.process->finish(tokens_request(2, 5, 4), id, {.id = name});
  }
  if (dies) calls.begin();
  const auto again = calls.process->call(request, id, {.id = "a"});
  REQUIRE_FALSE(again.refusal);
  CHECK(again.sink->values == first->values);
  CHECK(again.sink->result().digest == first->result().digest);
  CHECK(again.sink->result().position == 45);
  CHECK(again.sink->result().seed == first->result().seed);
  CHECK_FALSE(calls.process->store.get(id, kAlice)->busy);
  CallTerms more{.id = "a", .log2_probs = true};
  CHECK(calls.process->call(request, id, more).refusal.error == SessionError::kNoProbabilities);
  CHECK(calls.process->call(request, id, named("a", 2)).refusal.error ==
        SessionError::kCallDiffers);
  CHECK_FALSE(calls.process->store.get(id, kAlice)->busy);
  // Four are remembered.
  calls.process->finish(tokens_request(2, 5, 4), id, {.id = "e"});
  const std::int64_t position = calls.stored(id);
  const auto anew = calls.process->finish(tokens_request(1, 5, 3), id, {.id = "a"});
  CHECK(anew->values[0][0].position == position + 1);
}

TEST_CASE("of a call that is told again the prompt is not, whether it was read or not",
          "[durable]") {
  SessionHistory history({.vocab_size = 50, .max_values = 20});
  for (int i = 0; i < 12; ++i) {
    history.append(i, i < 7 ? ValueSource::kPrompt : ValueSource::kSampled);
  }
  LastCall call{.id = "a", .start = 2, .end = 12, .shown_end = 11};
  call.result.cached_tokens = 3;
  call.result.prompt_tokens = 2;
  const auto calls = decode_last_calls(encode_last_calls({call}));
  REQUIRE(calls);
  const auto past = past_call(calls->at(0), history, /*echo_prompt=*/false, 0);
  REQUIRE(past);
  CHECK(past->first == 7);
  CHECK(past->values == std::vector<std::int32_t>{7, 8, 9, 10});
  CHECK(past_call(call, history, /*echo_prompt=*/true, 0)->first == 2);
  CHECK(past_call(call, history, /*echo_prompt=*/true, 9)->values.size() == 2);
  CHECK(past_call(call, history, /*echo_prompt=*/false, 30)->values.empty());
}

TEST_CASE("a call that was interrupted is repeated, given up, or in the way", "[durable]") {
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
  const auto refused = [&](const CallTerms& terms) {
    const auto call = calls.process->call(tokens_call(1, 4, 9), id, terms);
    CHECK_FALSE(calls.process->store.get(id, kAlice)->busy);
    return call.refusal;
  };
  CHECK(refused(named("c")).error == SessionError::kCallInterrupted);
  CHECK(refused({}).error == SessionError::kCallInterrupted);
  CHECK(refused({}).lowest == 10);
  CHECK(refused({}).highest == stored);
  CHECK(refused(named("b", 2)).error == SessionError::kCallDiffers);
  CallTerms expects = named("c");
  for (const std::int64_t position : {std::int64_t{9}, stored + 1}) {
    expects.expected_position = position;
    CHECK(refused(expects).error == SessionError::kPositionMismatch);
    CHECK(refused(expects).highest == stored);
  }
  // Copies of what is stored.
  const auto fork = calls.process->store.fork(id, kAlice, 12, 1);
  REQUIRE_FALSE(fork.refusal);
  REQUIRE_FALSE(calls.process->durable.keep(fork.infos[0].id, kAlice));
  CHECK_FALSE(calls.process->store.image(id, kAlice, stored, true, true).refusal);

  const int way = GENERATE(0, 1, 2);
  if (way == 0) {
    const auto again = calls.process->finish(tokens_call(5, 40, 3), id, named("b"));
    CHECK(again->values ==
          undisturbed(calls.transformer, {tokens_call(4, 6, 1), tokens_call(5, 40, 3)})->values);
  } else {
    if (way == 1) {
      expects.expected_position = 14;
      const auto other = calls.process->finish(tokens_call(1, 4, 9), id, expects);
      CHECK(other->values[0][0].position == 15);
    } else {
      REQUIRE_FALSE(calls.process->durable.rewind(id, kAlice, 14, std::nullopt).refusal);
      expects.expected_position.reset();
      calls.process->finish(tokens_call(1, 4, 9), id, expects);
    }
    const auto history = calls.process->store.history(id, kAlice, 0, std::nullopt);
    CHECK(history.values.size() == 19);
    CHECK_FALSE(calls.process->durable.find(id, kAlice)->interrupted);
  }
}

TEST_CASE("a call whose values would come out otherwise is not drawn anew", "[durable]") {
  const Durability level = GENERATE(Durability::kInput, Durability::kToken);
  Calls calls(level);
  const std::string id = calls.kept();
  calls.process->call(tokens_call(5, 40, 3), id, named("b"));
  for (int i = 0; i < 12; ++i) calls.process->model->scheduler->run_one_step();
  calls.process->durable.write();
  calls.begin();
  calls.process->model->numerics.hex = "4567";
  const auto again = calls.process->call(tokens_call(5, 40, 3), id, named("b"));
  if (level == Durability::kToken) {  // whatever was seen is stored
    CHECK_FALSE(again.refusal);
    calls.process->run();
  } else {
    CHECK(again.refusal.error == SessionError::kNumericsChanged);
    CHECK(again.refusal.highest == calls.stored(id));
    CallTerms expects = named("c");
    expects.expected_position = calls.stored(id);
    calls.process->finish(tokens_call(1, 4, 9), id, expects);
  }
}

TEST_CASE("a call that was cut off goes on where it was when it is repeated", "[durable]") {
  const Durability level = GENERATE(Durability::kCall, Durability::kInput, Durability::kToken);
  const bool dies = GENERATE(false, true);
  const int how = GENERATE(0, 1, 2);
  Calls calls(level);
  const std::string id = calls.kept();
  GenerationRequest request = tokens_call(5, 40, 3);
  if (how == 1) request.deadline = calls.clock.now() + std::chrono::seconds(1);
  const auto begun = calls.process->call(request, id, named("a"));
  for (int i = 0; i < 12; ++i) calls.process->model->scheduler->run_one_step();
  if (how == 0) calls.process->model->scheduler->cancel(begun.handle);
  if (how == 1) calls.clock.advance(std::chrono::seconds(1));
  if (how == 2) calls.process->model->scheduler->stop();
  calls.process->run();
  calls.process->durable.write();
  CHECK(begun.sink->outcome == (how == 0   ? RequestOutcome::kCancelled
                                : how == 1 ? RequestOutcome::kDeadline
                                           : RequestOutcome::kShutdown));
  const std::int64_t position = calls.stored(id);
  CHECK(position == begun.sink->result().position);
  CHECK(position < 45);
  if (dies || how == 2) calls.begin();
  CHECK_FALSE(calls.process->durable.find(id, kAlice)->interrupted);
  request.deadline.reset();
  const auto expected = undisturbed(calls.transformer, {request});
  if (GENERATE(false, true)) {  // cut off once more, before it has come as far
    const auto brief = calls.process->call(request, id, named("a"));
    REQUIRE_FALSE(brief.refusal);
    calls.process->model->scheduler->cancel(brief.handle);
    calls.process->run();
    CHECK(brief.sink->outcome == RequestOutcome::kCancelled);
    CHECK(calls.stored(id) == position);
    CHECK_FALSE(calls.process->durable.find(id, kAlice)->interrupted);
  }
  CallTerms rest = named("a");
  rest.from_position = position;
  const auto again = calls.process->finish(request, id, rest);
  const auto& all = expected->values[0];
  CHECK(again->values[0] == std::vector<Value>(all.begin() + (position - 5), all.end()));
  CHECK(calls.stored(id) == 45);
}

TEST_CASE("a call ends when the store fails, the session is as the store has it, others go on",
          "[durable]") {
  const Durability level = GENERATE(Durability::kCall, Durability::kInput, Durability::kToken);
  const VaultOutcome outcome =
      GENERATE(VaultOutcome::kFull, VaultOutcome::kUnavailable, VaultOutcome::kBroken);
  CAPTURE(static_cast<int>(level), to_string(outcome));
  Calls calls(level);
  const std::string id = calls.kept();
  const std::string other = calls.process->create({.max_values = 1000});
  calls.process->finish(tokens_call(4, 6, 1), id, named("a"));
  const auto begun = calls.process->call(tokens_call(5, 40, 3), id, named("b"));
  for (int i = 0; i < 12; ++i) {
    calls.process->model->scheduler->run_one_step();
    calls.process->durable.write();
  }
  const std::int64_t stored = calls.stored(id);
  calls.dying->refuse_commits(outcome);
  for (int i = 0; i < 5; ++i) {
    calls.process->model->scheduler->run_one_step();
    calls.process->durable.write();
  }
  if (outcome != VaultOutcome::kBroken) {  // it may find room yet
    CHECK(begun.sink->finishes == 0);
    calls.clock.advance(std::chrono::seconds(2));
  }
  calls.process->run();
  calls.clock.advance(std::chrono::seconds(2));
  for (int i = 0; i < 4; ++i) calls.process->run();
  REQUIRE(begun.sink->finishes == 1);
  CHECK(begun.sink->outcome == (outcome == VaultOutcome::kFull     ? RequestOutcome::kStoreFull
                                : outcome == VaultOutcome::kBroken ? RequestOutcome::kStoreBroken
                                                                   : RequestOutcome::kStoreAway));
  CHECK_FALSE(begun.sink->results[0]);
  CHECK_FALSE(calls.process->store.get(id, kAlice));
  CHECK(calls.stored(id) == stored);
  if (level == Durability::kToken) {
    CHECK(static_cast<std::int64_t>(begun.sink->values[0].size()) == stored - 15);
  }
  CHECK(calls.process->generate(tokens_call(5, 40, 3), other)->values[0].size() == 40);

  calls.dying->refuse_commits(std::nullopt);
  if (outcome == VaultOutcome::kBroken) calls.begin();  // it needs a restart
  calls.process->durable.sweep();
  const auto again = calls.process->finish(tokens_call(5, 40, 3), id, named("b"));
  CHECK(again->values ==
        undisturbed(calls.transformer, {tokens_call(4, 6, 1), tokens_call(5, 40, 3)})->values);
}

TEST_CASE("a store that has no room for a moment costs time only", "[durable]") {
  const Durability level = GENERATE(Durability::kCall, Durability::kInput, Durability::kToken);
  Calls calls(level);
  const std::string id = calls.kept();
  const auto begun = calls.process->call(tokens_call(5, 40, 3), id, named("b"));
  for (int i = 0; i < 6; ++i) {
    calls.process->model->scheduler->run_one_step();
    calls.process->durable.write();
  }
  calls.dying->refuse_commits(VaultOutcome::kFull);
  calls.process->run();
  calls.clock.advance(std::chrono::milliseconds(900));
  calls.process->run();
  CHECK(begun.sink->finishes == 0);
  calls.dying->refuse_commits(std::nullopt);
  calls.process->run();
  REQUIRE(begun.sink->finishes == 1);
  CHECK(begun.sink->outcome == RequestOutcome::kDone);
  CHECK(begun.sink->values == undisturbed(calls.transformer, {tokens_call(5, 40, 3)})->values);
}

TEST_CASE("a call that cannot begin leaves nothing behind", "[durable]") {
  Calls calls(Durability::kInput);
  const std::string id = calls.kept();
  calls.process->finish(tokens_call(4, 6, 1), id, named("a"));
  SECTION("the store is full") {
    calls.dying->refuse_commits(VaultOutcome::kFull);
    const auto begun = calls.process->call(tokens_call(5, 4, 3), id, named("b"));
    calls.process->run();
    calls.process->run();
    CHECK(begun.sink->outcome == RequestOutcome::kStoreFull);
    CHECK(begun.sink->values[0].empty());
    calls.dying->refuse_commits(std::nullopt);
    calls.process->durable.sweep();
  }
  SECTION("it is prepared, and not run") {
    const bool is_repeat = GENERATE(false, true);
    auto leased = calls.process->durable.lease(id, kAlice);
    DurableSessions::OpenedCall opened;
    REQUIRE_FALSE(calls.process->durable.open_call(leased.lease, calls.process->model,
                                                   named(is_repeat ? "a" : "b"), opened));
    if (GENERATE(false, true)) {
      GenerationRequest request = tokens_call(5, 4, 3);
      REQUIRE_FALSE(opened.call->begin(leased.lease, request, 5));
    }
    leased.lease = SessionLease();
    calls.process->durable.write();
  }
  CHECK_FALSE(calls.process->durable.find(id, kAlice)->interrupted);
  CHECK(calls.stored(id) == 10);
  const auto next = calls.process->finish(tokens_call(5, 4, 3), id, named("b"));
  CHECK(next->values ==
        undisturbed(calls.transformer, {tokens_call(4, 6, 1), tokens_call(5, 4, 3)})->values);
}

}  // namespace
}  // namespace lintel::testing
