// SPDX-License-Identifier: Apache-2.0
// Sequences that live over several calls.
#include "tests/server/support/harness.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

GenerationRequest continuation(std::int64_t max_new_tokens) {
  GenerationRequest request;
  request.max_new_tokens = max_new_tokens;
  request.seed = 99;
  request.log2_probs = true;
  request.top_log2_probs = 2;
  return request;
}

GenerationRequest beginning(TinyModel kind, std::int64_t max_new_tokens) {
  GenerationRequest request = continuation(max_new_tokens);
  if (kind != TinyModel::kImage) request.prompt = {3, 1, 4, 1, 5};
  return request;
}

TEST_CASE("a session continued in pieces is one long call, bit for bit") {
  const auto kind = GENERATE(TinyModel::kImage, TinyModel::kBytes, TinyModel::kTokens);
  Core core(tiny_model(kind));
  const auto whole = core.generate(beginning(kind, 29));
  const std::string id = core.new_session();
  std::vector<RecordedToken> pieces;
  std::int64_t produced = 0;
  for (const std::int64_t count : {1, 0, 7, 2, 19}) {
    const auto sink =
        core.generate(produced == 0 ? beginning(kind, count) : continuation(count), id);
    const auto& tokens = sink->recorded[0];
    pieces.insert(pieces.end(), tokens.begin(), tokens.end());
    produced += count;
    REQUIRE(sink->result().position == core.session_tokens(id));
    REQUIRE(core.store.get(id)->has_pending);
    if (produced > count) {
      REQUIRE(sink->result().prompt_tokens == 0);
      REQUIRE(sink->result().reused_tokens == core.session_tokens(id) - count);
    }
  }
  REQUIRE(pieces == whole->recorded[0]);
}

TEST_CASE("penalties continue over the calls of a session") {
  Core core(tiny_model(TinyModel::kBytes));
  GenerationRequest whole = beginning(TinyModel::kBytes, 40);
  whole.sampling.frequency_penalty = 0.5f;
  whole.sampling.repetition_penalty = 1.2f;
  const auto expected = core.generate(whole)->tokens();

  const std::string id = core.new_session();
  GenerationRequest first =
      beginning(TinyModel::kBytes, 0);  // no penalties yet: counted all the same
  core.generate(first, id);
  GenerationRequest rest = continuation(40);
  rest.sampling = whole.sampling;
  REQUIRE(core.generate(rest, id)->tokens() == expected);
}

TEST_CASE("the first prompt token of a continued session has a log-probability") {
  Core core(tiny_model(TinyModel::kBytes));
  const std::string id = core.new_session();
  core.generate(beginning(TinyModel::kBytes, 3), id);
  GenerationRequest next = continuation(2);
  next.prompt = {'x', 'y'};
  next.echo_prompt = true;
  const auto sink = core.generate(next, id);
  REQUIRE(sink->recorded[0].size() == 4);
  REQUIRE(sink->recorded[0][0].source == TokenSource::kPrompt);
  REQUIRE(sink->recorded[0][0].position == 8);
  REQUIRE(sink->recorded[0][0].log2_prob);
  REQUIRE(sink->result().prompt_tokens == 2);
  REQUIRE(sink->result().reused_tokens == 8);

  // The same tokens in one piece have the same log-probabilities.
  SequenceState sequence = core.model->new_sequence();
  GenerationRequest whole = beginning(TinyModel::kBytes, 7);
  whole.given = {{8, 'x'}, {9, 'y'}};
  const auto twin = generate_naively(*core.model, whole, 0, sequence);
  for (std::size_t i = 0; i < 4; ++i) {
    REQUIRE(sink->recorded[0][i].log2_prob == twin.tokens[i + 3].log2_prob);
    REQUIRE(sink->recorded[0][i].token == twin.tokens[i + 3].token);
  }
}

TEST_CASE("a stop string is found across calls, and tokens sent before stay sent") {
  Core core(tiny_model(TinyModel::kBytes));
  const std::string free_run = core.generate(beginning(TinyModel::kBytes, 20))->text();
  const std::string stop = free_run.substr(8, 5);
  REQUIRE(free_run.find(stop) == 8);
  const std::string id = core.new_session();
  GenerationRequest first = beginning(TinyModel::kBytes, 10);
  REQUIRE(core.generate(first, id)->text() == free_run.substr(0, 10));
  GenerationRequest second = continuation(10);
  second.stop.strings = {stop};
  const auto sink = core.generate(second, id);
  REQUIRE(sink->result().reason == FinishReason::kStopString);
  REQUIRE(sink->text().empty());
  REQUIRE(sink->result().generated_tokens == 3);
  // The excluded bytes belong to the sequence all the same.
  REQUIRE(core.session_tokens(id) == 5 + 13);
  REQUIRE(core.generate(continuation(7), id)->text() == free_run.substr(13));
}

TEST_CASE("a match that ended a call does not end the next") {
  Core core(tiny_model(TinyModel::kBytes));
  GenerationRequest request = beginning(TinyModel::kBytes, 10);
  request.sampling.logit_bias = {{'z', 1000.0f}};  // z for ever
  request.stop.strings = {"zz"};
  const std::string id = core.new_session();
  REQUIRE(core.generate(request, id)->result().generated_tokens == 2);
  request.prompt.clear();
  REQUIRE(core.generate(request, id)->result().generated_tokens == 2);
}

TEST_CASE("a prompt between two calls breaks the match of a stop string") {
  Core core(tiny_model(TinyModel::kBytes));
  GenerationRequest request = beginning(TinyModel::kBytes, 1);
  request.sampling.logit_bias = {{'z', 1000.0f}};
  request.stop.strings = {"zz"};
  const std::string id = core.new_session();
  core.generate(request, id);
  REQUIRE(core.generate(request, id)->result().reason == FinishReason::kLength);
  request.prompt.clear();
  REQUIRE(core.generate(request, id)->result().reason == FinishReason::kStopString);
}

TEST_CASE("a session's own limit ends its sequence") {
  Core core(tiny_model(TinyModel::kTokens));
  const std::string id = core.new_session(/*max_tokens=*/12);
  const auto sink = core.generate(beginning(TinyModel::kTokens, 100), id);
  REQUIRE(sink->result().reason == FinishReason::kEndOfSequence);
  REQUIRE(sink->result().position == 12);
  const auto again = core.generate(continuation(5), id);
  REQUIRE(again->result().reason == FinishReason::kEndOfSequence);
  REQUIRE(again->result().generated_tokens == 0);
}

TEST_CASE("the session is free for the next call when the last of a call is seen") {
  Core core(tiny_model(TinyModel::kBytes));
  const std::string id = core.new_session();
  const auto call = core.submit(beginning(TinyModel::kBytes, 3), id);
  REQUIRE(core.store.lease(id).refusal.error == SessionError::kBusy);
  int seen = 0;
  const auto is_free = [&] {
    ++seen;
    REQUIRE(core.store.lease(id).refusal.error == SessionError::kNone);
  };
  call.sink->when_sample_finished = is_free;
  call.sink->when_finished = is_free;
  SECTION("finished") { core.run(); }
  SECTION("cancelled") {
    core.scheduler.run_one_step();
    core.scheduler.cancel(call.handle);
    core.run();
  }
  REQUIRE(seen == 2);
}

TEST_CASE("a cancelled call keeps its tokens, and the session continues from there") {
  Core core(tiny_model(TinyModel::kBytes),
            {.workers = 0, .max_batch_rows = 4, .prefill_rows_per_step = 4});
  const auto whole = core.generate(beginning(TinyModel::kBytes, 20));
  const std::string id = core.new_session();
  const auto call = core.submit(beginning(TinyModel::kBytes, 20), id);
  for (int i = 0; i < 8; ++i) core.scheduler.run_one_step();
  core.scheduler.cancel(call.handle);
  core.run();
  REQUIRE(call.sink->outcome == RequestOutcome::kCancelled);
  REQUIRE(call.sink->result().reason == FinishReason::kCancelled);
  const std::int64_t done = call.sink->result().generated_tokens;
  REQUIRE(done > 0);
  const auto rest = core.generate(continuation(20 - done), id);
  std::vector<RecordedToken> tokens = call.sink->recorded[0];
  tokens.insert(tokens.end(), rest->recorded[0].begin(), rest->recorded[0].end());
  REQUIRE(tokens == whole->recorded[0]);
}

}  // namespace
}  // namespace lintel::testing
