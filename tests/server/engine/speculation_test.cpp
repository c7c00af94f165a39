// SPDX-License-Identifier: Apache-2.0
// Speculation: fewer steps, the same bits.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "model/formats/safetensors.h"
#include "server/engine/drafter.h"
#include "tests/server/support/harness.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

Scheduler::Options with(Speculation speculation, int speculation_rows = 16) {
  return {.workers = 0, .speculation = speculation, .speculation_rows = speculation_rows};
}

// One token nearly always: its drafts are accepted.
GenerationRequest monotonous(std::int32_t token, std::int64_t max_new_tokens,
                             std::uint64_t seed = 1) {
  GenerationRequest request;
  request.prompt = {3, 7};
  request.max_new_tokens = max_new_tokens;
  request.seed = seed;
  request.sampling.logit_bias = {{token, 14.0f}};
  request.log2_probs = true;
  return request;
}

// Partly so: drafts are right and wrong, and end at every kind of end.
GenerationRequest varied(std::mt19937& random) {
  const auto below = [&](std::uint32_t n) { return static_cast<std::int32_t>(random() % n); };
  GenerationRequest request;
  request.prompt.resize(random() % 5);
  for (auto& token : request.prompt) token = below(50);
  request.max_new_tokens = below(30);
  request.seed = random();
  request.log2_probs = true;
  request.top_log2_probs = below(3);
  request.sampling.logit_bias = {{below(3), 5.0f}, {3 + below(3), 5.0f}};
  if (random() % 2 == 0) request.sampling.top_p = 0.9f;
  if (random() % 2 == 0) request.sampling.frequency_penalty = 0.4f;
  if (random() % 2 == 0) request.stop.tokens = {below(6), below(50)};
  request.stop.include_in_output = random() % 2 == 0;
  return request;
}

TEST_CASE("predictable text takes fewer steps") {
  const std::string attention = GENERATE(from_range(attention_types()));
  CAPTURE(attention);
  const auto model = tiny_model(TinyModel::kBytes, attention);
  const GenerationRequest request = monotonous(11, 200);
  Core without(model, with(Speculation::kOff));
  const auto expected = without.generate(request);
  REQUIRE(expected->result().drafted_tokens == 0);
  Core core(model, with(Speculation::kAuto));
  const auto sink = core.generate(request);
  REQUIRE(sink->recorded == expected->recorded);
  const Scheduler::Stats stats = core.scheduler.stats();
  CHECK(without.scheduler.stats().steps == 200);
  CHECK(stats.steps < 200 / 2);
  // Every step yields a token, and one more for every right draft.
  CHECK(stats.steps + stats.accepted_tokens == 200);
  CHECK(stats.drafted_tokens >= stats.accepted_tokens);
  CHECK(sink->result().drafted_tokens == static_cast<std::int64_t>(stats.drafted_tokens));
  CHECK(sink->result().accepted_tokens == static_cast<std::int64_t>(stats.accepted_tokens));
}

TEST_CASE("unpredictable text has few draft tokens") {
  Core core(tiny_model(TinyModel::kTokens), with(Speculation::kAuto));
  GenerationRequest request = monotonous(11, 400);
  request.sampling.logit_bias.clear();
  request.sampling.temperature = 3.0f;
  core.generate(request);
  CHECK(core.scheduler.stats().drafted_tokens < 80);  // rows cost a tenth of a step
}

TEST_CASE("where many decode nothing is drafted") {
  Core core(tiny_model(TinyModel::kTokens), with(Speculation::kAuto, /*speculation_rows=*/8));
  for (std::uint64_t i = 0; i < 8; ++i) core.submit(monotonous(11, 50, i));
  core.run();
  CHECK(core.scheduler.stats().drafted_tokens == 0);
  // And where fewer do, the step has no more rows than that.
  const auto first = core.submit(monotonous(11, 100, 8));
  const auto second = core.submit(monotonous(12, 100, 9));
  std::uint64_t rows = core.scheduler.stats().rows;
  while (core.scheduler.run_one_step()) {
    CHECK(core.scheduler.stats().rows - rows <= 8);
    rows = core.scheduler.stats().rows;
  }
  CHECK(first.sink->result().accepted_tokens > 20);
  CHECK(second.sink->result().accepted_tokens > 20);
}

TEST_CASE("a request that pauses after its draft tokens continues with the same bits") {
  const auto model = tiny_model(TinyModel::kTokens);
  Core without(model, with(Speculation::kOff));
  const auto expected = without.generate(monotonous(11, 200, 1));
  Core core(model, with(Speculation::kAuto));
  const auto other = core.submit(monotonous(12, 2000, 2));
  const auto slow = std::make_shared<RecordingSink>();
  slow->room = 7;
  const auto call = core.submit(monotonous(11, 200, 1), "", slow);
  // Others have the memory of its drafts while it waits.
  while (!slow->finished()) {
    for (int i = 0; i < 6; ++i) core.scheduler.run_one_step();
    slow->room += 7;
    core.scheduler.resume(call.handle);
  }
  CHECK(slow->result().accepted_tokens > 20);
  CHECK(slow->recorded == expected->recorded);
}

TEST_CASE("draft tokens make a step wider than the requests that may share it") {
  const auto model = tiny_model(TinyModel::kTokens);
  Core without(model, with(Speculation::kOff));
  const auto expected = without.generate(monotonous(11, 200, 1));
  Core core(
      model,
      {.workers = 0, .max_batch_rows = 2, .prompt_rows_per_step = 12, .speculation_rows = 10});
  const auto call = core.submit(monotonous(11, 200, 1));
  core.submit(monotonous(12, 200, 2));
  std::uint64_t most = 0;
  std::uint64_t rows = 0;
  while (core.scheduler.run_one_step()) {
    most = std::max(most,
                    core.scheduler.stats().rows - std::exchange(rows, core.scheduler.stats().rows));
  }
  CHECK(most == 10);
  CHECK(call.sink->recorded == expected->recorded);
}

TEST_CASE("calls of a session have the same tokens with and without speculation") {
  const std::string attention = GENERATE(from_range(attention_types()));
  CAPTURE(attention);
  const auto model = tiny_model(TinyModel::kTokens, attention);
  Core without(model, with(Speculation::kOff));
  Core automatic(model, with(Speculation::kAuto));
  Core always(model, with(Speculation::kOn, /*speculation_rows=*/5));
  std::mt19937 random(3);
  for (int session = 0; session < 20; ++session) {
    const std::int64_t max_tokens = session % 2 == 0 ? 60 : 500;
    std::vector<std::string> ids;
    for (Core* core : {&without, &automatic, &always}) {
      ids.push_back(core->new_session(max_tokens));
    }
    for (int call = 0; call < 6; ++call) {
      GenerationRequest request = varied(random);
      if (call == 0 && request.prompt.empty()) request.prompt = {1};
      const std::int64_t held = without.session_tokens(ids[0]);
      const auto room = static_cast<std::size_t>(max_tokens - held);
      request.prompt.resize(std::min(request.prompt.size(), room));
      CAPTURE(session, call, held);
      const auto expected = without.generate(request, ids[0]);
      const auto drafted = automatic.generate(request, ids[1]);
      const auto forced = always.generate(request, ids[2]);
      REQUIRE(drafted->recorded == expected->recorded);
      REQUIRE(forced->recorded == expected->recorded);
      for (const auto& sink : {drafted, forced}) {
        REQUIRE(sink->result().reason == expected->result().reason);
        REQUIRE(sink->result().position == expected->result().position);
        REQUIRE(sink->result().generated_tokens == expected->result().generated_tokens);
      }
      REQUIRE(automatic.session_tokens(ids[1]) == without.session_tokens(ids[0]));
      REQUIRE(always.session_tokens(ids[2]) == without.session_tokens(ids[0]));
      auto lease = always.store.lease(ids[2]).lease;
      const SequenceState& sequence = lease.sequence();
      REQUIRE(sequence.bytes() <= model->state_bytes(sequence.position()));
    }
  }
  CHECK(automatic.scheduler.stats().accepted_tokens > 20);
  CHECK(always.scheduler.stats().accepted_tokens > 100);
  CHECK(always.scheduler.stats().drafted_tokens > 2 * always.scheduler.stats().accepted_tokens);
}

TEST_CASE("a call cancelled among accepted drafts keeps its tokens") {
  const auto model = tiny_model(TinyModel::kTokens);
  const GenerationRequest request = monotonous(11, 100);
  Core without(model, with(Speculation::kOff));
  const auto expected = without.generate(request)->recorded[0];
  for (std::size_t at = 1; at < 40; ++at) {
    CAPTURE(at);
    Core core(model, with(Speculation::kOn));
    const std::string id = core.new_session();
    const auto sink = std::make_shared<RecordingSink>();
    const Core::Call call = core.submit(request, id, sink);
    sink->when_token = [&, count = std::size_t{0}](const TokenEvent&) mutable {
      if (++count == at) core.scheduler.cancel(call.handle);
    };
    core.run();
    REQUIRE(sink->outcome == RequestOutcome::kCancelled);
    std::vector<RecordedToken> tokens = sink->recorded[0];
    REQUIRE(tokens.size() >= at);
    REQUIRE(core.session_tokens(id) == static_cast<std::int64_t>(2 + tokens.size()));
    GenerationRequest rest = request;
    rest.prompt.clear();
    rest.max_new_tokens = 100 - static_cast<std::int64_t>(tokens.size());
    const auto rest_sink = core.generate(rest, id);
    for (const RecordedToken& next : rest_sink->recorded[0]) tokens.push_back(next);
    REQUIRE(tokens == expected);
  }
}

TEST_CASE("a stop string may end among accepted drafts") {
  const auto model = tiny_model(TinyModel::kBytes);
  GenerationRequest request = monotonous('a', 60);
  request.stop.strings = {std::string(GENERATE(1, 2, 7, 20), 'a')};
  request.stop.include_in_output = GENERATE(false, true);
  Core without(model, with(Speculation::kOff));
  const std::string id = without.new_session();
  const auto expected = without.generate(request, id);
  REQUIRE(expected->result().reason == FinishReason::kStopString);
  for (const Speculation speculation : {Speculation::kAuto, Speculation::kOn}) {
    Core core(model, with(speculation));
    const std::string other = core.new_session();
    const auto sink = core.generate(request, other);
    CHECK(sink->recorded == expected->recorded);
    CHECK(sink->result().reason == FinishReason::kStopString);
    CHECK(core.session_tokens(other) == without.session_tokens(id));
    // Nothing is left of drafts after the stop.
    const GenerationRequest more = monotonous('b', 20, 5);
    const std::string fork = without.new_session();
    without.generate(request, fork);
    CHECK(core.generate(more, other)->recorded == without.generate(more, fork)->recorded);
  }
}

TEST_CASE("recompute mode drafts only on demand, and with the same tokens") {
  TemporaryDirectory directory;
  write_random_model(directory.path(), tiny_config(TinyModel::kBytes), 7, 0.6f);
  const std::shared_ptr<const Transformer> model = Transformer::load(
      directory.path(), {.attention = parse_attention_spec("softmax:recompute=true")});
  const GenerationRequest request = monotonous(11, 40);
  Core without(model, with(Speculation::kOff));
  const auto expected = without.generate(request)->recorded;
  Core automatic(model, with(Speculation::kAuto));
  CHECK(automatic.generate(request)->recorded == expected);
  CHECK(automatic.scheduler.stats().drafted_tokens == 0);
  Core always(model, with(Speculation::kOn));
  CHECK(always.generate(request)->recorded == expected);
  CHECK(always.scheduler.stats().accepted_tokens > 20);
}

// ---- The model's own draft head

// A checkpoint of Qwen3.5's family that counts: after token t comes t + 1, and 0 after the last.
// Nothing repeats before all tokens came, so that only its draft head knows what is next.

// Kinds of its draft head: always right, always wrong, which expects the token that has just come,
// or right where the values that its attention finds disturb it little.
enum class CountingDrafts { kNone, kRight, kWrong, kDisturbed };

void write_counting_checkpoint(const std::filesystem::path& directory, std::int64_t vocabulary,
                               CountingDrafts drafts, float disturbance = 0.0f) {
  constexpr std::int64_t kWidth = 32, kFfWidth = 48, kHeads = 2, kHeadWidth = 16;
  constexpr std::int64_t kKeys = 2 * 8, kValues = 4 * 8;
  std::ofstream(directory / "config.json") << nlohmann::json{
      {"model_type", "qwen3_5_text"},    {"vocab_size", vocabulary},
      {"hidden_size", kWidth},           {"intermediate_size", kFfWidth},
      {"num_hidden_layers", 2},          {"num_attention_heads", kHeads},
      {"num_key_value_heads", kHeads},   {"head_dim", kHeadWidth},
      {"linear_num_key_heads", 2},       {"linear_num_value_heads", 4},
      {"linear_key_head_dim", 8},        {"linear_value_head_dim", 8},
      {"linear_conv_kernel_dim", 4},     {"tie_word_embeddings", false},
      {"max_position_embeddings", 4096}, {"layer_types", {"linear_attention", "full_attention"}}};
  std::mt19937 random(5);
  struct Tensor {
    std::string name;
    std::vector<std::int64_t> shape;
    std::vector<float> values;
  };
  std::vector<Tensor> tensors;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape, float scale) {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    std::vector<float> values;
    std::normal_distribution<float> of(0.0f, scale == 0.0f ? 1.0f : scale);
    for (std::int64_t i = 0; i < count; ++i) values.push_back(scale == 0.0f ? 0.0f : of(random));
    tensors.push_back({.name = name, .shape = std::move(shape), .values = std::move(values)});
  };
  // A layer's channels add nothing to the residual stream.
  const auto add_channels = [&](const std::string& layer) {
    add(layer + "input_layernorm.weight", {kWidth}, 0.0f);
    add(layer + "post_attention_layernorm.weight", {kWidth}, 0.0f);
    add(layer + "mlp.gate_proj.weight", {kFfWidth, kWidth}, 0.1f);
    add(layer + "mlp.up_proj.weight", {kFfWidth, kWidth}, 0.1f);
    add(layer + "mlp.down_proj.weight", {kWidth, kFfWidth}, 0.0f);
  };
  const auto add_softmax = [&](const std::string& layer, float out_scale) {
    const std::string attention = layer + "self_attn.";
    add(attention + "q_proj.weight", {2 * kHeads * kHeadWidth, kWidth}, 0.1f);
    add(attention + "k_proj.weight", {kHeads * kHeadWidth, kWidth}, 0.1f);
    add(attention + "v_proj.weight", {kHeads * kHeadWidth, kWidth}, 0.1f);
    add(attention + "q_norm.weight", {kHeadWidth}, 0.0f);
    add(attention + "k_norm.weight", {kHeadWidth}, 0.0f);
    add(attention + "o_proj.weight", {kWidth, kHeads * kHeadWidth}, out_scale);
    add_channels(layer);
  };
  add("model.embed_tokens.weight", {vocabulary, kWidth}, 1.0f);
  // Rows get the same length, so that each is most like itself.
  for (auto row = tensors.back().values.begin(); row != tensors.back().values.end();
       row += kWidth) {
    const float squares = std::inner_product(row, row + kWidth, row, 0.0f);
    std::for_each_n(row, kWidth, [&](float& value) { value *= std::sqrt(kWidth / squares); });
  }
  // The row of a token is the embedding of the one before it.
  std::vector<float> head = tensors.back().values;
  std::rotate(head.begin(), head.end() - kWidth, head.end());
  tensors.push_back({.name = "lm_head.weight", .shape = {vocabulary, kWidth}, .values = head});
  add("model.norm.weight", {kWidth}, 0.0f);
  const std::string linear = "model.layers.0.linear_attn.";
  add(linear + "in_proj_qkv.weight", {2 * kKeys + kValues, kWidth}, 0.1f);
  add(linear + "in_proj_z.weight", {kValues, kWidth}, 0.1f);
  add(linear + "in_proj_b.weight", {4, kWidth}, 0.1f);
  add(linear + "in_proj_a.weight", {4, kWidth}, 0.1f);
  add(linear + "conv1d.weight", {2 * kKeys + kValues, 1, 4}, 0.1f);
  add(linear + "A_log", {4}, 0.1f);
  add(linear + "dt_bias", {4}, 0.1f);
  add(linear + "norm.weight", {8}, 0.1f);
  add(linear + "out_proj.weight", {kWidth, kValues}, 0.0f);
  add_channels("model.layers.0.");
  add_softmax("model.layers.1.", 0.0f);
  if (drafts != CountingDrafts::kNone) {
    add_softmax("mtp.layers.0.", disturbance);
    for (const char* const norm : {"norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"}) {
      add("mtp." + std::string(norm) + ".weight", {kWidth}, 0.0f);
    }
    // The embedding of the last token, or what the model made of the one before it.
    add("mtp.fc.weight", {kWidth, 2 * kWidth}, 0.0f);
    const std::int64_t first = drafts == CountingDrafts::kWrong ? kWidth : 0;
    for (std::int64_t i = 0; i < kWidth; ++i) {
      tensors.back().values[static_cast<std::size_t>(i * 2 * kWidth + first + i)] = 1.0f;
    }
  }
  std::vector<TensorToWrite> to_write;
  for (const Tensor& tensor : tensors) {
    to_write.push_back({.name = tensor.name, .shape = tensor.shape, .values = tensor.values});
  }
  write_safetensors(directory / "model.safetensors", to_write);
}

std::shared_ptr<const Transformer> counting_model(CountingDrafts drafts, float disturbance = 0.0f) {
  const TemporaryDirectory directory;
  write_counting_checkpoint(directory.path(), /*vocabulary=*/700, drafts, disturbance);
  return Transformer::load(directory.path(), {});
}

GenerationRequest count_from(std::int32_t token, std::int64_t max_new_tokens) {
  GenerationRequest request;
  request.prompt = {token, token + 1, token + 2};
  request.max_new_tokens = max_new_tokens;
  request.sampling.temperature = 0.3f;
  request.log2_probs = true;
  return request;
}

TEST_CASE("a draft head that is right makes steps fewer, of one sequence and of several") {
  const auto model = counting_model(CountingDrafts::kRight);
  REQUIRE(model->has_draft_head());
  const int sequences = GENERATE(1, 3);
  const auto speculation = GENERATE(Speculation::kAuto, Speculation::kOn);
  const auto generate = [&](Core& core) {
    std::vector<Core::Call> calls;
    for (int s = 0; s < sequences; ++s) calls.push_back(core.submit(count_from(20 * s, 200)));
    core.run();
    std::vector<std::vector<RecordedToken>> tokens;
    for (const Core::Call& call : calls) tokens.push_back(call.sink->recorded[0]);
    return tokens;
  };
  Core without(model, with(Speculation::kOff));
  const auto expected = generate(without);
  REQUIRE(expected[0].size() == 200);
  REQUIRE(expected[0][199].token == 202);
  // A row takes a quarter of a step in f32 where nothing is measured.
  const StepCost cost{.fixed = 1.0f, .row = 0.05f, .draft = 0.1f, .more_draft = 0.01f};
  Core core(model, with(speculation), {.session_memory_bytes = 1u << 30}, {.memory_bytes = 0},
            cost);
  CHECK(generate(core) == expected);
  const Scheduler::Stats stats = core.scheduler.stats();
  CHECK(stats.steps < 200 / 2);
  CHECK(stats.accepted_tokens > static_cast<std::uint64_t>(sequences) * 100);
  if (speculation == Speculation::kOn) return;  // which also feeds the least likely drafts
  CHECK(stats.accepted_tokens * 10 > stats.drafted_tokens * 9);
}

TEST_CASE("draft tokens begin when the cost of a step is known, and they pay") {
  const auto model = counting_model(CountingDrafts::kRight);
  Core core(model, with(Speculation::kAuto), {.session_memory_bytes = 1u << 30},
            {.memory_bytes = 0}, StepCost{.fixed = 0.0f, .row = 1.0f});
  const auto before = core.generate(count_from(0, 200));
  CHECK(core.scheduler.stats().steps >= 200);
  CHECK(core.scheduler.stats().drafted_tokens == 0);
  core.scheduler.set_step_cost({.fixed = 1.0f, .row = 0.05f, .draft = 0.1f, .more_draft = 0.01f});
  const auto after = core.generate(count_from(0, 200));
  CHECK(after->recorded == before->recorded);
  CHECK(core.scheduler.stats().accepted_tokens > 100);
}

// True if the first draft token after a prompt is right, if the head has read the last `reads`
// tokens of the prompt.
bool is_first_draft_right(const Transformer& model, const std::vector<std::int32_t>& prompt,
                          std::size_t reads) {
  Workspace workspace = model.new_workspace(prompt.size());
  SequenceState sequence = model.new_sequence();
  DraftState state = model.new_draft_state();
  const std::size_t first = prompt.size() - std::min(reads + 1, prompt.size());
  std::vector<BatchRow> rows;
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    rows.push_back({.token = prompt[i], .sequence = &sequence, .keeps_hidden = i >= first});
  }
  model.step(rows, workspace);
  std::vector<std::int32_t> after(prompt.begin() + static_cast<std::ptrdiff_t>(first) + 1,
                                  prompt.end());
  after.push_back(prompt.back() + 1);
  std::int32_t draft = 0;
  const DraftRequest request{.state = &state, .tokens = after, .drafts = {&draft, 1}};
  model.draft({&request, 1}, workspace);
  return draft == prompt.back() + 2;
}

TEST_CASE("a draft head reads the end of a prompt before its first draft token") {
  struct Case {
    std::size_t length;
    float disturbance;
    int samples;
  };
  const auto [length, disturbance, samples] =
      GENERATE(Case{6, 1.5f, 1}, Case{6, 1.5f, 3}, Case{90, 6.0f, 1}, Case{680, 8.0f, 1});
  const auto model = counting_model(CountingDrafts::kDisturbed, disturbance);
  const auto window = static_cast<std::size_t>(model->draft_window());
  REQUIRE(window > 90);
  REQUIRE(window < 680 - 1);
  std::mt19937 random(11);
  int right = 0, right_without = 0;
  std::int64_t accepted = 0;
  Core core(model, with(Speculation::kOn));
  constexpr int kPrompts = 30;
  for (int i = 0; i < kPrompts; ++i) {
    GenerationRequest request;
    for (std::size_t t = 0; t < length; ++t) {
      request.prompt.push_back(static_cast<std::int32_t>(random() % 600));
    }
    request.max_new_tokens = 3;
    request.num_samples = samples;
    request.sampling.temperature = 0.0f;
    right += is_first_draft_right(*model, request.prompt, window) ? 1 : 0;
    right_without += is_first_draft_right(*model, request.prompt, 0) ? 1 : 0;
    // The first of several reads the prompt, and has drafts one token earlier.
    accepted += core.generate(request)->result(samples - 1).accepted_tokens;
  }
  CHECK(right != right_without);
  CHECK(right > 0);
  CHECK(right < kPrompts);
  CHECK(accepted == right);
}

TEST_CASE("a draft head that is wrong is soon asked no more, and changes no token") {
  const auto model = counting_model(CountingDrafts::kWrong);
  Core without(model, with(Speculation::kOff));
  const auto expected = without.generate(count_from(0, 600));
  Core core(model, with(Speculation::kAuto));
  REQUIRE(expected->recorded[0][599].token == 602);
  CHECK(core.generate(count_from(0, 600))->recorded == expected->recorded);
  CHECK(core.scheduler.stats().accepted_tokens == 0);
  CHECK(core.scheduler.stats().drafted_tokens < 40);
  Core always(model, with(Speculation::kOn));
  CHECK(always.generate(count_from(0, 600))->recorded == expected->recorded);
  CHECK(always.scheduler.stats().drafted_tokens > 600);
}

TEST_CASE("a request that fails among the draft tokens of a head costs others nothing") {
  const auto model = counting_model(CountingDrafts::kRight);
  Core without(model, with(Speculation::kOff));
  const auto expected = without.generate(count_from(100, 200));
  for (int at = 1; at < 100; at += 7) {
    CAPTURE(at);
    Scheduler::Options options = with(Speculation::kOn);
    options.max_batch_rows = 40;
    Core core(model, options);
    GenerationRequest samples = count_from(0, 200);
    samples.num_samples = 3;
    const auto sink = std::make_shared<RecordingSink>(samples.num_samples);
    bool throws = false;
    sink->when_token = [&](const TokenEvent&) {
      if (throws) throw std::runtime_error("the sink is gone");
    };
    const Core::Call other = core.submit(count_from(100, 200));
    const Core::Call failing = core.submit(samples, "", sink);
    for (int step = 0; step < at; ++step) core.scheduler.run_one_step();
    // A prompt takes the rows that draft tokens had: the samples have fewer than in the last step.
    GenerationRequest reading = count_from(0, 5);
    reading.prompt.assign(300, 1);
    core.submit(reading);
    throws = true;
    core.run();
    CHECK((failing.sink->outcome == RequestOutcome::kInternal || at > 30));
    CHECK(other.sink->recorded == expected->recorded);
  }
}

TEST_CASE("calls of a session have the same tokens with and without the draft head") {
  const auto drafts = GENERATE(CountingDrafts::kRight, CountingDrafts::kWrong);
  const auto model = counting_model(drafts);
  Core without(model, with(Speculation::kOff));
  Core automatic(model, with(Speculation::kAuto));
  Core always(model, with(Speculation::kOn, /*speculation_rows=*/5));
  std::mt19937 random(3);
  for (int session = 0; session < 5; ++session) {
    std::vector<std::string> ids;
    for (Core* core : {&without, &automatic, &always}) ids.push_back(core->new_session(500));
    for (int call = 0; call < 6; ++call) {
      GenerationRequest request = varied(random);
      if (call == 0 && request.prompt.empty()) request.prompt = {1};
      request.sampling.logit_bias.clear();
      request.sampling.temperature = static_cast<float>(call) / 4.0f;
      CAPTURE(session, call);
      const auto expected = without.generate(request, ids[0]);
      REQUIRE(automatic.generate(request, ids[1])->recorded == expected->recorded);
      REQUIRE(always.generate(request, ids[2])->recorded == expected->recorded);
      REQUIRE(automatic.session_tokens(ids[1]) == without.session_tokens(ids[0]));
      REQUIRE(always.session_tokens(ids[2]) == without.session_tokens(ids[0]));
    }
  }
}

// ---- Drafter

std::int32_t right_drafts(Drafter& drafter, const std::vector<std::int32_t>& tokens,
                          float least_probability = 0.5f) {
  std::int32_t right = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) {
      const Drafter::DraftToken draft = drafter.next_draft();
      if (draft.probability > least_probability && draft.token == tokens[i]) ++right;
    }
    drafter.observe(tokens[i]);
  }
  return right;
}

TEST_CASE("a drafter learns which tokens repeat and which do not") {
  std::vector<std::int32_t> cycle;
  for (int i = 0; i < 300; ++i) cycle.push_back(i * i % 7 + i % 3);
  Drafter of_cycle(tiny_config(TinyModel::kTokens));
  CHECK(right_drafts(of_cycle, cycle) > 250);

  std::mt19937 random(1);
  Drafter of_noise(tiny_config(TinyModel::kTokens));
  int trusted = 0;
  for (int i = 0; i < 1000; ++i) {
    if (i > 0 && of_noise.next_draft().probability > 0.5f) ++trusted;
    of_noise.observe(static_cast<std::int32_t>(random() % 50));
  }
  CHECK(trusted < 150);  // of 1000 drafts
}

TEST_CASE("a drafter of a checkpoint finds passages of a long prompt again") {
  std::mt19937 random(1);
  std::vector<std::int32_t> prompt;
  for (int i = 0; i < 8000; ++i) prompt.push_back(static_cast<std::int32_t>(random() % 100'000));
  ModelConfig config = tiny_config(TinyModel::kTokens);
  const auto right_of_passage = [&](std::size_t first) {
    Drafter drafter(config);
    for (const std::int32_t token : prompt) drafter.observe(token);
    return right_drafts(drafter,
                        {prompt.begin() + static_cast<std::ptrdiff_t>(first),
                         prompt.begin() + static_cast<std::ptrdiff_t>(first) + 400},
                        /*least_probability=*/0.4f);
  };
  CHECK(right_of_passage(7500) > 300);
  CHECK(right_of_passage(1000) < 100);  // too far for the tables of small models
  config.family = "qwen3_5";
  CHECK(right_of_passage(7500) > 300);
  CHECK(right_of_passage(1000) > 300);
  CHECK(Drafter::bytes(config) < 1'000'000);
}

TEST_CASE("in an image a drafter looks at the row above") {
  ModelConfig config = tiny_config(TinyModel::kImage);
  config.image = {.height = 60, .width = 20, .channels = 1, .start_token = 0};
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 1200; ++i) {
    // Vertical stripes of different widths.
    tokens.push_back("00112000033330000440"[i % 20] - '0');
  }
  Drafter drafter(config);
  CHECK(right_drafts(drafter, tokens) > 1100);
}

TEST_CASE("assumed tokens precede the next draft and are forgotten") {
  Drafter drafter(tiny_config(TinyModel::kTokens));
  for (int i = 0; i < 40; ++i) drafter.observe(i % 4);
  for (int i = 0; i < 10; ++i) {
    const Drafter::DraftToken draft = drafter.next_draft();
    CHECK(draft.token == i % 4);
    REQUIRE(drafter.assume(draft.token));
  }
  drafter.observe(0);
  CHECK(drafter.next_draft().token == 1);
  // However far it goes, it ends.
  int assumed = 0;
  while (drafter.assume(1)) REQUIRE(++assumed < 100000);
  drafter.observe(1);
  CHECK(drafter.next_draft().token == 2);
}

TEST_CASE("a drafter that is asked late has learnt the same, of the last thousand tokens") {
  const std::int32_t num_tokens = GENERATE(10, 1000, 5000);
  Drafter asked(tiny_config(TinyModel::kTokens));
  Drafter late(tiny_config(TinyModel::kTokens));
  for (std::int32_t i = 0; i < num_tokens; ++i) {
    const std::int32_t token = i % 7 % 5;
    asked.observe(token);
    late.observe(token);
    asked.next_draft();
  }
  CHECK(late.next_draft().token == asked.next_draft().token);
  CHECK(late.next_draft().claimed == Approx(asked.next_draft().claimed).margin(0.05));
  CHECK(late.next_draft().token == num_tokens % 7 % 5);
}

TEST_CASE("drafts that are rejected lower the trust in their context") {
  Drafter drafter(tiny_config(TinyModel::kTokens));
  for (int i = 0; i < 40; ++i) drafter.observe(i % 4);
  const float before = drafter.next_draft().probability;
  for (int i = 0; i < 20; ++i) drafter.learn(drafter.next_draft(), /*right=*/false);
  CHECK(drafter.next_draft().probability < before / 2);
  for (int i = 0; i < 200; ++i) drafter.learn(drafter.next_draft(), /*right=*/true);
  CHECK(drafter.next_draft().probability == before);
}

TEST_CASE("a context that fails leaves the draft to one that does not") {
  Drafter drafter(tiny_config(TinyModel::kTokens));
  for (int i = 0; i < 40; ++i) drafter.observe(i % 4);
  const Drafter::DraftToken first = drafter.next_draft();
  for (int i = 0; i < 3; ++i) drafter.learn(first, /*right=*/false);
  const Drafter::DraftToken second = drafter.next_draft();
  CHECK(second.context != first.context);
  CHECK(second.token == first.token);
  CHECK(second.probability > first.probability * 0.9f);
  // A drafter that failed is asked again once the other has failed as often.
  for (int i = 0; i < 3 * 4; ++i) drafter.learn(drafter.next_draft(), /*right=*/false);
  CHECK(drafter.next_draft().probability < first.probability * 0.7f);
}

TEST_CASE("a short context drafts where the longest has no match") {
  ModelConfig config = tiny_config(TinyModel::kImage);
  config.image = {.height = 60, .width = 20, .channels = 1, .start_token = 0};
  Drafter drafter(config);
  // Below a row of noise one of a token that no row had before.
  std::mt19937 random(1);
  const auto token = [&](int i) {
    return i / 20 % 2 == 0 ? static_cast<std::int32_t>(random()) & 0xffff : -i / 20;
  };
  int right = 0;
  for (int i = 0; i < 600; ++i) {
    const std::int32_t next = token(i);
    if (i > 20 && i % 40 == 30) {
      const Drafter::DraftToken draft = drafter.next_draft();
      right += draft.token == next && draft.probability > 0.5f ? 1 : 0;
    }
    drafter.observe(next);
  }
  CHECK(right == 15);
}

}  // namespace
}  // namespace lintel::testing
