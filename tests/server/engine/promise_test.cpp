// SPDX-License-Identifier: Apache-2.0
// Promise 1, batch invariance: the same bits in any batch.
#include <algorithm>
#include <array>
#include <memory>
#include <random>

#include "server/models/batch_rows.h"
#include "tests/server/support/adapters_fixture.h"
#include "tests/server/support/harness.h"
#include "tests/support/case_share.h"
#include "tests/support/catch.h"
#include "tests/support/sanitized.h"

namespace lintel::testing {
namespace {

constexpr int kRequests = 64;

// Different in everything a request can say.
std::vector<GenerationRequest> varied_requests(const Transformer& model) {
  std::mt19937 random(64);
  const auto below = [&](std::uint32_t n) { return static_cast<std::int32_t>(random() % n); };
  const bool filters = model.head().supports_filters();
  const std::uint32_t vocab = static_cast<std::uint32_t>(model.head().vocab_size());
  const bool is_image = model.config().modality == ModalityKind::kImage;
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < kRequests; ++i) {
    GenerationRequest request;
    const std::uint32_t longest_prompt = is_image ? 25 : 100;
    request.prompt.resize((is_image ? 0 : 1) + random() % longest_prompt);
    for (auto& token : request.prompt) token = below(vocab);
    request.max_new_tokens = below(is_image ? 31 : 60);
    request.seed = random();
    request.log2_probs = random() % 4 != 0;
    request.top_log2_probs = below(4);
    request.echo_prompt = random() % 3 == 0;
    request.num_samples = random() % 4 == 0 ? 1 + below(4) : 1;
    const float temperatures[] = {0.0f, 0.5f, 1.0f, 1.3f};
    request.sampling.temperature = temperatures[below(4)];
    if (filters) {
      if (random() % 3 == 0) request.sampling.top_k = 1 + below(20);
      if (random() % 3 == 0) request.sampling.top_p = 0.8f;
      if (random() % 3 == 0) request.sampling.min_p = 0.01f;
      if (random() % 3 == 0) request.sampling.repetition_penalty = 1.2f;
      if (random() % 3 == 0) request.sampling.frequency_penalty = 0.3f;
      // A little, or so much that nearly every draft is accepted.
      if (random() % 3 == 0) request.sampling.logit_bias = {{below(vocab), 2.0f + 4.0f * below(2)}};
    }
    if (random() % 3 == 0) request.stop.tokens = {below(vocab)};
    request.stop.include_in_output = random() % 2 == 0;
    if (filters && i % 4 == 0) {  // many tokens stop it, but not at once
      request.stop.tokens.clear();
      for (std::uint32_t id = i % 5; id < vocab; id += 5) {
        request.stop.tokens.push_back(static_cast<std::int32_t>(id));
      }
      request.stop.min_tokens = std::min<std::int64_t>(1 + i / 2, request.max_new_tokens);
    }
    if (random() % 2 == 0) {
      // Runs and gaps, from the first new position on.
      std::int64_t position = static_cast<std::int64_t>(request.prompt.size());
      if (is_image && position == 0 && random() % 2 == 0) position = 1;
      const std::int64_t end = is_image ? 30 : position + 40;
      const std::uint32_t share = 1 + random() % 4;
      for (; position < end; ++position) {
        if (random() % 5 < share) request.given.push_back({position, below(vocab)});
      }
      if (is_image && request.prompt.empty() && !request.given.empty() &&
          request.given[0].position == 0 && request.max_new_tokens == 0) {
        request.max_new_tokens = 1;
      }
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

// Weights are converted in products, which know nothing of attention. LINTEL_ONLY_KIND: of a
// program whose other kinds are those of engine_test, which has them all.
std::vector<std::pair<std::string, WeightType>> attentions_and_weights() {
#ifdef LINTEL_ONLY_KIND
  return {{LINTEL_ONLY_KIND, WeightType::kF32}};
#else
  std::vector<std::pair<std::string, WeightType>> all;
  for (const std::string& attention : attention_types()) {
    all.push_back({attention, WeightType::kF32});
  }
  all.push_back({"linear", WeightType::kBf16});
  all.push_back({"linear", WeightType::kInt8});
  return all;
#endif
}

using Outputs = std::vector<std::vector<RecordedToken>>;  // [sample]

void require_same(const Outputs& got, const Outputs& expected, std::size_t request) {
  INFO("request " << request);
  REQUIRE(got.size() == expected.size());
  for (std::size_t sample = 0; sample < got.size(); ++sample) {
    INFO("sample " << sample);
    REQUIRE(got[sample] == expected[sample]);
  }
}

// All requests at once, in this order, on real workers or none.
std::vector<Outputs> run_together(std::shared_ptr<const Transformer> model,
                                  const std::vector<GenerationRequest>& requests,
                                  const std::vector<std::size_t>& order,
                                  const Scheduler::Options& options) {
  Core core(std::move(model), options);
  std::vector<Core::Call> calls(requests.size());
  for (const std::size_t i : order) {
    calls[i] = core.submit(requests[i]);
    // Arrivals in between: some requests find a batch under way.
    if (options.workers == 0 && i % 3 == 0) core.scheduler.run_one_step();
  }
  if (options.workers == 0) core.run();
  std::vector<Outputs> outputs;
  for (const auto& call : calls) {
    call.sink->wait_until_finished();
    REQUIRE(call.sink->outcome == RequestOutcome::kDone);
    REQUIRE(call.sink->out_of_order == 0);
    outputs.push_back(call.sink->recorded);
  }
  return outputs;
}

// Alone, together, shuffled, sliced, drafted or not, with no thread, one and two.
void require_same_bits_in_any_company(TinyModel kind, const std::string& attention,
                                      WeightType type) {
  const auto model = tiny_model(kind, attention, type);
  const std::vector<GenerationRequest> requests = varied_requests(*model);

  std::vector<Outputs> alone;
  std::size_t tokens = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Core core(model, {.workers = 0, .speculation = Speculation::kOff});
    alone.push_back(core.generate(requests[i])->recorded);
    Outputs by_hand;
    for (int sample = 0; sample < requests[i].num_samples; ++sample) {
      SequenceState sequence = model->new_sequence();
      by_hand.push_back(generate_naively(*model, requests[i], sample, sequence).tokens);
      tokens += by_hand.back().size();
    }
    require_same(alone.back(), by_hand, i);
  }
  REQUIRE(tokens > 1000);

  std::vector<std::size_t> order(requests.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::mt19937 random(1);
  const auto require_together = [&](const Scheduler::Options& options) {
    CAPTURE(options.workers, options.prefill_rows_per_step, options.max_batch_rows,
            static_cast<int>(options.speculation));
    const auto together = run_together(model, requests, order, options);
    for (std::size_t i = 0; i < requests.size(); ++i) require_same(together[i], alone[i], i);
    std::shuffle(order.begin(), order.end(), random);
  };
  // But at night, each kind runs a share of the schedules: every slice and every width, each with
  // some workers and drafts. Sanitizers see fewer, none of which is without a thread.
  const int fewest_workers = runs_few_cases() ? 1 : 0;
  const std::size_t share = runs_few_cases() ? 12 : kSanitized || !runs_every_case() ? 6 : 1;
  const std::size_t mine =
      (std::hash<std::string>()(attention + to_string(type)) + case_seed()) % share;
  std::size_t schedule = 0;
  for (const auto speculation : {Speculation::kOff, Speculation::kAuto, Speculation::kOn}) {
    for (int workers = fewest_workers; workers <= 2; ++workers) {
      for (const int slice : {1, 7, 64}) {
        for (const int max_rows : {64, std::max(slice, 4)}) {
          const std::size_t number = schedule++;
          if ((number + number / 6) % share != mine) continue;
          require_together({.workers = workers,
                            .max_batch_rows = max_rows,
                            .prefill_rows_per_step = slice,
                            .speculation = speculation});
        }
      }
    }
  }
}

// Two tests, so that they run side by side.
TEST_CASE("batch invariance: 64 requests give the same bits in any batch: images",
          "[promise][threat-8]") {
  const auto [attention, type] = GENERATE(from_range(attentions_and_weights()));
  CAPTURE(attention, to_string(type));
  require_same_bits_in_any_company(TinyModel::kImage, attention, type);
}

TEST_CASE("batch invariance: 64 requests give the same bits in any batch: bytes",
          "[promise][threat-8]") {
  const auto [attention, type] = GENERATE(from_range(attentions_and_weights()));
  CAPTURE(attention, to_string(type));
  require_same_bits_in_any_company(TinyModel::kBytes, attention, type);
}

TEST_CASE("a prompt has the same bits with any rows a step that may be chosen", "[promise]") {
  const auto [attention, type] = GENERATE(from_range(attentions_and_weights()));
  CAPTURE(attention, to_string(type));
  const auto model = changed_model(
      TinyModel::kTokens,
      [name = attention](ModelConfig& config) {
        config.max_length = 400;
        config.attention.assign(config.attention.size(), sample_attention(name));
      },
      {}, type);
  std::mt19937 random(14);
  std::vector<GenerationRequest> requests(3);
  for (GenerationRequest& request : requests) {
    request.prompt.resize(131 + random() % 150);
    for (auto& token : request.prompt) {
      token = static_cast<std::int32_t>(random() % model->head().vocab_size());
    }
    request.max_new_tokens = 6;
    request.seed = random();
    request.log2_probs = request.echo_prompt = true;
  }
  std::vector<Outputs> expected;
  for (const GenerationRequest& request : requests) {
    SequenceState sequence = model->new_sequence();
    expected.push_back({generate_naively(*model, request, 0, sequence).tokens});
  }
  for (const int rows : prompt_row_candidates(128, 0)) {
    CAPTURE(rows);
    const Scheduler::Options options{.workers = 0,
                                     .max_batch_rows = 16,
                                     .prompt_rows_per_step = rows,
                                     .most_rows_per_step = 128};
    Core core(model, options);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      require_same(core.generate(requests[i])->recorded, expected[i], i);
    }
    const std::uint64_t steps = core.scheduler.stats().steps;
    CHECK(steps >= requests[0].prompt.size() / static_cast<std::size_t>(rows));
    const auto together = run_together(model, requests, {2, 0, 1}, options);
    for (std::size_t i = 0; i < requests.size(); ++i) require_same(together[i], expected[i], i);
  }
}

// A model with a layer of every kind of attention, its requests, and the adapters that they take in
// turns: none, one, the other.
struct Party {
  std::shared_ptr<const Transformer> model;
  std::array<SharedAdapter, 3> adapters;
  std::vector<GenerationRequest> requests;
  std::vector<Outputs> alone;

  const SharedAdapter& adapter_of(std::size_t request) const { return adapters[request % 3]; }
};

// The first kind is another one for each `turn`.
Party new_party(TinyModel kind, WeightType type, std::size_t turn, std::size_t num_requests) {
  Party party;
  party.model = changed_model(
      kind,
      [&](ModelConfig& config) {
        std::vector<std::string> kinds = attention_types();
        std::rotate(kinds.begin(), kinds.begin() + static_cast<std::ptrdiff_t>(turn), kinds.end());
        if (config.max_length == 0) config.max_length = 200;  // as some kinds need
        config.n_layers = static_cast<int>(kinds.size());
        config.attention.clear();
        for (const std::string& name : kinds) config.attention.push_back(sample_attention(name));
      },
      {}, type);
  const ModelConfig& config = party.model->config();
  for (std::uint64_t i = 1; i <= 2; ++i) {
    party.adapters[i] = served("adapter", random_adapter(config, 10 * turn + i, 1 + 3 * (i - 1)));
  }
  party.requests = varied_requests(*party.model);
  party.requests.resize(num_requests);
  return party;
}

TEST_CASE("batch invariance: 64 requests over 4 models, 8 adapters and all kinds in any batch",
          "[promise]") {
  std::vector<Party> parties;
  parties.push_back(new_party(TinyModel::kImage, WeightType::kF32, 0, 16));
  parties.push_back(new_party(TinyModel::kBytes, WeightType::kF32, 1, 16));
  parties.push_back(new_party(TinyModel::kTokens, WeightType::kBf16, 2, 16));
  parties.push_back(new_party(TinyModel::kBytes, WeightType::kInt8, 0, 16));
  std::size_t changed = 0;  // by their adapters
  for (Party& party : parties) {
    for (std::size_t i = 0; i < party.requests.size(); ++i) {
      const GenerationRequest& request = party.requests[i];
      const auto by_hand = [&](const SharedAdapter& adapter) {
        Outputs outputs;
        for (int sample = 0; sample < request.num_samples; ++sample) {
          SequenceState sequence = party.model->new_sequence(weights_of(adapter));
          outputs.push_back(generate_naively(*party.model, request, sample, sequence).tokens);
        }
        return outputs;
      };
      Core core(party.model, {.workers = 0, .speculation = Speculation::kOff});
      const Core::Call call = core.submit(request, "", nullptr, party.adapter_of(i));
      core.run();
      party.alone.push_back(call.sink->recorded);
      require_same(party.alone.back(), by_hand(party.adapter_of(i)), i);
      if (party.adapter_of(i) != nullptr) changed += by_hand(nullptr) != party.alone.back();
    }
  }
  CHECK(changed > 30);  // of 44, but for those that ask for nothing that an adapter could change

  std::size_t schedule = 0;
  for (const auto speculation : {Speculation::kOff, Speculation::kAuto, Speculation::kOn}) {
    for (const int workers : {0, 1, 2}) {
      for (const int slice : {1, 7, 64}) {
        const std::size_t number = schedule++;
        if (kSanitized && slice != 7) continue;
        // But at night every two of the three, with one of the third.
        if (!runs_every_case() && !kSanitized && (number + number / 3 + number / 9) % 3 != 0)
          continue;
        CAPTURE(workers, slice, static_cast<int>(speculation));
        std::vector<std::unique_ptr<Core>> cores;
        for (const Party& party : parties) {
          cores.push_back(std::make_unique<Core>(
              party.model,
              Scheduler::Options{
                  .workers = workers, .prefill_rows_per_step = slice, .speculation = speculation}));
        }
        std::vector<std::vector<Core::Call>> calls(parties.size());
        for (std::size_t i = 0; i < parties[0].requests.size(); ++i) {
          for (std::size_t p = 0; p < parties.size(); ++p) {
            const Party& party = parties[p];
            calls[p].push_back(
                cores[p]->submit(party.requests[i], "", nullptr, party.adapter_of(i)));
            if (workers == 0 && i % 3 == 0) cores[p]->scheduler.run_one_step();
          }
        }
        for (std::size_t p = 0; p < parties.size(); ++p) {
          INFO("model " << p);
          if (workers == 0) cores[p]->run();
          for (std::size_t i = 0; i < calls[p].size(); ++i) {
            calls[p][i].sink->wait_until_finished();
            require_same(calls[p][i].sink->recorded, parties[p].alone[i], i);
          }
        }
      }
    }
  }
}

TEST_CASE("pauses change no bits", "[promise]") {
  const auto model = tiny_model(TinyModel::kBytes);
  const std::vector<GenerationRequest> requests = varied_requests(*model);
  std::vector<Outputs> alone;
  for (const auto& request : requests) alone.push_back(Core(model).generate(request)->recorded);
  const auto speculation = GENERATE(Speculation::kOff, Speculation::kAuto, Speculation::kOn);
  Core core(
      model,
      {.workers = 0, .max_batch_rows = 8, .prefill_rows_per_step = 5, .speculation = speculation});
  std::vector<Core::Call> calls;
  for (const auto& request : requests) {
    auto sink = std::make_shared<RecordingSink>(request.num_samples);
    sink->room = 3;
    calls.push_back(core.submit(request, "", sink));
  }
  while (!core.scheduler.idle()) {
    core.run();
    for (auto& call : calls) {
      call.sink->room = 3;
      core.scheduler.resume(call.handle);
    }
  }
  for (std::size_t i = 0; i < requests.size(); ++i) {
    require_same(calls[i].sink->recorded, alone[i], i);
  }
}

}  // namespace
}  // namespace lintel::testing
