// SPDX-License-Identifier: Apache-2.0
// What the tests of scheduling share: models, a sink that remembers, a server's core without
// threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "model/transformer.h"
#include "server/engine/prefix_cache.h"
#include "server/engine/request.h"
#include "server/engine/scheduler.h"
#include "server/engine/token_sink.h"
#include "server/sessions/session_manager.h"
#include "tests/support/manual_clock.h"
#include "tests/support/random_model.h"

namespace lintel::testing {

// A random model of this kind, loaded once per process.
std::shared_ptr<const Transformer> tiny_model(TinyModel kind);

// The same with another attention in every layer: one of attention_types(), in a small
// configuration.
std::shared_ptr<const Transformer> tiny_model(TinyModel kind, const std::string& attention,
                                              WeightType type = WeightType::kF32);

// A model with these weights changed before it is written and loaded.
std::shared_ptr<const Transformer> changed_model(
    TinyModel kind, const std::function<void(ModelConfig&)>& change_config,
    const std::function<void(ModelWeights&)>& change_weights, WeightType type = WeightType::kF32);

// A copy of a TokenEvent.
struct RecordedToken {
  std::int64_t position = 0;
  std::int32_t token = 0;
  TokenSource source = TokenSource::kSampled;
  std::optional<float> log2_prob;
  std::vector<std::pair<std::int32_t, float>> top;
  std::int32_t cut_bytes = 0;

  bool operator==(const RecordedToken&) const = default;  // bit for bit: no NaN among them
};
std::ostream& operator<<(std::ostream& out, const RecordedToken& recorded);

// Remembers everything and checks the order of calls. Thread-safe; read after on_finish, or from
// the thread that steps the scheduler.
class RecordingSink : public TokenSink {
 public:
  explicit RecordingSink(int num_samples = 1);

  bool on_token(const TokenEvent& event) override;
  void on_sample_finish(const SampleResult& result) override;
  void on_step_end() override { ++step_ends; }
  void on_finish(RequestOutcome how) override;

  void wait_until_finished();
  bool finished() const { return finishes > 0; }
  // The tokens and text of sample 0, or i.
  std::vector<std::int32_t> tokens(int sample = 0) const;
  std::string text(int sample = 0) const;
  const SampleResult& result(int sample = 0) const { return *results.at(sample); }

  std::vector<std::vector<RecordedToken>> recorded;  // [sample]
  std::vector<std::optional<SampleResult>> results;  // [sample]
  std::optional<RequestOutcome> outcome;
  std::atomic<int> finishes = 0;  // counted last: what came before can be read then
  int step_ends = 0;
  int out_of_order = 0;  // calls after the last one

  // The number of tokens it accepts before it is full.
  std::atomic<std::int64_t> room{std::numeric_limits<std::int64_t>::max()};
  std::function<void(const TokenEvent&)> when_token;
  std::function<void()> when_sample_finished;
  std::function<void()> when_finished;

 private:
  std::mutex mutex_;
  std::condition_variable finished_;
};

// No threads; speculation as LINTEL_TEST_SPECULATION (off, auto, on) says, by default auto: it must
// not change any output.
Scheduler::Options without_threads();

// Clock, store and a scheduler of one worker without a thread.
class Core {
 public:
  explicit Core(std::shared_ptr<const Transformer> model,
                Scheduler::Options options = without_threads(),
                SessionManager::Options store_options = {.session_memory_bytes = 1u << 30},
                PrefixCache::Options prefix_options = {.memory_bytes = 0},
                const std::optional<StepCost>& cost = {});

  struct Call {
    std::shared_ptr<RecordingSink> sink;
    RequestHandle handle;
    Scheduler::SubmitError error = Scheduler::SubmitError::kNone;
  };
  // A one-shot call, with an adapter or none, or one of a session.
  Call submit(const GenerationRequest& request, const std::string& session_id = "",
              std::shared_ptr<RecordingSink> sink = nullptr, SharedAdapter adapter = nullptr,
              const Owner& owner = {});
  // Steps until there is nothing to do.
  void run();
  // submit() and run().
  std::shared_ptr<RecordingSink> generate(const GenerationRequest& request,
                                          const std::string& session_id = "");
  std::string new_session(std::int64_t max_tokens = 0, SharedAdapter adapter = nullptr);
  std::int64_t session_tokens(const std::string& id) const { return store.get(id)->num_tokens; }

  std::shared_ptr<const Transformer> model;
  ManualClock clock;
  SessionManager store;
  PrefixCache prefixes;  // the scheduler's, if it may have any memory
  Scheduler scheduler;
};

// The naive twin of the scheduler: one sample, one row a step, straight from the definitions.
// Tokens before a sequence's end that a window of penalties counts are in the request's `recent`.
struct TwinResult {
  std::vector<RecordedToken> tokens;
  FinishReason reason = FinishReason::kLength;
};
TwinResult generate_naively(const Transformer& model, const GenerationRequest& request, int sample,
                            SequenceState& sequence);

// A prompt of `prompt_length` tokens that the seed decides, for TinyModel::kTokens.
GenerationRequest tokens_request(std::size_t prompt_length, std::int64_t max_new_tokens,
                                 std::uint64_t seed = 1);

}  // namespace lintel::testing
