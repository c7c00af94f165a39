// SPDX-License-Identifier: Apache-2.0
// Replay: a sequence reads tokens that its state lacks again, without an effect on its output.
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/server/support/harness.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// A session that may lack tokens of its history.
struct HandSession {
  std::string id;
};

std::vector<std::int32_t> log_of(const Core& core, const HandSession& session) {
  return core.store.history(session.id, /*owner=*/{}, 0, std::nullopt).tokens;
}

Core::Call submit(Core& core, HandSession& session, const GenerationRequest& request,
                  std::shared_ptr<RecordingSink> sink = std::make_shared<RecordingSink>()) {
  Core::Call call;
  call.sink = std::move(sink);
  auto leased = core.store.lease(session.id);
  REQUIRE(leased.refusal.error == SessionError::kNone);
  call.error = core.scheduler.submit(request, std::move(leased.lease), call.sink, call.handle);
  return call;
}

std::shared_ptr<RecordingSink> generate(Core& core, HandSession& session,
                                        const GenerationRequest& request) {
  const Core::Call call = submit(core, session, request);
  core.run();
  REQUIRE(call.sink->outcome == RequestOutcome::kDone);
  return call.sink;
}

// A session that had `tokens`, the last `replayed` of which its state lacks.
std::unique_ptr<HandSession> lagging_session(Core& core, const std::vector<std::int32_t>& tokens,
                                             std::size_t replayed, const std::string& tail) {
  auto session = std::make_unique<HandSession>();
  session->id = core.new_session();
  if (replayed < tokens.size()) {
    GenerationRequest read;
    read.prompt.assign(tokens.begin(), tokens.end() - static_cast<std::ptrdiff_t>(replayed));
    generate(core, *session, read);
  }
  if (replayed == 0) core.store.lease(session->id).lease.sequence().generated_tail = tail;
  const auto leased = core.store.lease(session->id);
  for (std::size_t i = tokens.size() - replayed; i < tokens.size(); ++i) {
    leased.lease.history()->append(tokens[i], TokenSource::kPrompt);
  }
  return session;
}

// The next call of such a session.
GenerationRequest replaying(GenerationRequest request, const std::vector<std::int32_t>& tokens,
                            std::size_t replayed, const std::string& tail) {
  request.replay.assign(tokens.end() - static_cast<std::ptrdiff_t>(replayed), tokens.end());
  if (replayed > 0) request.replay_tail = tail;
  return request;
}

void require_same_call(const RecordingSink& got, const RecordingSink& expected) {
  REQUIRE(got.recorded == expected.recorded);
  const SampleResult& a = got.result();
  const SampleResult& b = expected.result();
  REQUIRE(a.reason == b.reason);
  REQUIRE(a.stop_string == b.stop_string);
  REQUIRE(a.prompt_tokens == b.prompt_tokens);
  REQUIRE(a.reused_tokens == b.reused_tokens);
  REQUIRE(a.generated_tokens == b.generated_tokens);
  REQUIRE(a.given_tokens == b.given_tokens);
  REQUIRE(a.position == b.position);
}

// Three calls of a session, each different in what it asks for.
std::vector<GenerationRequest> calls_for(const Transformer& model) {
  const bool is_image = model.config().modality == ModalityKind::kImage;
  std::vector<GenerationRequest> calls(3);
  if (!is_image) calls[0].prompt = {3, 1, 4, 1, 5};
  calls[0].max_new_tokens = is_image ? 9 : 40;
  calls[0].seed = 1;
  calls[1].prompt = {9, 2, 6};
  calls[1].max_new_tokens = is_image ? 8 : 30;
  calls[1].seed = 2;
  calls[1].echo_prompt = true;
  calls[1].log2_probs = true;
  calls[1].top_log2_probs = 2;
  const std::int64_t first_new = (is_image ? 10 : 45) + 3;
  for (const std::int64_t ahead : {0, 1, 4}) calls[1].given.push_back({first_new + ahead, 7});
  calls[2].max_new_tokens = is_image ? 5 : 20;
  calls[2].log2_probs = true;
  calls[2].seed = 3;
  if (model.head().supports_filters()) {
    calls[1].sampling.repetition_penalty = 1.5f;
    calls[2].sampling.frequency_penalty = 0.5f;
  }
  return calls;
}

// Continues every sequence that lacks some of its tokens, as the calls after the first one do.
void require_replay_goes_unnoticed(TinyModel kind, const std::string& attention, WeightType type) {
  const auto model = tiny_model(kind, attention, type);
  const std::vector<GenerationRequest> calls = calls_for(*model);
  Core twins(model);
  HandSession twin{twins.new_session()};
  generate(twins, twin, calls[0]);
  const std::vector<std::int32_t> before = log_of(twins, twin);
  const std::string tail = twins.store.lease(twin.id).lease.sequence().generated_tail;
  const auto second = generate(twins, twin, calls[1]);
  const auto third = generate(twins, twin, calls[2]);

  std::size_t turn = 0;
  for (const std::size_t replayed :
       {std::size_t{0}, std::size_t{1}, before.size() / 2, before.size() - 1, before.size()}) {
    for (const auto speculation : {Speculation::kOff, Speculation::kAuto, Speculation::kOn}) {
      const int slice = std::array{1, 7, 64}[turn++ % 3];
      CAPTURE(replayed, slice, static_cast<int>(speculation));
      Core core(model, {.workers = 0,
                        .prefill_rows_per_step = slice,
                        .prompt_rows_per_step = slice == 64 ? 200 : 0,
                        .speculation = speculation});
      const auto session = lagging_session(core, before, replayed, tail);
      GenerationRequest neighbour = calls[0];
      neighbour.max_new_tokens = 25;
      if (turn % 2 == 0) core.submit(neighbour);
      const auto call = submit(core, *session, replaying(calls[1], before, replayed, tail));
      core.scheduler.run_one_step();
      if (turn % 2 == 0) core.submit(neighbour);
      core.run();
      require_same_call(*call.sink, *second);
      REQUIRE(call.sink->result().replayed_tokens == static_cast<std::int64_t>(replayed));
      require_same_call(*generate(core, *session, calls[2]), *third);
      REQUIRE(log_of(core, *session) == log_of(twins, twin));
    }
  }
}

TEST_CASE("a sequence that reads its tokens again continues as one that had them: every kind",
          "[replay]") {
  const std::string attention = GENERATE(from_range(attention_types()));
  const TinyModel kind = GENERATE(TinyModel::kBytes, TinyModel::kImage);
  CAPTURE(attention, static_cast<int>(kind));
  require_replay_goes_unnoticed(kind, attention, WeightType::kF32);
}

TEST_CASE("a sequence that reads its tokens again continues as one that had them: int8",
          "[replay]") {
  const TinyModel kind = GENERATE(TinyModel::kBytes, TinyModel::kImage);
  require_replay_goes_unnoticed(kind, "linear", WeightType::kInt8);
}

TEST_CASE("a stop string that begins before the tokens that are read again is found", "[replay]") {
  Core core(tiny_model(TinyModel::kBytes));
  GenerationRequest request;
  request.prompt = {3, 1, 4};
  request.max_new_tokens = 80;
  request.seed = 5;
  const std::string text = core.generate(request)->text();
  request.max_new_tokens = 40;
  HandSession twin{core.new_session()};
  generate(core, twin, request);
  const std::vector<std::int32_t> tokens = log_of(core, twin);
  const std::string tail = core.store.lease(twin.id).lease.sequence().generated_tail;
  REQUIRE(tail == text.substr(0, 40));

  GenerationRequest next;
  next.max_new_tokens = 40;
  next.seed = 5;
  next.stop.strings = {text.substr(30, 20)};
  const auto expected = generate(core, twin, next);
  REQUIRE(expected->result().reason == FinishReason::kStopString);
  for (const std::size_t replayed :
       {std::size_t{0}, std::size_t{3}, std::size_t{20}, tokens.size()}) {
    const auto session = lagging_session(core, tokens, replayed, tail);
    require_same_call(*generate(core, *session, replaying(next, tokens, replayed, tail)),
                      *expected);
  }
}

TEST_CASE("tokens that are read again are paid for as a prompt, and never sent", "[replay]") {
  Core core(tiny_model(TinyModel::kBytes));
  const std::vector<std::int32_t> tokens = {3, 1, 4, 1, 5, 9};
  const auto session = lagging_session(core, tokens, tokens.size(), "");
  GenerationRequest request;
  request.echo_prompt = true;
  request.log2_probs = true;
  const auto sink = generate(core, *session, replaying(request, tokens, tokens.size(), ""));
  CHECK(sink->recorded[0].empty());
  CHECK(sink->result().replayed_tokens == 6);
  CHECK(sink->result().prompt_tokens == 0);
  CHECK(sink->result().reused_tokens == 6);
  CHECK(core.scheduler.stats().prompt_tokens == 6);
  CHECK(core.scheduler.stats().rows == 5);  // the last one stays pending
  CHECK(core.session_tokens(session->id) == 6);
  CHECK(log_of(core, *session) == tokens);
}

TEST_CASE("cancelled while it reads its tokens again a session has each of them once", "[replay]") {
  const auto model = tiny_model(TinyModel::kBytes);
  const std::vector<GenerationRequest> calls = calls_for(*model);
  Core core(model, {.workers = 0, .max_batch_rows = 7, .prefill_rows_per_step = 7});
  HandSession twin{core.new_session()};
  generate(core, twin, calls[0]);
  const std::vector<std::int32_t> tokens = log_of(core, twin);
  const std::string tail = core.store.lease(twin.id).lease.sequence().generated_tail;
  const auto expected = generate(core, twin, calls[1]);

  const auto session = lagging_session(core, tokens, tokens.size(), tail);
  const auto cut = submit(core, *session, replaying(calls[1], tokens, tokens.size(), tail));
  core.scheduler.run_one_step();
  core.scheduler.run_one_step();
  core.scheduler.cancel(cut.handle);
  core.run();
  REQUIRE(cut.sink->outcome == RequestOutcome::kCancelled);
  CHECK(cut.sink->result().position == static_cast<std::int64_t>(tokens.size()));
  CHECK(cut.sink->result().prompt_tokens == 0);
  CHECK(cut.sink->result().replayed_tokens == 15);
  CHECK(log_of(core, *session) == tokens);
  const std::size_t lacks = tokens.size() - 15;
  REQUIRE(core.store.lease(session->id).lease.sequence().num_tokens() == 15);
  require_same_call(*generate(core, *session, replaying(calls[1], tokens, lacks, tail)), *expected);
  CHECK(log_of(core, *session) == log_of(core, twin));
}

TEST_CASE("a session's log receives each token and its source", "[replay]") {
  Core core(tiny_model(TinyModel::kBytes));
  HandSession session{core.new_session()};
  GenerationRequest request;
  request.prompt = {3, 1};
  request.given = {{3, 8}};
  request.max_new_tokens = 3;
  const auto sink = generate(core, session, request);
  const std::vector<std::int32_t> drawn = sink->tokens();
  CHECK(log_of(core, session) == std::vector<std::int32_t>{3, 1, drawn[0], 8, drawn[2]});
  const auto marks = core.store.history(session.id, /*owner=*/{}, 0, std::nullopt).marks;
  CHECK(marks == std::vector<HistoryMark>{{0, TokenSource::kPrompt},
                                          {2, TokenSource::kSampled},
                                          {3, TokenSource::kGiven},
                                          {4, TokenSource::kSampled}});
}

}  // namespace
}  // namespace lintel::testing
