// SPDX-License-Identifier: Apache-2.0
// Calls so long that states are stored on their way: how much a repeat reads again, and that no
// token differs.
#include <algorithm>
#include <vector>

#include "tests/server/sessions/persistence/persistent_requests.h"
#include "tests/support/catch.h"
#include "tests/support/sanitized.h"

namespace lintel::testing {
namespace {

constexpr std::int64_t kBetweenStates = kSanitized ? 100 : 256;
constexpr std::int64_t kTokens = kSanitized ? 1200 : 3000;  // more than four states in its half

GenerationRequest long_call(std::uint64_t seed, bool is_text = false) {
  GenerationRequest request = tokens_call(5, kTokens, seed);
  request.top_log2_probs = 2;
  if (is_text) {
    request.prompt = {3, 1, 4, 1, 5};
    request.stop.strings = {"no text has this", std::string(200, 'a')};
    return request;
  }
  request.sampling.repetition_penalty = 1.2f;
  request.sampling.frequency_penalty = 0.1f;
  request.sampling.penalty_window = 40;
  for (const std::int64_t at : {7, 8, 300, 511, 512, 700, 1100}) {
    request.given.push_back({at + 100, static_cast<std::int32_t>(at % 50)});
  }
  return request;
}

struct LongCalls : Calls {
  explicit LongCalls(Durability level,
                     std::shared_ptr<const Transformer> model = tiny_model(TinyModel::kTokens))
      : Calls(level, std::move(model)) {
    options.park.tokens = kBetweenStates;
    begin();
  }
  // Until the session has so many tokens.
  void run_to(const std::string& id, std::int64_t tokens) {
    for (int steps = 0; process->store.get(id, kAlice)->num_tokens < tokens; ++steps) {
      REQUIRE(steps < 2 * tokens);
      process->model->scheduler->run_one_step();
      process->durable.write();
    }
  }
  std::vector<std::int64_t> states(const std::string& id) {
    std::vector<std::int64_t> positions;
    for (const auto& state : storage.find(id, kAlice).row.states) {
      if (!state.is_pages) positions.push_back(state.position);
    }
    return positions;
  }
};

// Checks a session that had a call before: the call is killed on its way, twice, and each time its
// client asks for the tokens it has not seen, and for `lag` more. The second time it is cut off.
void require_few_are_read_again(const std::shared_ptr<const Transformer>& model, Durability level,
                                SessionOptions session, bool is_text, std::int64_t lag) {
  CAPTURE(static_cast<int>(level), lag);
  LongCalls calls(level, model);
  session.max_tokens = 2 * kTokens;
  const std::string id = calls.kept(session);
  GenerationRequest before = tokens_call(4, 90, 1);
  if (is_text) before.prompt = {3, 1, 4};
  calls.process->finish(before, id, named("before"));
  const GenerationRequest request = long_call(3, is_text);
  const auto twin = undisturbed(model, {before, request}, session);
  const std::vector<RecordedToken>& expected = twin->recorded[0];
  std::vector<RecordedToken> seen;
  IdempotencyKey terms = named("a");
  const auto take = [&](const RecordingSink& sink) {
    seen.insert(seen.end(), sink.recorded[0].begin(), sink.recorded[0].end());
    seen.resize(seen.size() - std::min<std::size_t>(seen.size(), static_cast<std::size_t>(lag)));
    terms.from_position = seen.empty() ? 0 : seen.back().position + 1;
  };
  {
    const auto call = calls.process->call(request, id, terms);
    REQUIRE_FALSE(call.refusal);
    calls.run_to(id, kTokens / 2);
    take(*call.sink);
    calls.begin();
  }
  const bool has_states = model->appends_state();
  CHECK(calls.states(id).size() == (has_states ? kMostStates : 0));
  {
    const auto call = calls.process->call(request, id, terms);
    REQUIRE_FALSE(call.refusal);
    calls.run_to(id, kTokens * 3 / 4);
    calls.process->model->scheduler->cancel(call.handle);
    calls.process->run();
    REQUIRE(call.sink->outcome == RequestOutcome::kCancelled);
    take(*call.sink);
    if (lag > 0) calls.begin();
  }
  const auto last = calls.process->finish(request, id, terms);
  seen.insert(seen.end(), last->recorded[0].begin(), last->recorded[0].end());
  REQUIRE(seen == expected);
  const SampleResult& got = last->result();
  const SampleResult& wanted = twin->result();
  CHECK(got.digest == wanted.digest);
  CHECK(got.reason == wanted.reason);
  CHECK(got.position == wanted.position);
  CHECK(got.reused_tokens == wanted.reused_tokens);
  CHECK(got.prompt_tokens == wanted.prompt_tokens);
  CHECK(got.generated_tokens == wanted.generated_tokens);
  CHECK(got.given_tokens == wanted.given_tokens);
  CHECK(got.seed == wanted.seed);
  // A window reads each of its halves again in any case.
  if (has_states && session.window == 0) {
    const std::int64_t stops = is_text ? kMaxStopStringBytes : 1;
    CHECK(got.replayed_tokens <= 2 * (kBetweenStates + lag + stops));
    CHECK(calls.process->durable.stats().replayed_resumed <=
          static_cast<std::uint64_t>(4 * (kBetweenStates + lag + stops)));
  }
  // The session continues as if it had not been interrupted.
  GenerationRequest next = tokens_call(2, 30, 5);
  if (is_text) next.prompt = {2, 7};
  CHECK(calls.process->finish(next, id, named("next"))->recorded ==
        undisturbed(model, {before, request, next}, session)->recorded);
}

TEST_CASE("a killed long call resumes from a state stored on its way: every kind", "[durable]") {
  const std::string attention = GENERATE(from_range(attention_types()));
  const Durability level = GENERATE(Durability::kInput, Durability::kToken);
  CAPTURE(attention);
  require_few_are_read_again(tiny_model(TinyModel::kTokens, attention), level, {}, false, 0);
}

TEST_CASE("a killed long call resumes from a state stored on its way: KV pages", "[durable]") {
  const KvType type = GENERATE(KvType::kF32, KvType::kBf16, KvType::kInt8);
  const std::int64_t lag = GENERATE(0, 300);
  require_few_are_read_again(hybrid_model(type), Durability::kInput, {}, false, lag);
}

TEST_CASE("a killed long call resumes from a state stored on its way: every weight", "[durable]") {
  const WeightType type = GENERATE(WeightType::kF32, WeightType::kBf16, WeightType::kInt8);
  const std::int64_t lag = GENERATE(1, 300, 900);
  require_few_are_read_again(tiny_model(TinyModel::kTokens, "linear", type), Durability::kInput, {},
                             false, lag);
}

TEST_CASE("a killed long call resumes from a state stored on its way: in a window", "[durable]") {
  const std::string attention = GENERATE("linear", "softmax");
  const Durability level = GENERATE(Durability::kInput, Durability::kToken);
  require_few_are_read_again(tiny_model(TinyModel::kTokens, attention), level, {.window = 64},
                             false, GENERATE(0, 100));
}

TEST_CASE("a killed long call resumes from a state stored on its way: of text", "[durable]") {
  static const auto model = changed_model(
      TinyModel::kBytes, [](ModelConfig& config) { config.max_length = 3 * kTokens; },
      [](ModelWeights&) {});
  require_few_are_read_again(model, Durability::kInput, {}, true, GENERATE(0, 400));
}

TEST_CASE("a call longer than the history in memory is repeated once it was killed or cut off",
          "[durable]") {
  const Durability level = GENERATE(Durability::kCall, Durability::kInput, Durability::kToken);
  const bool dies = GENERATE(false, true);
  CAPTURE(static_cast<int>(level), dies);
  LongCalls calls(level);
  const SessionOptions session{.max_tokens = 9000, .history_tokens = 1024};
  const std::string id = calls.kept(session);
  GenerationRequest request = tokens_call(5, 6000, 3);
  const auto twin = undisturbed(calls.transformer, {request}, session);
  const auto call = calls.process->call(request, id, named("a"));
  calls.run_to(id, 4000);
  if (!dies) {
    calls.process->model->scheduler->cancel(call.handle);
    calls.process->run();
  }
  std::vector<RecordedToken> seen = call.sink->recorded[0];
  if (dies) calls.begin();
  IdempotencyKey terms = named("a");
  terms.from_position = seen.back().position + 1;
  const auto rest = calls.process->finish(request, id, terms);
  seen.insert(seen.end(), rest->recorded[0].begin(), rest->recorded[0].end());
  CHECK(seen == twin->recorded[0]);
  CHECK(rest->result().generated_tokens == 6000);
  CHECK(rest->result().digest == twin->result().digest);
}

TEST_CASE("a repeat ends at the stop that an earlier run reached", "[durable]") {
  const auto model = tiny_model(TinyModel::kTokens);
  GenerationRequest request = tokens_call(5, 900, 3);
  const auto whole = undisturbed(model, {request});
  // A token that comes late for the first time.
  const std::vector<std::int32_t> tokens = whole->tokens();
  std::size_t at = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (std::find(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(i), tokens[i]) ==
        tokens.begin() + static_cast<std::ptrdiff_t>(i)) {
      at = i;
    }
  }
  request.stop.tokens = {tokens[at]};
  request.stop.include_in_output = GENERATE(true, false);
  LongCalls calls(Durability::kToken, model);
  const std::string id = calls.kept();
  const auto twin = undisturbed(model, {request});
  calls.process->finish(request, id, named("a"));
  const std::int64_t end = twin->result().position;
  if (GENERATE(true, false)) calls.begin();
  IdempotencyKey terms = named("a");
  terms.from_position = end;
  const auto again = calls.process->finish(request, id, terms);
  CHECK(again->recorded[0].empty());
  CHECK(again->result().reason == twin->result().reason);
  CHECK(again->result().position == end);
  CHECK(calls.stored(id) == end);
  CHECK(calls.process->finish(tokens_call(2, 20, 5), id, named("b"))->recorded ==
        undisturbed(model, {request, tokens_call(2, 20, 5)})->recorded);
}

TEST_CASE("states that a call can resume from are thinned, but kept near its end", "[durable]") {
  std::vector<SessionStorage::StateRef> states{{.position = 90}};
  for (std::int64_t position = 1024; position <= 64 * 1024; position += 1024) {
    add_states(states, {{.position = position}}, /*start=*/100);
    REQUIRE(states.size() <= kMostStates);
    CHECK(states.front().position == 90);
    CHECK(states.back().position == position);
    CHECK(std::ranges::is_sorted(states, {}, &SessionStorage::StateRef::position));
    // Going back a little takes reading little.
    if (position > 2048) CHECK(states[2].position >= position - 2048);
  }
}

TEST_CASE("a call stores a state for each so many tokens", "[durable]") {
  const Durability level = GENERATE(Durability::kCall, Durability::kInput, Durability::kToken);
  LongCalls calls(level);
  const std::string id = calls.kept({.max_tokens = 2 * kTokens});
  const auto call = calls.process->call(tokens_call(5, kTokens, 3), id, named("a"));
  calls.run_to(id, kTokens - 10);
  const std::uint64_t stored = calls.process->durable.stats().states_stored;
  CHECK(stored <= static_cast<std::uint64_t>(kTokens / kBetweenStates));
  CHECK((stored > 0) == (level != Durability::kCall));  // which writes nothing before its end
  calls.process->run();
  CHECK(call.sink->outcome == RequestOutcome::kDone);
}

}  // namespace
}  // namespace lintel::testing
