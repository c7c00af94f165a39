// Requests with particles: what they aim at, and that it is a function of the request alone.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>

#include "model/attention/declaration.h"
#include "server/particles/particle_set.h"
#include "tests/server/support/harness.h"
#include "tests/support/allocation_count.h"
#include "tests/support/sanitized.h"
#include "tests/support/watched_memory.h"

namespace lintel::testing {
namespace {

using Path = std::vector<std::int32_t>;

struct Filtered {
  std::vector<std::vector<Value>> samples;
  double log2_evidence = 0;
};

std::optional<std::int32_t> given_at(const GenerationRequest& request, std::int64_t position) {
  for (const GivenValue& given : request.given) {
    if (given.position == position) return given.value;
  }
  return std::nullopt;
}

// The naive twin: all particles one position on, one row at a time, with their weights beside them.
Filtered filter_naively(const Transformer& model, const GenerationRequest& request) {
  const auto count = static_cast<std::size_t>(request.particles);
  Workspace workspace = model.new_workspace(1);
  SamplingScratch scratch;
  const auto feed = [&](SequenceState& sequence) {
    const StepRow row{*sequence.pending, &sequence, /*wants_output=*/true};
    sequence.pending.reset();
    const auto output = model.step(std::span(&row, 1), workspace).row(0);
    return std::vector<float>(output.begin(), output.end());
  };
  const auto take = [](SequenceState& sequence, std::int32_t token) {
    sequence.pending = token;
    if (!sequence.counts.empty()) ++sequence.counts[static_cast<std::size_t>(token)];
  };
  SequenceState first = model.new_sequence();
  for (const std::int32_t token : request.prompt) {
    if (first.pending) feed(first);
    take(first, token);
  }
  std::vector<SequenceState> particles;
  for (std::size_t i = 0; i < count; ++i) particles.push_back(first.clone());
  std::vector<std::vector<Value>> paths(count);
  std::vector<double> weights(count, 0.0);
  std::optional<ParticleSet> choices;  // for the numbers it draws
  Filtered result;
  std::int64_t position = static_cast<std::int64_t>(request.prompt.size());
  std::int64_t end = position + request.max_new_tokens;
  const std::int64_t most = model.config().max_values();
  if (most != 0) end = std::min(end, most);
  const auto renew_choices = [&] {
    choices.emplace(request.particles, 0, request.seed);
    for (std::size_t i = 0; i < count; ++i) choices->weigh(static_cast<int>(i), weights[i]);
  };
  for (; position < end; ++position) {
    const auto given = given_at(request, position);
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<float> output;
      if (particles[i].pending) output = feed(particles[i]);
      Value value{position, given.value_or(0), ValueSource::kGiven, std::nullopt, {}};
      if (!given) {
        value.source = ValueSource::kSampled;
        value.token = model.head().sample(output, request.sampling, particles[i].counts,
                                          {request.seed + i, position}, scratch);
      }
      if (!output.empty()) {
        const double log2_prob = model.head().log2_prob(output, value.token);
        if (request.log2_probs) value.log2_prob = static_cast<float>(log2_prob);
        if (given) weights[i] += log2_prob;
      }
      take(particles[i], value.token);
      paths[i].push_back(value);
    }
    if (!given || position + 1 == end || given_at(request, position + 1)) continue;
    if (2 * effective_size(weights) >= static_cast<double>(count)) continue;
    renew_choices();
    std::vector<std::size_t> chosen(count);
    choices->choose(position + 1, chosen);
    result.log2_evidence += log2_mean(weights);
    std::ranges::fill(weights, 0.0);
    // Those that nobody chose, in order, become those that are chosen again, in order.
    std::size_t free = 0;
    for (std::size_t k = 1; k < count; ++k) {
      if (chosen[k] != chosen[k - 1]) continue;
      while (std::ranges::count(chosen, free) > 0) ++free;
      particles[free] = particles[chosen[k]].clone();
      paths[free] = paths[chosen[k]];
      ++free;
    }
  }
  renew_choices();
  std::vector<std::size_t> chosen(static_cast<std::size_t>(request.num_samples));
  choices->choose(position, chosen);
  for (const std::size_t i : chosen) result.samples.push_back(paths[i]);
  result.log2_evidence += log2_mean(weights);
  return result;
}

// Different in what is known, and how it is drawn.
std::vector<GenerationRequest> particle_requests(const Transformer& model) {
  const bool is_image = model.config().modality == ModalityKind::kImage;
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 8; ++i) {
    GenerationRequest request;
    request.prompt = {3 + i, 17, 5};
    if (i % 3 == 1) request.prompt = {2};
    request.max_new_tokens = i == 3 ? 9 : 26;
    request.seed = static_cast<std::uint64_t>(100 + i);
    request.particles = i == 5 ? 2 : 3 + 4 * (i % 3);
    request.num_samples = i % 2 == 0 ? 1 : 2;
    request.log2_probs = i % 4 != 2;
    if (i % 4 == 1) request.sampling.temperature = 0.7f;
    if (i % 4 == 3 && !is_image) request.sampling.frequency_penalty = 0.4f;
    const auto from = static_cast<std::int64_t>(request.prompt.size());
    for (std::int64_t position = from; position < 29; ++position) {
      const bool is_given = i == 0   ? position % 2 == 0  // one by one
                            : i == 1 ? position % 7 < 3   // runs
                            : i == 2 ? position >= 15     // all at the end
                            : i == 4 ? position < 8 || position == 20
                            : i == 6 ? false
                                     : (position * 7 + i) % 5 < 2;
      if (is_given) {
        request.given.push_back({position, static_cast<std::int32_t>(position * 13 % 50)});
      }
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

void require_twin(const RecordingSink& sink, const Filtered& twin) {
  REQUIRE(sink.outcome == RequestOutcome::kDone);
  REQUIRE(sink.out_of_order == 0);
  REQUIRE(sink.values == twin.samples);
  for (const auto& result : sink.results) {
    REQUIRE(result);
    REQUIRE(result->log2_evidence == twin.log2_evidence);
    REQUIRE(result->generated_tokens == static_cast<std::int64_t>(twin.samples[0].size()));
  }
}

TEST_CASE("particles give what a naive filter gives, alone and in any company and slices",
          "[promise]") {
  const std::string attention = GENERATE(from_range(attention_types()));
  const auto kind = GENERATE(TinyModel::kImage, TinyModel::kBytes);
  CAPTURE(attention, kind == TinyModel::kImage);
  const auto model = tiny_model(kind, attention);
  const std::vector<GenerationRequest> requests = particle_requests(*model);
  std::vector<Filtered> twins;
  for (const GenerationRequest& request : requests) {
    twins.push_back(filter_naively(*model, request));
    require_twin(*Core(model).generate(request), twins.back());
  }
  for (const auto& options : std::vector<Scheduler::Options>{
           {.workers = 0, .prefill_rows_per_step = 1},
           {.workers = 0, .max_batch_rows = 16, .prefill_rows_per_step = 7},
           {.workers = 0, .max_batch_rows = 64, .speculation = Speculation::kOn},
           {.workers = 2, .max_batch_rows = 32}}) {
    CAPTURE(options.workers, options.prefill_rows_per_step);
    Core core(model, options);
    std::vector<Core::Call> calls;
    for (const GenerationRequest& request : requests) {
      calls.push_back(core.submit(request));
      GenerationRequest plain = request;  // company of another sort
      plain.particles = 1;
      core.submit(plain);
      if (options.workers == 0) core.scheduler.run_one_step();
    }
    if (options.workers == 0) core.run();
    for (std::size_t i = 0; i < calls.size(); ++i) {
      INFO("request " << i);
      calls[i].sink->wait_until_finished();
      require_twin(*calls[i].sink, twins[i]);
    }
  }
}

TEST_CASE("particles are resampled, and one of 8-bit weights is as its twin, too", "[promise]") {
  const auto model = tiny_model(TinyModel::kBytes, "linear", WeightType::kInt8);
  std::size_t changed = 0;
  for (GenerationRequest& request : particle_requests(*model)) {
    require_twin(*Core(model).generate(request), filter_naively(*model, request));
    const auto with = Core(model).generate(request)->values;
    request.particles = 1;
    changed += with != Core(model).generate(request)->values;
  }
  CHECK(changed >= 5);  // of 8, one of which knows nothing beforehand
}

// A model of few values, and every way in which the hidden ones of a request can be filled.
struct Enumerated {
  std::shared_ptr<const Transformer> model = changed_model(
      TinyModel::kTokens,
      [](ModelConfig& config) {
        config.vocab_size = 4;
        config.n_layers = 1;
        config.attention.resize(1, config.attention[0]);
        config.d_ff = 16;
      },
      // So that there are many likely ways, and what is known decides among them.
      [](ModelWeights& weights) {
        for (float& weight : weights.predictor.weight.values()) weight *= 0.35f;
      });
  GenerationRequest request;
  std::vector<Path> paths;
  std::vector<double> joint;  // p(hidden and known values | prompt)

  Enumerated() {
    request.prompt = {1, 3};
    request.max_new_tokens = 6;
    request.given = {{3, 2}, {6, 0}, {7, 2}};
    for (std::int32_t a = 0; a < 4; ++a) {
      for (std::int32_t b = 0; b < 4; ++b) {
        for (std::int32_t c = 0; c < 4; ++c) {
          paths.push_back({a, 2, b, c, 0, 2});
          joint.push_back(probability_of(paths.back()));
        }
      }
    }
  }

  double probability_of(const Path& path) const {
    SequenceState sequence = model->new_sequence();
    Workspace workspace = model->new_workspace(1);
    std::vector<std::int32_t> values = request.prompt;
    values.insert(values.end(), path.begin(), path.end());
    double log2_prob = 0;
    for (std::size_t i = 0; i + 1 < values.size(); ++i) {
      const StepRow row{values[i], &sequence, /*wants_output=*/true};
      const auto output = model->step(std::span(&row, 1), workspace).row(0);
      if (i + 1 >= request.prompt.size()) {
        log2_prob += model->head().log2_prob(output, values[i + 1]);
      }
    }
    return std::exp2(log2_prob);
  }

  double evidence() const {
    double sum = 0;
    for (const double p : joint) sum += p;
    return sum;
  }
  std::size_t index_of(const Path& path) const {
    const auto found = std::ranges::find(paths, path);
    REQUIRE(found != paths.end());
    return static_cast<std::size_t>(found - paths.begin());
  }
  // Half the sum of differences between how often paths came and how likely they are.
  double distance(const std::vector<double>& counts) const {
    double total = 0;
    for (const double count : counts) total += count;
    double sum = 0;
    for (std::size_t i = 0; i < paths.size(); ++i) {
      sum += std::abs(counts[i] / total - joint[i] / evidence()) / 2;
    }
    return sum;
  }
};

TEST_CASE("samples of particles are of the distribution given all that is known") {
  const Enumerated exact;
  const int runs = kSanitized ? 200 : 2000;
  constexpr int kSamples = 10;
  Core core(exact.model, {.workers = 0, .max_batch_rows = 64});
  std::vector<double> with(exact.paths.size()), without(exact.paths.size());
  for (int i = 0; i < runs; ++i) {
    GenerationRequest request = exact.request;
    request.seed = 1000 * static_cast<std::uint64_t>(i);
    request.num_samples = kSamples;
    const auto plain = core.generate(request);
    request.particles = 60;
    const auto sink = core.generate(request);
    for (int k = 0; k < kSamples; ++k) {
      with[exact.index_of(sink->tokens(k))] += 1;
      without[exact.index_of(plain->tokens(k))] += 1;
    }
  }
  std::size_t likely = 0;
  for (const double p : exact.joint) likely += p > 0.01 * exact.evidence();
  CAPTURE(exact.distance(with), exact.distance(without), likely, exact.evidence());
  CHECK(likely >= 10);
  CHECK(exact.distance(without) > 0.15);
  CHECK(exact.distance(with) < (kSanitized ? 0.08 : 0.025));
}

TEST_CASE("the mean of the evidence is the probability of what is known, of few particles, too") {
  const Enumerated exact;
  const int runs = kSanitized ? 1000 : 20'000;
  Core core(exact.model, {.workers = 0, .max_batch_rows = 64});
  // The evidence of the runs that end in a path is, in the mean, that path's probability: exactly,
  // of any number of particles.
  std::vector<double> sum(exact.paths.size()), squares(exact.paths.size());
  double total = 0, total_squares = 0;
  for (int i = 0; i < runs; ++i) {
    GenerationRequest request = exact.request;
    request.seed = 1000 * static_cast<std::uint64_t>(i);
    request.particles = 4;
    const auto sink = core.generate(request);
    const double evidence = std::exp2(*sink->result().log2_evidence);
    const std::size_t path = exact.index_of(sink->tokens());
    sum[path] += evidence;
    squares[path] += evidence * evidence;
    total += evidence;
    total_squares += evidence * evidence;
  }
  const auto within = [&](double added, double added_squares, double expected) {
    const double mean = added / runs;
    const double error = std::sqrt((added_squares / runs - mean * mean) / runs);
    CAPTURE(mean, expected, error);
    CHECK(std::abs(mean - expected) < 4.5 * error);
  };
  within(total, total_squares, exact.evidence());
  CHECK(std::abs(total / runs / exact.evidence() - 1) < (kSanitized ? 0.2 : 0.03));
  // One by one those that come often enough for their mean to be known.
  double rest = 0, rest_squares = 0, rest_joint = 0;
  for (std::size_t i = 0; i < sum.size(); ++i) {
    if (exact.joint[i] > 0.01 * exact.evidence()) {
      within(sum[i], squares[i], exact.joint[i]);
      continue;
    }
    rest += sum[i];
    rest_squares += squares[i];
    rest_joint += exact.joint[i];
  }
  within(rest, rest_squares, rest_joint);
}

TEST_CASE("one particle, or none, is a sample as ever, and has no evidence") {
  Core core(tiny_model(TinyModel::kImage));
  GenerationRequest request = particle_requests(*core.model)[0];
  request.particles = 1;
  const auto sink = core.generate(request);
  SequenceState sequence = core.model->new_sequence();
  CHECK(sink->values[0] == generate_naively(*core.model, request, 0, sequence).values);
  CHECK_FALSE(sink->result().log2_evidence);
}

TEST_CASE("values are told as soon as all particles have them, the same to every sample") {
  Core core(tiny_model(TinyModel::kBytes));
  GenerationRequest request;
  request.prompt = {1, 2};
  request.max_new_tokens = 40;
  request.particles = 4;
  request.num_samples = 3;
  for (std::int64_t position = 2; position < 42; ++position) {
    if (position % 3 != 0) request.given.push_back({position, static_cast<std::int32_t>(position)});
  }
  const auto sink = std::make_shared<RecordingSink>(3);
  core.submit(request, "", sink);
  std::size_t early = 0;
  while (core.scheduler.run_one_step()) {
    if (!sink->finished()) early = sink->values[0].size();
    if (!sink->finished()) REQUIRE(sink->values[0] == sink->values[2]);
  }
  CHECK(early > 10);
  require_twin(*sink, filter_naively(*core.model, request));
}

TEST_CASE("a slow reader of particles gets the same values") {
  Core core(tiny_model(TinyModel::kBytes));
  GenerationRequest request = particle_requests(*core.model)[1];
  const auto sink = std::make_shared<RecordingSink>(request.num_samples);
  sink->room = 1;
  const auto call = core.submit(request, "", sink);
  while (!sink->finished()) {
    core.run();
    sink->room = 1;
    core.scheduler.resume(call.handle);
  }
  require_twin(*sink, filter_naively(*core.model, request));
}

TEST_CASE("particles end together, with what was told, and leave nothing") {
  const auto model = tiny_model(TinyModel::kTokens);
  Core core(model);
  GenerationRequest request;
  request.prompt = {1};
  request.max_new_tokens = 100;
  request.particles = 8;
  request.num_samples = 2;
  request.given = {{1, 7}, {4, 7}, {90, 3}};
  FinishReason reason = FinishReason::kCancelled;
  RequestOutcome outcome = RequestOutcome::kCancelled;
  std::size_t told = 1;
  int steps = 20;
  std::function<void(const Core::Call&)> stop = [&](const Core::Call& call) {
    core.scheduler.cancel(call.handle);
  };
  SECTION("cancelled") {}
  SECTION("cancelled in the queue") {
    steps = 0;
    told = 0;
  }
  SECTION("out of time") {
    request.deadline = core.clock.now() + std::chrono::seconds(1);
    reason = FinishReason::kDeadline;
    outcome = RequestOutcome::kDeadline;
    stop = [&](const Core::Call&) { core.clock.advance(std::chrono::seconds(2)); };
  }
  const auto call = core.submit(request);
  for (int i = 0; i < steps; ++i) core.scheduler.run_one_step();
  stop(call);
  core.run();
  CHECK(call.sink->outcome == outcome);
  for (int k = 0; k < 2; ++k) {
    const SampleResult& result = call.sink->result(k);
    CHECK(result.reason == reason);
    CHECK(call.sink->values[static_cast<std::size_t>(k)].size() >= told);
    CHECK(result.generated_tokens ==
          static_cast<std::int64_t>(call.sink->values[static_cast<std::size_t>(k)].size()));
    CHECK_FALSE(result.log2_evidence);
  }
  CHECK(core.store.bytes_in_use() == 0);
  CHECK(core.scheduler.idle());
}

TEST_CASE("nothing new is asked of particles, and they say so") {
  Core core(tiny_model(TinyModel::kBytes));
  GenerationRequest request;
  request.prompt = {1, 2, 3};
  request.max_new_tokens = 0;
  request.particles = 4;
  const auto sink = core.generate(request);
  CHECK(sink->values[0].empty());
  CHECK(sink->result().reason == FinishReason::kLength);
  CHECK(sink->result().log2_evidence == 0.0);
}

TEST_CASE("a particle is charged for as a sample is") {
  struct Counting final : TokenAllowance {
    Duration pay(std::int64_t tokens) override {
      paid += tokens;
      return Duration::zero();
    }
    std::int64_t paid = 0;
  };
  const auto allowance = std::make_shared<Counting>();
  Core core(tiny_model(TinyModel::kTokens));
  GenerationRequest request;
  request.prompt = {1, 2, 3};
  request.max_new_tokens = 10;
  request.particles = 5;
  request.allowance = allowance;
  core.generate(request);
  CHECK(allowance->paid == 53);
  CHECK(core.scheduler.stats().prompt_tokens == 3);
  CHECK(core.scheduler.stats().generated_tokens == 50);
}

TEST_CASE("more particles than a step has rows, and more samples than particles, are refused") {
  Core core(tiny_model(TinyModel::kTokens), {.workers = 0, .max_batch_rows = 8});
  GenerationRequest request = tokens_request(2, 3);
  request.particles = 9;
  CHECK_THROWS_AS(core.submit(request), std::invalid_argument);
  request.particles = 4;
  request.num_samples = 5;
  CHECK_THROWS_AS(core.submit(request), std::invalid_argument);
  CHECK(core.store.bytes_in_use() == 0);
}

TEST_CASE("penalties over a window count what a particle has become", "[promise]") {
  const auto model = tiny_model(TinyModel::kBytes);
  GenerationRequest request = particle_requests(*model)[1];
  request.sampling.frequency_penalty = 0.7f;
  request.sampling.penalty_window = 1000;  // all there are: as without a window, by other counts
  GenerationRequest twin = request;
  twin.sampling.penalty_window = 0;
  require_twin(*Core(model).generate(request), filter_naively(*model, twin));
}

TEST_CASE("steps that resample particles allocate nothing", "[promise]") {
  const auto model = tiny_model(TinyModel::kBytes);
  Core core(model, {.workers = 0, .max_batch_rows = 32});
  GenerationRequest request = tokens_request(2, 200);
  request.particles = 8;
  for (std::int64_t position = 3; position < 202; position += 2) {
    request.given.push_back({position, static_cast<std::int32_t>(position % 50)});
  }
  // Takes what comes and keeps nothing.
  struct Sink final : TokenSink {
    bool on_token(const TokenEvent&) override { return ++values > 0; }
    void on_sample_finish(const SampleResult&) override {}
    void on_step_end() override {}
    void on_finish(RequestOutcome) override {}
    std::size_t values = 0;
  };
  const auto sink = std::make_shared<Sink>();
  core.scheduler.submit(request, core.store.lease_one_shot("tiny", model, 202, 8).lease, sink);
  for (int step = 0; step < 12; ++step) core.scheduler.run_one_step();
  const std::size_t before = sink->values;
  const AllocationCount count;
  for (int step = 0; step < 60; ++step) core.scheduler.run_one_step();
  CHECK(count.so_far() == 0);
  CHECK(sink->values > before + 20);
}

#ifdef LINTEL_WATCHED_MEMORY
TEST_CASE("particles zero what they held") {
  std::optional<ParticleSet> set(std::in_place, 3, 200, /*seed=*/1);
  for (int i = 0; i < 200; ++i) {
    for (int p = 0; p < 3; ++p) set->append(p, {.token = 1 + i});
  }
  constexpr std::size_t kLeastBytes = 1000;  // the values of one
  const FreedMemory freed(kLeastBytes);
  set.reset();
  CHECK(freed.blocks() == 3);
  CHECK(freed.dirty() == 0);
}
#endif

}  // namespace
}  // namespace lintel::testing
