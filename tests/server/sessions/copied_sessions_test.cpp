// SPDX-License-Identifier: Apache-2.0
// Copies of sessions continue with the bits of a sequence that never left memory.
#include <string>
#include <vector>

#include "tests/server/support/harness.h"
#include "tests/support/catch.h"
#include "tests/support/sanitized.h"

namespace lintel::testing {
namespace {

const Owner kNobody;  // for callers that are not identified
constexpr std::int64_t kManyTokens = 300;
constexpr std::int64_t kStep = kSanitized ? 41 : 1;  // of the positions that are tried

// Tokens that each call of the long session makes.
GenerationRequest long_call(std::int64_t position, std::int64_t last) {
  GenerationRequest request;
  request.seed = static_cast<std::uint64_t>(position);
  request.prompt = {static_cast<std::int32_t>(position % 50), 7, 11};
  request.max_new_tokens = std::min<std::int64_t>(45, last - position - 3);
  const std::int64_t first_new = position + 3;
  for (const std::int64_t ahead : {2, 3, 4, 20}) request.given.push_back({first_new + ahead, 5});
  if (position % 2 == 0) request.sampling.repetition_penalty = 1.5f;
  if (position % 3 == 0) request.stop.tokens = {13, 17};
  return request;
}

// The call that continues a session with so many tokens: a function of the position.
GenerationRequest next_call(std::int64_t position) {
  GenerationRequest request;
  if (position == 0 || position % 3 == 1) request.prompt = {9};
  request.max_new_tokens = 3;
  request.seed = static_cast<std::uint64_t>(1000 + position);
  request.log2_probs = true;
  request.top_log2_probs = position % 5 == 0 ? 2 : 0;
  request.sampling.frequency_penalty = 0.5f;
  // Positions whose images hold the tokens that it counts have a window.
  request.sampling.penalty_window = position % 6 == 0 ? static_cast<int>(position / 3) : 0;
  if (position % 4 == 0) request.given = {{position + (request.prompt.empty() ? 1 : 2), 8}};
  return request;
}

struct Long {
  explicit Long(std::shared_ptr<const Transformer> model, SessionOptions session = {})
      : core(std::move(model), {.workers = 0, .speculation = Speculation::kOn}) {
    session.max_tokens = kManyTokens + 20;
    id = core.store.create("tiny", core.model, session).info.id;
    for (std::int64_t at = 0; at < kManyTokens; at = core.session_tokens(id)) {
      core.generate(long_call(at, kManyTokens), id);
      // Too few for another prompt.
      if (kManyTokens - core.session_tokens(id) < 4) break;
    }
    const auto history = core.store.history(id, kNobody, 0, std::nullopt);
    REQUIRE(history.tokens.size() >= kManyTokens - 4);
    tokens = history.tokens;
  }

  std::vector<RecordedToken> go_on(const std::string& session, std::int64_t position) {
    const auto sink = core.generate(next_call(position), session);
    REQUIRE(sink->outcome == RequestOutcome::kDone);
    REQUIRE(sink->result().reused_tokens == position);
    CHECK(core.store.remove(session).error == SessionError::kNone);
    return sink->recorded.front();
  }

  Core core;
  std::string id;
  std::vector<std::int32_t> tokens;
};

// Walks the same tokens one by one, and says at each position what comes next.
template <typename Check>
void at_every_position(const Transformer& model, const std::vector<std::int32_t>& tokens,
                       const Check& check) {
  SequenceState sequence = model.new_sequence();
  Workspace workspace = model.new_workspace(1);
  for (std::int64_t position = 0; position <= static_cast<std::int64_t>(tokens.size());
       ++position) {
    if (position > 0) {
      if (sequence.pending) {
        const BatchRow row{*sequence.pending, &sequence, /*wants_output=*/false};
        sequence.pending.reset();
        model.step(std::span(&row, 1), workspace);
      }
      const std::int32_t token = tokens[static_cast<std::size_t>(position - 1)];
      sequence.pending = token;
      if (!sequence.counts.empty()) sequence.counts.add(token);
    }
    const bool is_last = position == static_cast<std::int64_t>(tokens.size());
    if (position % kStep != 0 && !is_last) continue;
    CAPTURE(position);
    SequenceState copy = sequence.clone();
    GenerationRequest call = next_call(position);
    call.recent.assign(tokens.begin(), tokens.begin() + position);
    check(position, generate_naively(model, call, 0, copy).tokens);
  }
}

void require_copies_go_on(const std::shared_ptr<const Transformer>& model,
                          const SessionOptions& options, bool is_busy) {
  Long session(model, options);
  SessionManager& store = session.core.store;
  const std::string& id = session.id;
  const auto last = static_cast<std::int64_t>(session.tokens.size());
  SessionLease held;
  if (is_busy) held = store.lease(id).lease;
  at_every_position(*model, session.tokens, [&](std::int64_t position, const auto& expected) {
    if (is_busy && position == last) return;
    const auto fork = store.fork(id, kNobody, position, 1);
    REQUIRE_FALSE(fork.refusal);
    REQUIRE(fork.infos[0].num_tokens == position);
    REQUIRE(session.go_on(fork.infos[0].id, position) == expected);
    const auto image = store.image(id, kNobody, position, position % 2 == 0, position % 4 < 2);
    REQUIRE_FALSE(image.refusal);
    const auto restored = store.restore("tiny", model, image.image);
    REQUIRE_FALSE(restored.refusal);
    REQUIRE(restored.info.digest == fork.infos[0].digest);
    REQUIRE(session.go_on(restored.info.id, position) == expected);
    if (is_busy) return;
    const auto whole = store.fork(id, kNobody, std::nullopt, 1);
    const auto rewound = store.rewind(whole.infos[0].id, kNobody, position, std::nullopt);
    REQUIRE_FALSE(rewound.refusal);
    REQUIRE(rewound.info.digest == fork.infos[0].digest);
    REQUIRE(session.go_on(whole.infos[0].id, position) == expected);
  });
  REQUIRE(store.num_sessions() == 1);
}

TEST_CASE("copies at every position continue as the session itself: every kind", "[copies]") {
  const std::string attention = GENERATE(from_range(attention_types()));
  CAPTURE(attention);
  require_copies_go_on(tiny_model(TinyModel::kTokens, attention), {}, /*is_busy=*/false);
}

TEST_CASE("copies at every position continue as the session itself: every weight type",
          "[copies]") {
  const WeightType type = GENERATE(WeightType::kF32, WeightType::kBf16, WeightType::kInt8);
  const bool is_busy = GENERATE(false, true);
  // From states that were kept on the way, too.
  const SessionOptions options{.checkpoint_every = 37, .checkpoint_keep = 4};
  CAPTURE(static_cast<int>(type), is_busy);
  require_copies_go_on(tiny_model(TinyModel::kTokens, "linear", type), options, is_busy);
}

TEST_CASE("a stop string is found across the place where a session was copied", "[copies]") {
  Core core(tiny_model(TinyModel::kBytes));
  GenerationRequest request;
  request.prompt = {3, 1, 4};
  request.max_new_tokens = 90;
  request.seed = 5;
  const std::string text = core.generate(request)->text();
  // The same in two calls; the first ends with a stop string, after which no match begins before.
  const bool is_stopped = GENERATE(false, true);
  request.max_new_tokens = 60;
  request.stop.include_in_output = true;
  if (is_stopped) request.stop.strings = {text.substr(20, 20)};
  const std::string id = core.new_session();
  core.generate(request, id);
  const std::int64_t position = core.session_tokens(id);
  REQUIRE(position == (is_stopped ? 43 : 63));
  const auto at = static_cast<std::size_t>(position - 3);
  GenerationRequest next;
  next.seed = 5;
  next.max_new_tokens = 90 - static_cast<std::int64_t>(at);
  next.stop.strings = {text.substr(at - 10, 20)};

  const auto restored = [&](bool with_state) {
    const auto image = core.store.image(id, kNobody, std::nullopt, true, with_state);
    REQUIRE_FALSE(image.refusal);
    return core.store.restore("tiny", core.model, image.image).info.id;
  };
  const auto rewound = [&](std::int64_t first) {
    const std::string fork = core.store.fork(id, kNobody, std::nullopt, 1).infos[0].id;
    core.store.rewind(fork, kNobody, first, std::nullopt);
    return core.store.fork(fork, kNobody, first, 1).infos[0].id;
  };
  for (const std::string& copy : {core.store.fork(id, kNobody, position, 1).infos[0].id,
                                  restored(true), restored(false), rewound(position)}) {
    const auto sink = core.generate(next, copy);
    REQUIRE(sink->result().reason ==
            (is_stopped ? FinishReason::kLength : FinishReason::kStopString));
    REQUIRE(core.store.get(copy)->num_tokens == (is_stopped ? 93 : position + 10));
  }
  // Cut in the middle of the text a match reaches back as well.
  const std::string cut = rewound(30);
  next.stop.strings = {text.substr(20, 14)};
  next.max_new_tokens = 20;
  CHECK(core.generate(next, cut)->result().reason == FinishReason::kStopString);
  CHECK(core.store.get(cut)->num_tokens == 37);
}

}  // namespace
}  // namespace lintel::testing
