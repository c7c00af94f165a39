// SPDX-License-Identifier: Apache-2.0
// Windows: a state is reset at known positions and reads the last half of its tokens again.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "server/engine/request.h"
#include "tests/server/support/harness.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// One sample, one row a step. A state that holds `window` tokens makes place for a new one, which
// is fed the last half of them; penalties count the whole sequence. Appends to `all`.
std::vector<RecordedToken> in_windows_by_hand(const Transformer& model,
                                              const GenerationRequest& request, int sample,
                                              std::vector<std::int32_t>& all) {
  Workspace workspace = model.new_workspace(1);
  SamplingScratch scratch;
  std::vector<std::uint32_t> counts(model.new_sequence().counts.vocab_size(), 0);
  for (const std::int32_t token : all) {
    if (!counts.empty()) ++counts[static_cast<std::size_t>(token)];
  }
  SequenceState state = model.new_sequence();
  std::size_t begin = 0;  // of the state
  std::size_t fed = 0;    // of `all`
  const auto window = static_cast<std::size_t>(request.window);
  std::vector<RecordedToken> tokens;
  const std::size_t prompt_end = all.size() + request.prompt.size();
  std::size_t read = 0;
  // Resets the state wherever it is full and has to continue.
  const auto feed_all = [&] {
    std::span<const float> output;
    while (fed < all.size()) {
      if (fed + 1 - begin == window) {
        state = model.new_sequence();
        begin = fed = fed + 1 - window / 2;
      }
      const BatchRow row{all[fed++], &state, /*wants_output=*/true};
      output = model.step(std::span(&row, 1), workspace).row(0);
    }
    return output;
  };
  while (all.size() < prompt_end + static_cast<std::size_t>(request.max_new_tokens)) {
    const std::span<const float> output = feed_all();
    RecordedToken next;
    next.position = static_cast<std::int64_t>(all.size());
    const auto given = std::ranges::find(request.given, next.position, &GivenToken::position);
    if (read < request.prompt.size()) {
      next.token = request.prompt[read++];
      next.source = TokenSource::kPrompt;
    } else if (given != request.given.end()) {
      next.token = given->token;
      next.source = TokenSource::kGiven;
    } else {
      next.token = model.head().sample(
          output, request.sampling, counts, {},
          {request.seed + static_cast<std::uint64_t>(sample), next.position}, scratch);
    }
    if (!output.empty() && request.log2_probs) {
      next.log2_prob = static_cast<float>(model.head().log2_prob(output, next.token));
    }
    all.push_back(next.token);
    if (!counts.empty()) ++counts[static_cast<std::size_t>(next.token)];
    if (next.source != TokenSource::kPrompt || request.echo_prompt) tokens.push_back(next);
  }
  return tokens;
}

GenerationRequest window_request(std::int64_t window, std::size_t prompt, std::int64_t max_new) {
  GenerationRequest request;
  for (std::size_t i = 0; i < prompt; ++i) {
    request.prompt.push_back(static_cast<std::int32_t>((i * i + 3) % 50));
  }
  request.window = window;
  request.max_new_tokens = max_new;
  request.log2_probs = true;
  request.echo_prompt = true;
  request.seed = 11;
  request.sampling.repetition_penalty = 1.3f;
  request.sampling.frequency_penalty = 0.2f;
  const auto first_new = static_cast<std::int64_t>(prompt);
  for (const std::int64_t ahead : {2, 3, 4, 5, 6, 20, 21}) {
    if (ahead < max_new) request.given.push_back({first_new + ahead, 7});
  }
  return request;
}

struct Sized {
  std::int64_t window;
  std::size_t prompt;
  std::int64_t max_new;
};

void require_bits_of_twin(const std::shared_ptr<const Transformer>& model, const Sized& size) {
  const GenerationRequest request = window_request(size.window, size.prompt, size.max_new);
  std::vector<std::int32_t> all;
  const std::vector<RecordedToken> expected = in_windows_by_hand(*model, request, 0, all);
  for (const auto speculation : {Speculation::kOff, Speculation::kAuto, Speculation::kOn}) {
    for (const int slice : {1, 7, 64}) {
      CAPTURE(size.window, size.prompt, slice, static_cast<int>(speculation));
      Core core(model, {.workers = 0, .prefill_rows_per_step = slice, .speculation = speculation});
      const auto alone = core.generate(request);
      REQUIRE(alone->recorded[0] == expected);
      REQUIRE(alone->result().reason == FinishReason::kLength);
      REQUIRE(alone->result().position == static_cast<std::int64_t>(all.size()));
      // The request runs beside itself, half a window later, and beside one that has no window.
      GenerationRequest plain = request;
      plain.window = 0;
      const auto before = core.submit(plain);
      const auto first = core.submit(request);
      for (int step = 0; step < 9; ++step) core.scheduler.run_one_step();
      const auto second = core.submit(request);
      core.run();
      REQUIRE(first.sink->recorded[0] == expected);
      REQUIRE(second.sink->recorded[0] == expected);
    }
  }
}

TEST_CASE("in a window every kind has the bits of a state that is reset by hand", "[window]") {
  const std::string attention = GENERATE(from_range(attention_types()));
  CAPTURE(attention);
  const auto model = tiny_model(TinyModel::kBytes, attention);
  require_bits_of_twin(model, {.window = 16, .prompt = 5, .max_new = 60});
  require_bits_of_twin(model, {.window = 6, .prompt = 20, .max_new = 25});
}

TEST_CASE("in a window int8 has the bits of a state that is reset by hand", "[window]") {
  const auto model = tiny_model(TinyModel::kBytes, "linear", WeightType::kInt8);
  require_bits_of_twin(model, {.window = 16, .prompt = 5, .max_new = 60});
}

TEST_CASE("in a window of any size a state is reset at the documented positions", "[window]") {
  const auto model = tiny_model(TinyModel::kBytes);
  const std::size_t prompt = GENERATE(1u, 2u, 7u, 8u, 9u, 12u, 40u);
  for (const std::int64_t window : {2, 4, 8, 64}) {
    require_bits_of_twin(model, {.window = window, .prompt = prompt, .max_new = 45});
  }
}

TEST_CASE("in a window a model with a position table has no end", "[window]") {
  const auto model = tiny_model(TinyModel::kBytes);
  GenerationRequest request = window_request(64, 10, 700);
  std::vector<std::int32_t> all;
  const std::vector<RecordedToken> expected = in_windows_by_hand(*model, request, 0, all);
  Core core(model);
  const auto sink = core.generate(request);
  REQUIRE(sink->recorded[0] == expected);
  CHECK(sink->result().position == 710);
  // From 64 on, each 32 tokens, to 704; each time the last 32 tokens are read again.
  CHECK(sink->result().replayed_tokens == 32 * 21);
  CHECK(sink->result().prompt_tokens == 10);
}

TEST_CASE("samples that are forked in a window continue in windows of their own", "[window]") {
  const auto model = tiny_model(TinyModel::kBytes);
  const std::size_t prompt = GENERATE(3u, 15u, 16u, 24u, 30u);
  CAPTURE(prompt);
  GenerationRequest request = window_request(16, prompt, 50);
  request.num_samples = 4;
  for (const int slice : {1, 7, 64}) {
    Core core(model, {.workers = 0, .prefill_rows_per_step = slice});
    const auto sink = core.generate(request);
    for (int sample = 0; sample < 4; ++sample) {
      std::vector<std::int32_t> all;
      REQUIRE(sink->recorded[static_cast<std::size_t>(sample)] ==
              in_windows_by_hand(*model, request, sample, all));
    }
  }
}

TEST_CASE("a stop string is found across the position where a state is reset", "[window]") {
  Core core(tiny_model(TinyModel::kBytes));
  GenerationRequest request = window_request(16, 5, 60);
  request.echo_prompt = false;
  request.given.clear();
  const std::string text = core.generate(request)->text();
  request.stop.strings = {text.substr(8, 8)};  // positions 13 to 20
  const auto sink = core.generate(request);
  CHECK(sink->result().reason == FinishReason::kStopString);
  CHECK(sink->result().position == 21);
  CHECK(sink->text() == text.substr(0, 8));
}

// The request of a call in a window that continues the session's history.
GenerationRequest going_on(GenerationRequest request, const std::vector<std::int32_t>& all,
                           std::int64_t state_end, const std::string& tail) {
  request.replay.assign(all.begin() + state_end, all.end());
  if (!request.replay.empty()) request.replay_tail = tail;
  const std::int64_t begin = std::max<std::int64_t>(state_end - request.window, 0);
  request.recent.assign(all.begin() + begin, all.begin() + state_end);
  return request;
}

TEST_CASE("the calls of a session share its windows, also those that were cancelled", "[window]") {
  const auto model = tiny_model(TinyModel::kBytes);
  const std::int64_t window = GENERATE(2, 8, 16);
  const int calls = GENERATE(12, 30);
  CAPTURE(window, calls);
  Core core(model, {.workers = 0, .max_batch_rows = 3, .prefill_rows_per_step = 3});
  const std::string id = core.new_session();
  std::vector<std::int32_t> all;
  for (int i = 0; i < calls; ++i) {
    CAPTURE(i);
    GenerationRequest request = window_request(window, 0, 0);
    request.given.clear();
    if (i % 3 != 1) request.prompt.assign(static_cast<std::size_t>(i % 5 + 1), i);
    request.max_new_tokens = i % 4 * 3;
    request.seed = static_cast<std::uint64_t>(i);
    if (i == 0) request.max_new_tokens = 5;
    const auto go_on = [&] {
      const std::int64_t next = core.store.lease(id).lease.sequence().next_position();
      return core.submit(going_on(request, all, next, ""), id);
    };
    if (i % 2 == 1) {  // first cancelled after a step or two
      GenerationRequest cut = request;
      cut.prompt.clear();
      std::swap(request, cut);
      const Core::Call call = go_on();
      std::swap(request, cut);
      core.scheduler.run_one_step();
      if (i % 4 == 1) core.scheduler.run_one_step();
      core.scheduler.cancel(call.handle);
      core.run();
      // Tokens of the cancelled call are the sequence's, too.
      GenerationRequest had = cut;
      had.max_new_tokens = call.sink->result().generated_tokens;
      REQUIRE(in_windows_by_hand(*model, had, 0, all) == call.sink->recorded[0]);
    }
    const std::vector<RecordedToken> expected = in_windows_by_hand(*model, request, 0, all);
    std::vector<std::int32_t> after = all;
    all.resize(all.size() - request.prompt.size() -
               static_cast<std::size_t>(request.max_new_tokens));
    const Core::Call call = go_on();
    core.run();
    REQUIRE(call.sink->recorded[0] == expected);
    all = after;
  }
}

// A session that has a window of its own.
std::string new_session_in_window(Core& core, const SessionOptions& options) {
  const auto created = core.store.create("tiny", core.model, options, /*owner=*/{}, nullptr);
  REQUIRE(created.refusal.error == SessionError::kNone);
  return created.info.id;
}

TEST_CASE("a session in a window continues from every position that it is copied at or rewound to",
          "[window]") {
  const std::string attention = GENERATE(from_range(attention_types()));
  const std::uint32_t keep = GENERATE(0u, 3u);
  const std::int64_t window = 16;
  CAPTURE(attention, keep);
  const auto model = tiny_model(TinyModel::kBytes, attention);
  Core core(model, {.workers = 0, .prefill_rows_per_step = 5});
  const std::string id = new_session_in_window(
      core, {.window = window, .checkpoint_every = 7, .checkpoint_keep = keep});
  GenerationRequest request = window_request(window, 4, 30);
  request.given.clear();
  std::vector<std::int32_t> all;
  REQUIRE(core.generate(request, id)->recorded[0] == in_windows_by_hand(*model, request, 0, all));
  // Ends while the state reads half a window again.
  const auto cut = core.submit(window_request(window, 0, 30), id);
  while (core.store.lease(id).refusal.error == SessionError::kBusy &&
         cut.sink->recorded[0].size() < 6) {
    core.scheduler.run_one_step();
  }
  core.scheduler.cancel(cut.handle);
  core.run();
  all = core.store.history(id, /*owner=*/{}, 0, std::nullopt).tokens;
  GenerationRequest next = window_request(window, 1, 20);
  next.given.clear();
  for (auto position = static_cast<std::int64_t>(all.size()); position > 0; --position) {
    CAPTURE(position);
    std::vector<std::int32_t> past(all.begin(), all.begin() + position);
    const std::vector<RecordedToken> expected = in_windows_by_hand(*model, next, 0, past);
    const auto forked = core.store.fork(id, /*owner=*/{}, position, 1);
    REQUIRE(forked.infos.size() == 1);
    REQUIRE(core.generate(next, forked.infos[0].id)->recorded[0] == expected);
    REQUIRE(core.store.remove(forked.infos[0].id).error == SessionError::kNone);
    REQUIRE(core.store.rewind(id, /*owner=*/{}, position, std::nullopt).refusal.error ==
            SessionError::kNone);
    if (position % 3 != 0) continue;
    REQUIRE(core.generate(next, id)->recorded[0] == expected);
    REQUIRE(core.store.rewind(id, /*owner=*/{}, position, std::nullopt).refusal.error ==
            SessionError::kNone);
  }
}

TEST_CASE("a session in a window takes memory for no more than a window, and has no end",
          "[window]") {
  Core core(tiny_model(TinyModel::kBytes, "softmax"));
  const std::string id = new_session_in_window(core, {.history_tokens = 64, .window = 16});
  const std::string plain = core.new_session();
  CHECK(core.store.get(id)->state_bytes < core.store.get(plain)->state_bytes);
  GenerationRequest request = window_request(16, 4, 600);
  request.given.clear();
  std::vector<std::int32_t> all;
  REQUIRE(core.generate(request, id)->recorded[0] ==
          in_windows_by_hand(*core.model, request, 0, all));
  request.prompt.clear();
  request.max_new_tokens = 50;
  REQUIRE(core.generate(request, id)->recorded[0] ==
          in_windows_by_hand(*core.model, request, 0, all));
}

TEST_CASE("a session whose state is gone continues in its window from its tokens", "[window]") {
  const auto model = tiny_model(TinyModel::kBytes);
  const std::size_t before = GENERATE(3u, 15u, 16u, 17u, 23u, 24u, 25u, 60u, 100u);
  const std::size_t kept = GENERATE(0u, 2u, 9u);  // by the state
  if (kept > before) return;
  CAPTURE(before, kept);
  std::vector<std::int32_t> all;
  for (std::size_t i = 0; i < before; ++i) all.push_back(static_cast<std::int32_t>(i * i % 50));
  GenerationRequest request = window_request(16, 4, 30);
  request.given.clear();
  std::vector<std::int32_t> after = all;
  const std::vector<RecordedToken> expected = in_windows_by_hand(*model, request, 0, after);
  Core core(model);
  const std::string id = core.new_session();
  if (kept > 0) {
    GenerationRequest read;
    read.prompt.assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(kept));
    core.generate(read, id);
  }
  for (std::size_t i = kept; i < before; ++i) {
    core.store.lease(id).lease.history()->append(all[i], TokenSource::kPrompt);
  }
  const auto sink = core.generate(going_on(request, all, static_cast<std::int64_t>(kept), ""), id);
  REQUIRE(sink->recorded[0] == expected);
  if (kept == 0 && before >= 16) {
    // Only what its window holds is read, then and later.
    CHECK(sink->result().replayed_tokens <= 16 + 8 * 6);
  }
}

// ---- Prompts that are longer than a window

// A request without echo, so that all of its prompt need not be read.
GenerationRequest unechoed(std::int64_t window, std::size_t prompt, std::int64_t max_new) {
  GenerationRequest request = window_request(window, prompt, max_new);
  request.echo_prompt = false;
  return request;
}

// Read and read again are no more tokens than a window has; the others are accounted for.
void require_little_is_read(const SampleResult& result, const GenerationRequest& request,
                            std::int64_t seen) {
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  REQUIRE(result.prompt_tokens + result.skipped_tokens == prompt);
  REQUIRE(result.skipped_tokens == window_skips(request.window, seen, seen + prompt));
  REQUIRE(result.prompt_tokens <= request.window);
}

TEST_CASE("prompt longer than its window: read from the last restart on, with the same bits",
          "[window]") {
  const auto model = tiny_model(TinyModel::kBytes);
  const std::size_t prompt = GENERATE(1u, 7u, 8u, 9u, 12u, 15u, 16u, 17u, 24u, 40u, 63u, 64u, 301u);
  const int variant = GENERATE(0, 1, 2);
  for (const std::int64_t window : {2, 4, 8, 16, 64}) {
    GenerationRequest request = unechoed(window, prompt, 45);
    if (variant == 1) request.num_samples = 3;
    if (variant == 2) request.max_new_tokens = 0, request.given.clear();
    for (const int slice : {1, 7, 64}) {
      CAPTURE(window, prompt, variant, slice);
      Core core(model, {.workers = 0, .prefill_rows_per_step = slice});
      const auto sink = core.generate(request);
      for (int sample = 0; sample < request.num_samples; ++sample) {
        std::vector<std::int32_t> all;
        REQUIRE(sink->recorded[static_cast<std::size_t>(sample)] ==
                in_windows_by_hand(*model, request, sample, all));
        require_little_is_read(sink->result(sample), request, 0);
        REQUIRE(sink->result(sample).window == window);
      }
      if (variant == 2) {
        REQUIRE(core.scheduler.stats().prompt_tokens <= static_cast<std::uint64_t>(window));
      }
    }
  }
}

TEST_CASE("prompt longer than its window: every kind of attention has the bits of one that is read",
          "[window]") {
  const std::string attention = GENERATE(from_range(attention_types()));
  CAPTURE(attention);
  const auto model = tiny_model(TinyModel::kBytes, attention);
  const GenerationRequest request = unechoed(16, 95, 30);
  std::vector<std::int32_t> all;
  const std::vector<RecordedToken> expected = in_windows_by_hand(*model, request, 0, all);
  for (const auto speculation : {Speculation::kOff, Speculation::kOn}) {
    Core core(model, {.workers = 0, .prefill_rows_per_step = 7, .speculation = speculation});
    const auto sink = core.generate(request);
    REQUIRE(sink->recorded[0] == expected);
    require_little_is_read(sink->result(), request, 0);
  }
}

TEST_CASE("prompt of 900,000 bytes in a window of 256: at most 256 are read",
          "[window][threat-56]") {
  const auto model = tiny_model(TinyModel::kBytes);
  GenerationRequest request = unechoed(256, 900'000, 4);
  request.given.clear();
  // The twin of a state that begins where the text does that can be seen.
  GenerationRequest behind = request;
  const auto skipped = static_cast<std::ptrdiff_t>(window_skips(256, 0, 900'000));
  behind.prompt.erase(behind.prompt.begin(), behind.prompt.begin() + skipped);
  behind.sampling = {};
  request.sampling = {};
  Core core(model);
  const auto sink = core.generate(request);
  CHECK(sink->result().skipped_tokens == skipped);
  CHECK(sink->result().prompt_tokens == 900'000 - skipped);
  CHECK(sink->result().prompt_tokens <= 256);
  CHECK(sink->result().position == 900'004);
  CHECK(sink->result().restarts == (900'004 - 1 - 256) / 128 + 1);
  CHECK(core.scheduler.stats().prompt_tokens <= 256);
  // Draws depend on the position: the most likely tokens do not.
  request.sampling.temperature = behind.sampling.temperature = 0;
  const auto sure = core.generate(request);
  const auto alone = core.generate(behind);
  CHECK(sure->tokens() == alone->tokens());
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(sure->recorded[0][i].log2_prob == alone->recorded[0][i].log2_prob);
  }
}

TEST_CASE("penalties count the tokens of a prompt that are not read", "[window]") {
  const auto model = tiny_model(TinyModel::kBytes);
  Core core(model);
  GenerationRequest request = unechoed(8, 300, 20);
  request.sampling.temperature = 0;
  request.sampling.frequency_penalty = 3.0f;
  std::vector<std::int32_t> all;
  CHECK(core.generate(request)->recorded[0] == in_windows_by_hand(*model, request, 0, all));
  // Counts the last 100 tokens: more than the window has.
  request.sampling.penalty_window = 100;
  const auto sink = core.generate(request);
  GenerationRequest echoed = request;
  echoed.echo_prompt = true;
  const auto read = core.generate(echoed);
  CHECK(read->result().prompt_tokens == 300);
  CHECK(read->result().skipped_tokens == 0);
  CHECK(sink->recorded[0] ==
        std::vector<RecordedToken>(read->recorded[0].begin() + 300, read->recorded[0].end()));
}

TEST_CASE("calls of a session with prompts longer than its window: the bits of text that is read",
          "[window]") {
  const auto model = tiny_model(TinyModel::kBytes);
  const std::int64_t window = GENERATE(2, 8, 16);
  const std::size_t first = GENERATE(0u, 3u, 16u, 50u);
  CAPTURE(window, first);
  Core core(model, {.workers = 0, .prefill_rows_per_step = 5});
  const std::string id =
      new_session_in_window(core, {.window = window, .checkpoint_every = 7, .checkpoint_keep = 3});
  std::vector<std::int32_t> all;
  if (first > 0) {
    const GenerationRequest request = unechoed(window, first, 3);
    REQUIRE(core.generate(request, id)->recorded[0] == in_windows_by_hand(*model, request, 0, all));
  }
  for (const std::size_t prompt : {1u, 5u, 9u, 40u, 2u, 33u}) {
    CAPTURE(prompt);
    GenerationRequest request = unechoed(window, prompt, static_cast<std::int64_t>(prompt % 4));
    request.given.clear();
    const auto seen = static_cast<std::int64_t>(all.size());
    const std::vector<RecordedToken> expected = in_windows_by_hand(*model, request, 0, all);
    const auto sink = core.generate(request, id);
    REQUIRE(sink->recorded[0] == expected);
    require_little_is_read(sink->result(), request, seen);
  }
  CHECK(core.store.history(id, /*owner=*/{}, 0, std::nullopt).tokens == all);
  // Also from among the tokens that were not read.
  for (const std::int64_t position : {70, 41, 30, 18, 9, 2}) {
    CAPTURE(position);
    if (position >= static_cast<std::int64_t>(all.size())) continue;
    REQUIRE(core.store.rewind(id, /*owner=*/{}, position, std::nullopt).refusal.error ==
            SessionError::kNone);
    all.resize(static_cast<std::size_t>(position));
    GenerationRequest request = unechoed(window, 1, 12);
    request.given.clear();
    std::vector<std::int32_t> after = all;
    const std::vector<RecordedToken> expected = in_windows_by_hand(*model, request, 0, after);
    REQUIRE(core.generate(request, id)->recorded[0] == expected);
    all = after;
  }
}

TEST_CASE("echo of a prompt longer than its window: sent without being read, at its reader's pace",
          "[window]") {
  const auto model = tiny_model(TinyModel::kBytes);
  Core core(model);
  const std::string id = new_session_in_window(core, {.window = 16});
  GenerationRequest request = window_request(16, 300, 20);
  request.log2_probs = false;
  std::vector<std::int32_t> all;
  const std::vector<RecordedToken> expected = in_windows_by_hand(*model, request, 0, all);
  REQUIRE(expected.size() == 320);
  // A reader that has room for 50 tokens at a time.
  const auto sink = std::make_shared<RecordingSink>();
  sink->room = 50;
  const Core::Call call = core.submit(request, id, sink);
  std::size_t sent = 0;
  while (!sink->finished()) {
    core.run();
    REQUIRE(sink->recorded[0].size() > sent);
    REQUIRE(sink->recorded[0].size() <= sent + 50 + 2);  // and those of the step
    sent = sink->recorded[0].size();
    sink->room = 50;
    core.scheduler.resume(call.handle);
  }
  REQUIRE(sink->recorded[0] == expected);
  require_little_is_read(sink->result(), request, 0);
  CHECK(sink->step_ends > 5);

  // A reader that leaves early leaves the session with what was sent, and it continues from there.
  const auto gone = std::make_shared<RecordingSink>();
  gone->room = 50;
  const Core::Call cut = core.submit(request, id, gone);
  core.run();
  CHECK(gone->recorded[0].size() == 50);
  core.scheduler.cancel(cut.handle);
  core.run();
  REQUIRE(gone->result().reason == FinishReason::kCancelled);
  CHECK(gone->result().position == 370);
  all.insert(all.end(), request.prompt.begin(), request.prompt.begin() + 50);
  CHECK(core.store.history(id, /*owner=*/{}, 0, std::nullopt).tokens == all);
  GenerationRequest next = unechoed(16, 2, 30);
  next.given.clear();
  const std::vector<RecordedToken> after = in_windows_by_hand(*model, next, 0, all);
  CHECK(core.generate(next, id)->recorded[0] == after);

  // A request for its probabilities has the prompt read.
  GenerationRequest scored = window_request(16, 300, 20);
  const auto read = core.generate(scored);
  CHECK(read->result().prompt_tokens == 300);
  CHECK(read->result().skipped_tokens == 0);
}

TEST_CASE("restarts of a window and the tokens that it skips are functions of positions",
          "[window]") {
  for (const std::int64_t window : {2, 4, 6, 16}) {
    for (std::int64_t end = 0; end < 60; ++end) {
      // A state that takes one token after the other.
      std::int64_t origin = 0, restarts = 0;
      std::vector<std::int64_t> restarts_before = {0};  // the draw of token i
      for (std::int64_t i = 0; i < end; ++i) {
        if (i - origin == window) origin += window / 2, ++restarts;
        restarts_before.push_back(restarts);
      }
      for (std::int64_t begin = 0; begin <= end; ++begin) {
        CAPTURE(window, begin, end);
        const std::int64_t before = restarts_before[static_cast<std::size_t>(begin)];
        REQUIRE(window_restarts(window, begin, end) == restarts - before);
        const std::int64_t last = end - origin == window ? origin + window / 2 : origin;
        REQUIRE(window_skips(window, begin, end) ==
                (begin == end ? 0 : std::max<std::int64_t>(last - begin, 0)));
      }
    }
  }
  CHECK(window_restarts(0, 0, 1000) == 0);
  CHECK(window_skips(0, 0, 1000) == 0);
}

TEST_CASE("prompt within its window: begins as an earlier one did, with the same bits",
          "[window]") {
  const auto model = tiny_model(TinyModel::kBytes);
  const std::size_t prompt = GENERATE(31u, 32u, 40u);
  CAPTURE(prompt);
  Core core(model, {.workers = 0}, {.session_memory_bytes = 1u << 30},
            {.memory_bytes = std::size_t{16} << 20, .least_tokens = 4});
  GenerationRequest request = unechoed(32, prompt, 60);
  std::vector<std::int32_t> all;
  const std::vector<RecordedToken> expected = in_windows_by_hand(*model, request, 0, all);
  for (int i = 0; i < 3; ++i) {
    CAPTURE(i);
    const auto sink = core.generate(request);
    REQUIRE(sink->recorded[0] == expected);
    CHECK((sink->result().cached_tokens > 0) == (i == 2 && prompt < 32));
  }
  // States left by a call without a window are as good.
  request.window = 0;
  CHECK((core.generate(request)->result().cached_tokens > 0) == (prompt < 32));
}

}  // namespace
}  // namespace lintel::testing
