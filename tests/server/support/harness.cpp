// SPDX-License-Identifier: Apache-2.0
#include "tests/server/support/harness.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <ostream>
#include <tuple>

#include "model/config/attention_spec.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {

std::shared_ptr<const Transformer> changed_model(
    TinyModel kind, const std::function<void(ModelConfig&)>& change_config,
    const std::function<void(ModelWeights&)>& change_weights, WeightType type) {
  TemporaryDirectory directory;
  ModelConfig config = tiny_config(kind);
  if (change_config) change_config(config);
  // Large enough that different histories give clearly different distributions.
  ModelWeights weights = random_weights(config, /*seed=*/7, /*scale=*/0.6f);
  if (change_weights) change_weights(weights);
  std::ofstream(directory.path() / "config.json") << to_json(config);
  save_weights(directory.path() / "model.safetensors", config, weights);
  return Transformer::load(directory.path(), {.weight_type = type});
}

std::shared_ptr<const Transformer> tiny_model(TinyModel kind) {
  static std::map<TinyModel, std::shared_ptr<const Transformer>> loaded;
  auto& model = loaded[kind];
  if (model == nullptr) model = changed_model(kind, {}, {});
  return model;
}

std::shared_ptr<const Transformer> tiny_model(TinyModel kind, const std::string& attention,
                                              WeightType type) {
  static std::map<std::tuple<TinyModel, std::string, WeightType>,
                  std::shared_ptr<const Transformer>>
      loaded;
  auto& model = loaded[{kind, attention, type}];
  if (model == nullptr) {
    model = changed_model(
        kind,
        [&attention](ModelConfig& config) {
          config.attention.assign(config.attention.size(), sample_attention(attention));
        },
        {}, type);
  }
  return model;
}

std::ostream& operator<<(std::ostream& out, const RecordedToken& recorded) {
  out << recorded.token << "@" << recorded.position;
  if (recorded.source == TokenSource::kGiven) out << "g";
  if (recorded.source == TokenSource::kPrompt) out << "p";
  if (recorded.log2_prob) out << "(" << *recorded.log2_prob << ")";
  if (recorded.cut_bytes > 0) out << "-" << recorded.cut_bytes;
  return out;
}

// ---- RecordingSink

RecordingSink::RecordingSink(int num_samples)
    : recorded(static_cast<std::size_t>(num_samples)),
      results(static_cast<std::size_t>(num_samples)) {}

bool RecordingSink::on_token(const TokenEvent& event) {
  const std::size_t sample = static_cast<std::size_t>(event.sample);
  if (finishes > 0 || results.at(sample)) ++out_of_order;
  RecordedToken copy{event.position,  event.token, event.source,
                     event.log2_prob, {},          event.cut_bytes};
  for (const TopToken& top : event.top) copy.top.emplace_back(top.token, top.log2_prob);
  recorded.at(sample).push_back(std::move(copy));
  if (when_token) when_token(event);
  return --room > 0;
}

void RecordingSink::on_sample_finish(const SampleResult& result) {
  auto& slot = results.at(static_cast<std::size_t>(result.sample));
  if (finishes > 0 || slot) ++out_of_order;
  slot = result;
  if (when_sample_finished) when_sample_finished();
}

void RecordingSink::on_finish(RequestOutcome how) {
  if (when_finished) when_finished();
  std::lock_guard<std::mutex> lock(mutex_);
  outcome = how;
  ++finishes;
  finished_.notify_all();
}

void RecordingSink::wait_until_finished() {
  std::unique_lock<std::mutex> lock(mutex_);
  finished_.wait(lock, [&] { return finishes > 0; });
}

std::vector<std::int32_t> RecordingSink::tokens(int sample) const {
  std::vector<std::int32_t> result;
  for (const RecordedToken& each : recorded.at(static_cast<std::size_t>(sample))) {
    result.push_back(each.token);
  }
  return result;
}

std::string RecordingSink::text(int sample) const {
  std::string result;
  for (const std::int32_t token : tokens(sample)) result.push_back(static_cast<char>(token));
  return result;
}

// ---- Core

Scheduler::Options without_threads() {
  Scheduler::Options options{.workers = 0};
  const char* const speculation = std::getenv("LINTEL_TEST_SPECULATION");
  if (speculation == nullptr) return options;
  if (std::string(speculation) == "off") options.speculation = Speculation::kOff;
  if (std::string(speculation) == "on") options.speculation = Speculation::kOn;
  return options;
}

Core::Core(std::shared_ptr<const Transformer> the_model, Scheduler::Options options,
           SessionManager::Options store_options, PrefixCache::Options prefix_options,
           const std::optional<StepCost>& cost)
    : model(std::move(the_model)),
      store(store_options, clock),
      prefixes(prefix_options, store),
      scheduler(model, options, clock, prefix_options.memory_bytes > 0 ? &prefixes : nullptr,
                cost) {}

Core::Call Core::submit(const GenerationRequest& request, const std::string& session_id,
                        std::shared_ptr<RecordingSink> sink, SharedAdapter adapter,
                        const Owner& owner) {
  Call call;
  call.sink = sink ? sink : std::make_shared<RecordingSink>(request.num_samples);
  auto leased = session_id.empty()
                    ? store.lease_one_shot("tiny", model, /*max_tokens=*/0, request.num_sequences(),
                                           owner, /*call_bytes=*/0, std::move(adapter))
                    : store.lease(session_id, owner);
  REQUIRE(leased.refusal.error == SessionError::kNone);
  GenerationRequest wanted = request;
  Replay replay = leased.lease.replay(request.sampling.penalty_window);
  if (!replay.tokens.empty()) {
    wanted.replay = std::move(replay.tokens);
    wanted.replay_tail = std::move(replay.tail);
  }
  if (leased.lease.window() > 0) wanted.window = leased.lease.window();
  if (leased.lease.window() > 0 || wanted.recent.empty()) wanted.recent = std::move(replay.recent);
  call.error = scheduler.submit(std::move(wanted), std::move(leased.lease), call.sink, call.handle);
  return call;
}

void Core::run() {
  while (scheduler.run_one_step()) {
  }
}

std::shared_ptr<RecordingSink> Core::generate(const GenerationRequest& request,
                                              const std::string& session_id) {
  const Call call = submit(request, session_id);
  run();
  REQUIRE(call.sink->finishes == 1);
  REQUIRE(call.sink->out_of_order == 0);
  return call.sink;
}

std::string Core::new_session(std::int64_t max_tokens, SharedAdapter adapter) {
  const auto created = store.create("tiny", model, max_tokens, /*owner=*/{}, std::move(adapter));
  REQUIRE(created.refusal.error == SessionError::kNone);
  return created.info.id;
}

// ---- The naive twin

namespace {

std::vector<std::pair<std::int32_t, float>> most_likely(const Head& head,
                                                        std::span<const float> output, int count) {
  std::vector<double> log2_probs(static_cast<std::size_t>(head.vocab_size()));
  head.log2_probs(output, log2_probs);
  std::vector<std::pair<double, std::int32_t>> ranked;
  for (std::size_t i = 0; i < log2_probs.size(); ++i) {
    ranked.emplace_back(-log2_probs[i], static_cast<std::int32_t>(i));
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::pair<std::int32_t, float>> result;
  for (int i = 0; i < count && i < head.vocab_size(); ++i) {
    const auto& [negated, token] = ranked[static_cast<std::size_t>(i)];
    result.emplace_back(token, static_cast<float>(-negated));
  }
  return result;
}

}  // namespace

TwinResult generate_naively(const Transformer& model, const GenerationRequest& request, int sample,
                            SequenceState& sequence) {
  const ModelConfig& config = model.config();
  Workspace workspace = model.new_workspace(1);
  SamplingScratch scratch;
  TwinResult result;
  std::vector<std::int32_t> prompt = request.prompt;
  const std::int64_t most = config.max_tokens();
  const auto given_at = [&](std::int64_t position) {
    std::optional<std::int32_t> token;
    for (const GivenToken& given : request.given) {
      if (given.position == position) token = given.token;
    }
    return token;
  };
  if (prompt.empty() && sequence.num_tokens() == 0 && !given_at(0)) {
    prompt.push_back(config.image.start_token);
  }
  std::vector<std::int32_t> past = request.recent;
  const auto counts_of_window = [&] {
    const auto window = static_cast<std::size_t>(request.sampling.penalty_window);
    std::vector<std::uint32_t> counts(sequence.counts.vocab_size());
    for (std::size_t i = past.size() - std::min(window, past.size()); i < past.size(); ++i) {
      ++counts[static_cast<std::size_t>(past[i])];
    }
    return counts;
  };
  std::size_t read = 0;
  std::int64_t produced = 0;
  while (true) {
    const std::int64_t position = sequence.num_tokens();
    if (most != 0 && position >= most) {
      result.reason = FinishReason::kEndOfSequence;
      return result;
    }
    if (read == prompt.size() && produced == request.max_new_tokens) return result;

    std::span<const float> output;
    if (sequence.pending) {
      const BatchRow row{*sequence.pending, &sequence, /*wants_output=*/true};
      sequence.pending.reset();
      output = model.step(std::span(&row, 1), workspace).row(0);
    }
    RecordedToken next;
    next.position = position;
    if (read < prompt.size()) {
      next.token = prompt[read++];
      next.source = TokenSource::kPrompt;
    } else if (const auto given = given_at(position)) {
      next.token = *given;
      next.source = TokenSource::kGiven;
    } else {
      std::vector<std::uint64_t> allowed;
      if (produced < request.stop.min_tokens) {
        allowed.resize((static_cast<std::size_t>(model.head().vocab_size()) + 63) / 64);
        for (std::int32_t id = 0; id < model.head().vocab_size(); ++id) {
          if (std::ranges::count(request.stop.tokens, id) > 0) continue;
          allowed[static_cast<std::size_t>(id / 64)] |= std::uint64_t{1} << id % 64;
        }
      }
      next.token = model.head().sample(
          output, request.sampling,
          request.sampling.penalty_window > 0 ? counts_of_window() : sequence.counts.all(), allowed,
          {request.seed + static_cast<std::uint64_t>(sample), position}, scratch);
    }
    if (next.source != TokenSource::kPrompt) ++produced;
    if (!output.empty() && request.log2_probs) {
      next.log2_prob = static_cast<float>(model.head().log2_prob(output, next.token));
    }
    if (!output.empty()) next.top = most_likely(model.head(), output, request.top_log2_probs);
    sequence.pending = next.token;
    past.push_back(next.token);
    if (!sequence.counts.empty()) sequence.counts.add(next.token);
    const auto& stops = request.stop.tokens;
    const bool stopped = next.source == TokenSource::kSampled &&
                         std::find(stops.begin(), stops.end(), next.token) != stops.end();
    const bool shown = next.source != TokenSource::kPrompt || request.echo_prompt;
    if (shown && (!stopped || request.stop.include_in_output)) {
      result.tokens.push_back(std::move(next));
    }
    if (stopped) {
      result.reason = FinishReason::kStopToken;
      return result;
    }
  }
}

GenerationRequest tokens_request(std::size_t prompt_length, std::int64_t max_new_tokens,
                                 std::uint64_t seed) {
  GenerationRequest request;
  for (std::size_t i = 0; i < prompt_length; ++i) {
    request.prompt.push_back(static_cast<std::int32_t>((i * i + seed) % 50));
  }
  request.max_new_tokens = max_new_tokens;
  request.seed = seed;
  return request;
}

}  // namespace lintel::testing
