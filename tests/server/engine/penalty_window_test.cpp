// SPDX-License-Identifier: Apache-2.0
// Penalties that count the last tokens of a sequence only.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/server/support/harness.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// One sample, one row a step, the tokens that count counted from scratch at each position. Appends
// to `all`; returns what is drawn or given.
std::vector<std::int32_t> counted_by_hand(const Transformer& model,
                                          const GenerationRequest& request, int sample,
                                          std::vector<std::int32_t>& all) {
  Workspace workspace = model.new_workspace(1);
  SamplingScratch scratch;
  SequenceState state = model.new_sequence();
  all.insert(all.end(), request.prompt.begin(), request.prompt.end());
  const std::size_t first_new = all.size();
  const auto window = static_cast<std::size_t>(request.sampling.penalty_window);
  std::size_t fed = 0;
  while (all.size() < first_new + static_cast<std::size_t>(request.max_new_tokens)) {
    std::span<const float> output;
    while (fed < all.size()) {
      const BatchRow row{all[fed++], &state, /*wants_output=*/true};
      output = model.step(std::span(&row, 1), workspace).row(0);
    }
    const auto position = static_cast<std::int64_t>(all.size());
    const auto given = std::ranges::find(request.given, position, &GivenToken::position);
    if (given != request.given.end()) {
      all.push_back(given->token);
      continue;
    }
    std::vector<std::uint32_t> counts(static_cast<std::size_t>(model.config().vocab_size), 0);
    const std::size_t first = window == 0 || window > all.size() ? 0 : all.size() - window;
    for (std::size_t i = first; i < all.size(); ++i) ++counts[static_cast<std::size_t>(all[i])];
    all.push_back(model.head().sample(output, request.sampling, counts, {},
                                      {request.seed + static_cast<std::uint64_t>(sample), position},
                                      scratch));
  }
  return {all.begin() + static_cast<std::ptrdiff_t>(first_new), all.end()};
}

GenerationRequest penalised(int window, std::size_t prompt, std::int64_t max_new) {
  GenerationRequest request;
  for (std::size_t i = 0; i < prompt; ++i) {
    request.prompt.push_back(static_cast<std::int32_t>((i * i + 3) % 50));
  }
  request.max_new_tokens = max_new;
  request.seed = 11;
  request.sampling.repetition_penalty = 1.3f;
  request.sampling.presence_penalty = 0.3f;
  request.sampling.frequency_penalty = 0.6f;
  request.sampling.penalty_window = window;
  return request;
}

TEST_CASE("penalties in a window count its tokens and no others") {
  const auto model = tiny_model(TinyModel::kTokens);
  const int window = GENERATE(0, 1, 2, 7, 20, 64, 1000);
  GenerationRequest request = penalised(window, 12, 60);
  for (const std::int64_t ahead : {2, 3, 30}) request.given.push_back({12 + ahead, 7});
  std::vector<std::int32_t> all;
  const std::vector<std::int32_t> expected = counted_by_hand(*model, request, 0, all);
  GenerationRequest other = request;
  other.sampling.penalty_window = window == 0 ? 1 : 0;
  std::vector<std::int32_t> of_other;
  CHECK((expected == counted_by_hand(*model, other, 0, of_other)) == (window == 1000));
  for (const auto speculation : {Speculation::kOff, Speculation::kAuto, Speculation::kOn}) {
    for (const int slice : {1, 7, 64}) {
      CAPTURE(window, slice, static_cast<int>(speculation));
      Core core(model, {.workers = 0, .prefill_rows_per_step = slice, .speculation = speculation});
      REQUIRE(core.generate(request)->tokens() == expected);
      // Another request, which counts all tokens, runs beside it.
      const auto before = core.submit(other);
      for (int step = 0; step < 5; ++step) core.scheduler.run_one_step();
      const auto call = core.submit(request);
      core.run();
      REQUIRE(call.sink->tokens() == expected);
    }
  }
}

TEST_CASE("drafts that are taken back leave nothing in a window of penalties") {
  const auto model = tiny_model(TinyModel::kTokens);
  GenerationRequest request = penalised(9, 5, 200);
  request.sampling.logit_bias = {{11, 6.0f}, {12, 5.0f}};  // the same few again and again
  std::vector<std::int32_t> all;
  const std::vector<std::int32_t> expected = counted_by_hand(*model, request, 0, all);
  Core core(model, {.workers = 0, .speculation = Speculation::kOn});
  const auto sink = core.generate(request);
  REQUIRE(sink->tokens() == expected);
  CHECK(sink->result().drafted_tokens > sink->result().accepted_tokens);
}

TEST_CASE("each sample has a window of penalties of its own") {
  const auto model = tiny_model(TinyModel::kTokens);
  GenerationRequest request = penalised(10, 15, 40);
  request.num_samples = 4;
  Core core(model);
  const auto sink = core.generate(request);
  for (int sample = 0; sample < 4; ++sample) {
    std::vector<std::int32_t> all;
    REQUIRE(sink->tokens(sample) == counted_by_hand(*model, request, sample, all));
  }
}

TEST_CASE(
    "a window of penalties reaches over the calls of a session, and over what it reads again") {
  const auto model = tiny_model(TinyModel::kTokens);
  const int window = GENERATE(3, 17, 400);
  const std::uint32_t keep = GENERATE(0u, 3u);
  CAPTURE(window, keep);
  Core core(model, {.workers = 0, .prefill_rows_per_step = 5});
  const std::string id =
      core.store
          .create("tiny", model, {.checkpoint_every = 7, .checkpoint_keep = keep}, {}, nullptr)
          .info.id;
  std::vector<std::int32_t> all;
  for (int call = 0; call < 4; ++call) {
    GenerationRequest request = penalised(window, call == 2 ? 0 : 4, 20);
    request.seed = static_cast<std::uint64_t>(call);
    REQUIRE(core.generate(request, id)->tokens() == counted_by_hand(*model, request, 0, all));
  }
  GenerationRequest next = penalised(window, 1, 12);
  for (auto position = static_cast<std::int64_t>(all.size()); position > 0; position -= 3) {
    CAPTURE(position);
    REQUIRE(core.store.rewind(id, /*owner=*/{}, position, std::nullopt).refusal.error ==
            SessionError::kNone);
    all.resize(static_cast<std::size_t>(position));
    std::vector<std::int32_t> past = all;
    const std::vector<std::int32_t> expected = counted_by_hand(*model, next, 0, past);
    const auto forked = core.store.fork(id, /*owner=*/{}, position, 1);
    REQUIRE(forked.infos.size() == 1);
    REQUIRE(core.generate(next, forked.infos[0].id)->tokens() == expected);
    REQUIRE(core.store.remove(forked.infos[0].id).error == SessionError::kNone);
  }
}

TEST_CASE("a window of penalties that is longer than a state's has tokens from before it") {
  const auto model = tiny_model(TinyModel::kBytes);
  GenerationRequest request = penalised(200, 10, 90);
  request.window = 16;
  GenerationRequest all_counted = request;
  all_counted.sampling.penalty_window = 0;
  Core core(model);
  CHECK(core.generate(request)->tokens() == core.generate(all_counted)->tokens());
  request.sampling.penalty_window = 8;
  CHECK(core.generate(request)->tokens() != core.generate(all_counted)->tokens());
  // Cut into calls.
  request.sampling.penalty_window = 30;
  const std::vector<std::int32_t> whole = core.generate(request)->tokens();
  const std::string id = core.store.create("tiny", model, {.window = 16}, {}, nullptr).info.id;
  std::vector<std::int32_t> cut;
  for (int call = 0; call < 9; ++call) {
    request.max_new_tokens = 10;
    const std::vector<std::int32_t> part = core.generate(request, id)->tokens();
    cut.insert(cut.end(), part.begin(), part.end());
    request.prompt.clear();
  }
  CHECK(cut == whole);
}

}  // namespace
}  // namespace lintel::testing
