// SPDX-License-Identifier: Apache-2.0
// A prompt that is not read from its beginning gives the bits of one that is.
#include <array>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/server/support/harness.h"
#include "tests/support/allocation_count.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

constexpr PrefixCache::Options kSmall{.memory_bytes = std::size_t{16} << 20, .least_tokens = 4};
constexpr SessionManager::Options kRoomy{.session_memory_bytes = std::size_t{1} << 30};

// Compares SampleResults, but for the members about hits and time.
void require_same_end(const RecordingSink& got, const RecordingSink& expected) {
  REQUIRE(got.results.size() == expected.results.size());
  for (std::size_t i = 0; i < got.results.size(); ++i) {
    const SampleResult& a = *got.results[i];
    const SampleResult& b = *expected.results[i];
    REQUIRE(a.reason == b.reason);
    REQUIRE(a.stop_string == b.stop_string);
    REQUIRE(a.cached_tokens + a.prompt_tokens == b.prompt_tokens);
    REQUIRE(b.cached_tokens == 0);
    REQUIRE(a.generated_tokens == b.generated_tokens);
    REQUIRE(a.given_tokens == b.given_tokens);
    REQUIRE(a.position == b.position);
    REQUIRE(a.digest == b.digest);
  }
}

// Requests whose prompts have much in common, and which differ in everything else.
std::vector<GenerationRequest> requests_for(const Transformer& model) {
  std::mt19937 random(5);
  const auto below = [&](std::uint32_t n) { return static_cast<std::int32_t>(random() % n); };
  const auto vocab = static_cast<std::uint32_t>(model.head().vocab_size());
  const bool is_image = model.config().modality == ModalityKind::kImage;
  std::vector<std::int32_t> shared(is_image ? 12 : 60);
  for (auto& token : shared) token = below(vocab);
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 24; ++i) {
    GenerationRequest request;
    // Whole, cut, and with more tokens: twice or more of each.
    const std::size_t cut = i % 3 == 0 ? shared.size() / 2 : shared.size();
    request.prompt.assign(shared.begin(), shared.begin() + static_cast<std::ptrdiff_t>(cut));
    for (int k = 0; k < 2 * (i % 4); ++k) request.prompt.push_back(k == 0 ? i % 8 : below(vocab));
    request.max_new_tokens = i % 7 == 0 ? 0 : 1 + below(is_image ? 10 : 40);
    request.seed = random();
    request.log2_probs = i % 2 == 0;
    request.top_log2_probs = i % 4;
    request.echo_prompt = i % 8 == 5;
    request.num_samples = i % 6 == 4 ? 3 : 1;
    request.sampling.temperature = i % 5 == 0 ? 0.0f : 1.0f;
    if (model.head().supports_filters()) {
      if (i % 3 == 0) request.sampling.repetition_penalty = 1.5f;
      if (i % 4 == 1) request.sampling.frequency_penalty = 0.5f;
      if (i % 5 == 1) request.sampling.penalty_window = 1 + below(12);
      if (i % 4 == 2) request.sampling.logit_bias = {{below(vocab), 5.0f}};
    }
    if (i % 5 == 3) request.stop.tokens = {below(vocab)};
    if (model.config().modality == ModalityKind::kBytes && i % 3 == 1) {
      request.stop.strings = {std::string(1, static_cast<char>(below(vocab)))};
    }
    const auto end = static_cast<std::int64_t>(request.prompt.size());
    if (i % 4 == 3 && request.max_new_tokens > 3) request.given = {{end, 3}, {end + 2, 5}};
    if (i % 9 == 2) request.cache_prefix_tokens = end / 2;
    requests.push_back(std::move(request));
  }
  return requests;
}

void require_hits_go_unnoticed(TinyModel kind, const std::string& attention, WeightType type) {
  const auto model = tiny_model(kind, attention, type);
  const std::vector<GenerationRequest> requests = requests_for(*model);
  int turn = 0;
  for (const auto speculation : {Speculation::kOff, Speculation::kOn}) {
    const int slice = std::array{1, 7, 64}[turn++ % 3];
    CAPTURE(slice, static_cast<int>(speculation));
    const Scheduler::Options options{
        .workers = 0, .prefill_rows_per_step = slice, .speculation = speculation};
    Core cached(model, options, kRoomy, kSmall);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      CAPTURE(i);
      Core fresh(model, options);
      const auto expected = fresh.generate(requests[i]);
      const auto got = cached.generate(requests[i]);
      REQUIRE(got->recorded == expected->recorded);
      require_same_end(*got, *expected);
      if (requests[i].num_samples > 1) continue;
      // The first call of a session, and another that continues from what it left.
      const std::string twin = fresh.new_session(), session = cached.new_session();
      GenerationRequest next;
      next.max_new_tokens = 3;
      next.prompt = {1};
      next.log2_probs = true;
      for (const GenerationRequest& call : {requests[i], next}) {
        const auto from = fresh.generate(call, twin);
        const auto to = cached.generate(call, session);
        REQUIRE(to->recorded == from->recorded);
        require_same_end(*to, *from);
        if (from->result().reason == FinishReason::kEndOfSequence) break;
      }
      REQUIRE(cached.store.history(session, {}, 0, std::nullopt).tokens ==
              fresh.store.history(twin, {}, 0, std::nullopt).tokens);
    }
    CHECK(cached.prefixes.stats().hits > 20);
  }
}

TEST_CASE("a prompt continues after a cached beginning as if it were read: every kind",
          "[prefix]") {
  const std::string attention = GENERATE(from_range(attention_types()));
  const TinyModel kind = GENERATE(TinyModel::kBytes, TinyModel::kImage);
  CAPTURE(attention, static_cast<int>(kind));
  require_hits_go_unnoticed(kind, attention, WeightType::kF32);
}

TEST_CASE("a prompt continues after a cached beginning as if it were read: bf16 and int8",
          "[prefix]") {
  const auto type = GENERATE(WeightType::kBf16, WeightType::kInt8);
  const TinyModel kind = GENERATE(TinyModel::kBytes, TinyModel::kImage, TinyModel::kTokens);
  require_hits_go_unnoticed(kind, "linear", type);
}

// 1,500 tokens that all have, and some of its own.
GenerationRequest sharing_request(std::uint64_t i) {
  GenerationRequest request = tokens_request(1500, 4, /*seed=*/1);
  for (std::uint64_t k = 0; k < 20; ++k) {
    request.prompt.push_back(static_cast<std::int32_t>((i + k * (1 + i)) % 50));
  }
  request.seed = i;
  request.log2_probs = true;
  return request;
}

TEST_CASE("of 64 prompts with 1,500 tokens in common, 62 are read after them only", "[prefix]") {
  const auto model = tiny_model(TinyModel::kTokens);
  const bool asks = GENERATE(false, true);
  Core core(model, without_threads(), kRoomy, {});
  Core twin(model);
  std::int64_t saved = 0;
  for (std::uint64_t i = 0; i < 64; ++i) {
    GenerationRequest request = sharing_request(i);
    if (asks) request.cache_prefix_tokens = 1500;
    const auto got = core.generate(request);
    const auto expected = twin.generate(request);
    REQUIRE(got->recorded == expected->recorded);
    saved += got->result().cached_tokens;
  }
  const PrefixCache::Stats stats = core.prefixes.stats();
  CHECK(stats.hits >= (asks ? 63 : 62));
  CHECK(stats.hits + stats.misses == 64);
  CHECK(stats.saved_tokens == static_cast<std::uint64_t>(saved));
  CHECK(saved >= 62 * 1500);
  CHECK(core.scheduler.stats().prompt_tokens ==
        twin.scheduler.stats().prompt_tokens - static_cast<std::uint64_t>(saved));
}

TEST_CASE("a request that needs more of a prompt than the state after it has it read", "[prefix]") {
  const auto model = tiny_model(TinyModel::kTokens);
  Core core(model, without_threads(), kRoomy, {});
  GenerationRequest request = tokens_request(100, 4, /*seed=*/1);
  for (int i = 0; i < 3; ++i) core.generate(request);
  REQUIRE(core.prefixes.stats().hits == 1);
  SECTION("its tokens") { request.echo_prompt = true; }
  SECTION("a window") { request.window = 64; }
  SECTION("a short one") { request.prompt.resize(31); }
  CHECK(core.generate(request)->result().cached_tokens == 0);
  const PrefixCache::Stats stats = core.prefixes.stats();
  CHECK(stats.hits + stats.misses == 3);
}

TEST_CASE("a session that has tokens already has its prompt read", "[prefix]") {
  const auto model = tiny_model(TinyModel::kTokens);
  Core core(model, without_threads(), kRoomy, {});
  const GenerationRequest request = tokens_request(100, 4, /*seed=*/1);
  for (int i = 0; i < 3; ++i) core.generate(request);
  const std::string session = core.new_session();
  CHECK(core.generate(request, session)->result().cached_tokens == 100);
  CHECK(core.generate(request, session)->result().cached_tokens == 0);
}

TEST_CASE("owners' prompts are no faster for those of others", "[prefix][threat-5]") {
  const auto model = tiny_model(TinyModel::kTokens);
  Core core(model, without_threads(), kRoomy, {});
  const GenerationRequest request = tokens_request(100, 4, /*seed=*/1);
  const auto cached = [&](const Owner& owner) {
    const auto call = core.submit(request, "", nullptr, nullptr, owner);
    core.run();
    return call.sink->result().cached_tokens;
  };
  for (int i = 0; i < 2; ++i) REQUIRE(cached("a") == 0);
  REQUIRE(cached("a") == 100);
  CHECK(cached("b") == 0);
  CHECK(cached("") == 0);
}

TEST_CASE("a model that recomputes keeps nothing", "[prefix]") {
  const TemporaryDirectory directory;
  write_random_model(directory.path(), tiny_config(TinyModel::kBytes), /*seed=*/1);
  const std::shared_ptr<const Transformer> model = Transformer::load(
      directory.path(), {.attention = parse_attention_spec("softmax:recompute=true")});
  REQUIRE(model->recomputes());
  Core core(model, without_threads(), kRoomy, {});
  GenerationRequest request;
  request.prompt.assign(60, 7);
  request.max_new_tokens = 1;
  for (int i = 0; i < 3; ++i) core.generate(request);
  CHECK(core.prefixes.stats().misses == 0);
  CHECK(core.prefixes.stats().bytes == 0);
}

// Takes what comes and keeps nothing.
class CountingSink final : public TokenSink {
 public:
  bool on_token(const TokenEvent&) override { return ++tokens > 0; }
  void on_sample_finish(const SampleResult&) override {}
  void on_step_end() override {}
  void on_finish(RequestOutcome) override {}
  int tokens = 0;
};

TEST_CASE("a kept state costs the steps after it no memory", "[prefix]") {
  const auto model = tiny_model(TinyModel::kTokens);
  Core core(model, without_threads(), kRoomy, {});
  GenerationRequest request = tokens_request(100, 200, /*seed=*/1);
  for (int i = 0; i < 3; ++i) {  // read, kept, gone on from
    const auto sink = std::make_shared<CountingSink>();
    core.scheduler.submit(request, core.store.lease_one_shot("tiny", model, 0, 1).lease, sink);
    while (sink->tokens < 10) core.scheduler.run_one_step();
    const AllocationCount count;
    for (int step = 0; step < 10; ++step) core.scheduler.run_one_step();
    CHECK(count.so_far() == 0);
    CHECK(sink->tokens >= 20);
    core.run();
  }
  CHECK(core.prefixes.stats().hits == 1);
}

// For ThreadSanitizer: workers that find, keep and evict at once, beside sessions that come and go.
TEST_CASE("workers share what they keep, and the bits are those of one alone", "[prefix]") {
  const auto model = tiny_model(TinyModel::kTokens);
  std::vector<GenerationRequest> requests;
  for (std::uint64_t i = 0; i < 48; ++i) {
    GenerationRequest request = tokens_request(40 + 10 * (i % 5), 6, /*seed=*/1 + i % 3);
    for (std::uint64_t k = 0; k < i % 4; ++k) request.prompt.push_back(static_cast<int>(i % 7));
    request.seed = i;
    requests.push_back(std::move(request));
  }
  std::vector<std::vector<std::vector<RecordedToken>>> expected;
  for (const GenerationRequest& request : requests) {
    Core alone(model);
    expected.push_back(alone.generate(request)->recorded);
  }
  // Room for a few states, which sessions want, too.
  const std::size_t session = SessionManager::session_bytes(*model, {.max_tokens = 100});
  Core core(model, {.workers = 3}, {.session_memory_bytes = 200 * session},
            {.memory_bytes = 32 << 10});
  for (int round = 0; round < 4; ++round) {
    std::vector<Core::Call> calls;
    std::vector<std::string> sessions;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      calls.push_back(core.submit(requests[i]));
      if (i % 4 == 0) sessions.push_back(core.new_session(100));
    }
    for (std::size_t i = 0; i < calls.size(); ++i) {
      calls[i].sink->wait_until_finished();
      REQUIRE(calls[i].sink->outcome == RequestOutcome::kDone);
      REQUIRE(calls[i].sink->recorded == expected[i]);
    }
    for (const std::string& id : sessions) core.store.remove(id);
  }
  const PrefixCache::Stats stats = core.prefixes.stats();
  CHECK(stats.hits > 0);
  CHECK(stats.evictions > 0);
}

}  // namespace
}  // namespace lintel::testing
