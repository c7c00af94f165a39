// SPDX-License-Identifier: Apache-2.0
#include "server/api/request_checks.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <utility>

#include "lintel/v1/generation.pb.h"
#include "model/config/config.h"
#include "model/sampling/head.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

bool check_count(std::int64_t count, std::int64_t most, const std::string& path,
                 Violations& violations) {
  if (count <= most) return true;
  violations.add(path, std::to_string(count) + " tokens are more than " + std::to_string(most));
  return false;
}

}  // namespace

std::int64_t num_tokens(const v1::Values& values) {
  switch (values.form_case()) {
    case v1::Values::kTokens:
      return values.tokens().ids_size();
    case v1::Values::kText:
      return static_cast<std::int64_t>(values.text().size());
    case v1::Values::kPixels:
      return static_cast<std::int64_t>(values.pixels().size());
    case v1::Values::FORM_NOT_SET:
      return 0;
  }
  return 0;
}

void check_token(std::int64_t token, const std::string& field, int vocab_size,
                 Violations& violations) {
  if (token < 0 || token >= vocab_size) {
    violations.add(field, "token " + std::to_string(token) + " is not from 0 to " +
                              std::to_string(vocab_size - 1));
  }
}

bool check_tokens(std::span<const std::int32_t> ids, const std::string& path,
                  const ModelConfig& config, std::int64_t max_tokens, Violations& violations) {
  if (!check_count(static_cast<std::int64_t>(ids.size()), max_tokens, path, violations)) {
    return false;
  }
  for (std::size_t i = 0; i < ids.size() && !violations.full(); ++i) {
    if (ids[i] >= 0 && ids[i] < config.vocab_size) continue;
    check_token(ids[i], indexed(path + ".tokens.ids", i), config.vocab_size, violations);
  }
  return true;
}

void read_tokens(const v1::Values& values, const std::string& path, const ModelConfig& config,
                 std::int64_t max_tokens, std::vector<std::int32_t>& out, Violations& violations) {
  if (values.has_tokens()) {
    const auto& ids = values.tokens().ids();
    const std::span<const std::int32_t> given(ids.data(), static_cast<std::size_t>(ids.size()));
    if (check_tokens(given, path, config, max_tokens, violations)) {
      out.insert(out.end(), given.begin(), given.end());
    }
    return;
  }
  if (!check_count(num_tokens(values), max_tokens, path, violations)) return;
  if (values.form_case() == v1::Values::FORM_NOT_SET) return;
  const bool is_text = values.has_text();
  const std::string field = path + (is_text ? ".text" : ".pixels");
  const ModalityKind needed = is_text ? ModalityKind::kBytes : ModalityKind::kImage;
  if (config.modality != needed) {
    std::string why = "applies to models of modality ";
    why += to_string(needed);
    why += " only; this one is of ";
    why += to_string(config.modality);
    violations.add(field, why);
    return;
  }
  const std::string& bytes = is_text ? values.text() : values.pixels();
  for (std::size_t i = 0; i < bytes.size() && !violations.full(); ++i) {
    const auto value = static_cast<unsigned char>(bytes[i]);
    if (value >= config.vocab_size) {
      check_token(value, indexed(field, i), config.vocab_size, violations);
    }
    out.push_back(value);
  }
}

// Checks of sampling options.

// Sampling as this head can honour it. Defined below.
SamplingOptions read_sampling(const v1::Sampling& wire, const ModelConfig& config, const Head& head,
                              Violations& violations);

namespace {

// Limits of requests: larger values lose all precision of float logits.
constexpr float kHighestTemperature = 1e3f;
constexpr float kLargestPenalty = 1e3f;
constexpr float kLargestBias = 1e4f;
constexpr std::uint32_t kLongestPenaltyWindow = 65'536;  // each sample keeps its tokens

std::string text(float value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

// A value inside [low, high]; NaN is not.
bool within(float value, float low, float high) { return value >= low && value <= high; }

class SamplingCheck {
 public:
  SamplingCheck(const v1::Sampling& wire, Violations& violations)
      : wire_(wire), violations_(violations) {}

  // `allowed` describes what in_range accepts.
  void require(bool in_range, const char* field, float value, const std::string& allowed) {
    if (!in_range) violations_.add(name(field), text(value) + " is not " + allowed);
  }

  // On a head without filters: what would change the distribution is refused, not ignored.
  void refuse(bool set, const char* field, const char* head) {
    if (set) violations_.add(name(field), std::string("does not apply to a head of type ") + head);
  }

  static std::string name(const char* field) { return std::string("sampling.") + field; }

  void temperature(SamplingOptions& out) {
    if (!wire_.has_temperature()) return;
    out.temperature = wire_.temperature();
    require(within(out.temperature, 0.0f, kHighestTemperature), "temperature", out.temperature,
            "from 0 to 1000");
  }

  void filters(int vocab_size, SamplingOptions& out) {
    if (wire_.has_top_k()) {
      out.top_k = static_cast<int>(
          std::min<std::uint32_t>(wire_.top_k(), static_cast<std::uint32_t>(vocab_size)));
    }
    if (wire_.has_top_p()) {
      out.top_p = wire_.top_p();
      require(out.top_p > 0.0f && out.top_p <= 1.0f, "top_p", out.top_p,
              "more than 0 and at most 1");
    }
    if (wire_.has_min_p()) {
      out.min_p = wire_.min_p();
      require(within(out.min_p, 0.0f, 1.0f), "min_p", out.min_p, "from 0 to 1");
    }
  }

  void penalties(SamplingOptions& out) {
    if (wire_.has_repetition_penalty()) {
      out.repetition_penalty = wire_.repetition_penalty();
      require(within(out.repetition_penalty, 1.0f / kLargestPenalty, kLargestPenalty),
              "repetition_penalty", out.repetition_penalty, "from 0.001 to 1000");
    }
    if (wire_.has_presence_penalty()) {
      out.presence_penalty = wire_.presence_penalty();
      require(within(out.presence_penalty, -kLargestPenalty, kLargestPenalty), "presence_penalty",
              out.presence_penalty, "from -1000 to 1000");
    }
    if (wire_.has_frequency_penalty()) {
      out.frequency_penalty = wire_.frequency_penalty();
      require(within(out.frequency_penalty, -kLargestPenalty, kLargestPenalty), "frequency_penalty",
              out.frequency_penalty, "from -1000 to 1000");
    }
  }

  void penalty_window(SamplingOptions& out) {
    if (wire_.penalty_window() > kLongestPenaltyWindow) {
      violations_.add("sampling.penalty_window", std::to_string(wire_.penalty_window()) +
                                                     " is not from 0 to " +
                                                     std::to_string(kLongestPenaltyWindow));
      return;
    }
    out.penalty_window = static_cast<int>(wire_.penalty_window());
  }

  void logit_bias(int vocab_size, SamplingOptions& out) {
    // A protobuf map has no order: sort, so that the same request is the same options.
    std::map<std::int32_t, float> sorted(wire_.logit_bias().begin(), wire_.logit_bias().end());
    for (const auto& [token, bias] : sorted) {
      if (violations_.full()) return;
      const std::string field = "logit_bias[" + std::to_string(token) + "]";
      if (token < 0 || token >= vocab_size) {
        violations_.add(name(field.c_str()), "token id " + std::to_string(token) +
                                                 " is not from 0 to " +
                                                 std::to_string(vocab_size - 1));
        continue;
      }
      require(within(bias, -kLargestBias, kLargestBias), field.c_str(), bias,
              "from -10000 to 10000");
      out.logit_bias.emplace_back(token, bias);
    }
  }

 private:
  const v1::Sampling& wire_;
  Violations& violations_;
};

}  // namespace

SamplingOptions read_sampling(const v1::Sampling& wire, const ModelConfig& config, const Head& head,
                              Violations& violations) {
  SamplingOptions out;
  SamplingCheck check(wire, violations);
  check.temperature(out);
  if (head.supports_filters()) {
    check.filters(config.vocab_size, out);
    check.penalties(out);
    check.penalty_window(out);
    check.logit_bias(config.vocab_size, out);
    return out;
  }
  // Neutral values ask for nothing and are let through.
  const char* const type = to_string(config.head);
  check.refuse(wire.top_k() != 0, "top_k", type);
  check.refuse(wire.has_top_p() && wire.top_p() != 1.0f, "top_p", type);
  check.refuse(wire.has_min_p() && wire.min_p() != 0.0f, "min_p", type);
  check.refuse(wire.has_repetition_penalty() && wire.repetition_penalty() != 1.0f,
               "repetition_penalty", type);
  check.refuse(wire.has_presence_penalty() && wire.presence_penalty() != 0.0f, "presence_penalty",
               type);
  check.refuse(wire.has_frequency_penalty() && wire.frequency_penalty() != 0.0f,
               "frequency_penalty", type);
  check.refuse(wire.penalty_window() != 0, "penalty_window", type);
  check.refuse(!wire.logit_bias().empty(), "logit_bias", type);
  return out;
}

namespace {

constexpr const char* kNeedsTokenizer = "applies to models with a tokenizer only";

void check_stop(const v1::Stop& wire, const Transformer& model, const RequestLimits& limits,
                StopOptions& out, Violations& violations) {
  if (wire.token_ids_size() > limits.max_stop_tokens) {
    violations.add("stop.token_ids", std::to_string(wire.token_ids_size()) +
                                         " stop tokens are more than " +
                                         std::to_string(limits.max_stop_tokens));
    return;
  }
  for (int i = 0; i < wire.token_ids_size(); ++i) {
    check_token(wire.token_ids(i), indexed("stop.token_ids", static_cast<std::size_t>(i)),
                model.config().vocab_size, violations);
  }
  out.tokens.assign(wire.token_ids().begin(), wire.token_ids().end());
  out.include_in_output = wire.include_in_output();
  if (wire.strings_size() == 0) return;
  if (model.tokenizer() == nullptr) return violations.add("stop.strings", kNeedsTokenizer);
  if (wire.strings_size() > limits.max_stop_strings) {
    violations.add("stop.strings", std::to_string(wire.strings_size()) +
                                       " stop strings are more than " +
                                       std::to_string(limits.max_stop_strings));
    return;
  }
  for (int i = 0; i < wire.strings_size(); ++i) {
    const std::string& string = wire.strings(i);
    const std::string field = indexed("stop.strings", static_cast<std::size_t>(i));
    if (string.empty()) violations.add(field, "is empty");
    if (string.size() > static_cast<std::size_t>(limits.max_stop_string_bytes)) {
      violations.add(field, std::to_string(static_cast<std::int64_t>(string.size())) +
                                " bytes are more than " +
                                std::to_string(limits.max_stop_string_bytes));
    }
  }
  out.strings.assign(wire.strings().begin(), wire.strings().end());
}

// Spans in any order -> tokens ascending by position; overlapping spans are refused.
void check_given(const v1::GenerateRequest& wire, const ModelConfig& config, std::int64_t capacity,
                 const RequestLimits& limits, std::vector<GivenToken>& out,
                 Violations& violations) {
  struct Span {
    std::int64_t begin, end;
    std::size_t index;
  };
  std::vector<Span> spans;
  std::int64_t total = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(wire.given_size()); ++i) {
    if (violations.full()) return;
    const v1::GivenSpan& span = wire.given(static_cast<int>(i));
    const std::string path = indexed("given", i);
    const std::int64_t size = num_tokens(span.values());
    total += size;
    if (total > limits.max_given_tokens) {
      violations.add("given",
                     "more than " + std::to_string(limits.max_given_tokens) + " given tokens");
      return;
    }
    // Far positions are refused before anything is added to them.
    constexpr std::int64_t kFarthest = std::int64_t{1} << 53;
    if (span.position() < 0 || span.position() > kFarthest) {
      violations.add(path + ".position",
                     std::to_string(span.position()) + " is not from 0 to 2^53");
      continue;
    }
    if (size == 0) {
      violations.add(path + ".values", "has no tokens");
      continue;
    }
    const std::int64_t end = span.position() + size;
    if (capacity != 0 && end > capacity) {
      violations.add(path + ".position", "tokens at " + std::to_string(span.position()) + " to " +
                                             std::to_string(end - 1) + " end after position " +
                                             std::to_string(capacity - 1) +
                                             ", the sequence's last");
      continue;
    }
    std::vector<std::int32_t> values;
    read_tokens(span.values(), path + ".values", config, size, values, violations);
    for (std::size_t k = 0; k < values.size(); ++k) {
      out.push_back({span.position() + static_cast<std::int64_t>(k), values[k]});
    }
    spans.push_back({span.position(), end, i});
  }
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < spans.size(); ++i) {
    if (spans[i].begin < spans[i - 1].end) {
      violations.add(indexed("given", spans[i].index) + ".position",
                     "the span at " + std::to_string(spans[i].begin) + " overlaps " +
                         indexed("given", spans[i - 1].index) + ", which ends at " +
                         std::to_string(spans[i - 1].end - 1));
    }
  }
  std::sort(out.begin(), out.end(),
            [](const GivenToken& a, const GivenToken& b) { return a.position < b.position; });
}

void check_time_limit(const google::protobuf::Duration& wire, CheckedGenerate& out,
                      Violations& violations) {
  constexpr std::int64_t kLongest = 315'576'000;  // ten years, in seconds: no clock overflows
  const bool valid = wire.seconds() >= 0 && wire.nanos() >= 0 && wire.nanos() < 1'000'000'000 &&
                     (wire.seconds() > 0 || wire.nanos() > 0);
  if (!valid) {
    violations.add("time_limit", std::to_string(wire.seconds()) + " s and " +
                                     std::to_string(wire.nanos()) +
                                     " ns are not a duration above 0");
    return;
  }
  out.time_limit = std::chrono::seconds(std::min(wire.seconds(), kLongest)) +
                   std::chrono::nanoseconds(wire.nanos());
}

// `most`: rows of a step. What would make particles end at different places, or be more than one
// sequence's state can tell, is refused by name.
void check_particles(const v1::GenerateRequest& wire, int most, GenerationRequest& out,
                     Violations& violations) {
  if (wire.particles() <= 1) return;
  const std::string particles = std::to_string(wire.particles());
  if (wire.particles() > static_cast<std::uint32_t>(most)) {
    violations.add("particles", particles + " is more than " + std::to_string(most) +
                                    ", the rows of the model's step");
    return;
  }
  out.particles = static_cast<int>(wire.particles());
  if (wire.num_samples() > wire.particles()) {
    violations.add("num_samples", std::to_string(wire.num_samples()) + " is more than the " +
                                      particles + " particles that samples are chosen from");
  }
  const auto refuse = [&](bool is_set, const char* field, const char* why) {
    if (is_set) violations.add(field, std::string("cannot be combined with particles: ") + why);
  };
  refuse(!wire.session_id().empty(), "session_id", "a session has one state");
  refuse(wire.stop().token_ids_size() > 0, "stop.token_ids",
         "what has stopped cannot be weighed by what is given behind");
  refuse(wire.stop().strings_size() > 0, "stop.strings",
         "what has stopped cannot be weighed by what is given behind");
  refuse(wire.window() != 0, "window", "their states go through the positions together");
  refuse(wire.top_log2_probs() > 0, "top_log2_probs",
         "their tokens are reported at the end, without other candidates");
}

void check_counts(const v1::GenerateRequest& wire, const ModelConfig& config,
                  const RequestLimits& limits, int most_particles, CheckedGenerate& out,
                  Violations& violations) {
  GenerationRequest& request = out.request;
  if (wire.has_max_new_tokens()) {
    out.max_new = wire.max_new_tokens();
    if (*out.max_new > limits.max_new_tokens) {
      violations.add("max_new_tokens", std::to_string(*out.max_new) + " is more than " +
                                           std::to_string(limits.max_new_tokens));
    }
  }
  if (wire.has_num_samples()) {
    if (wire.num_samples() < 1 ||
        wire.num_samples() > static_cast<std::uint32_t>(limits.max_samples)) {
      violations.add("num_samples", std::to_string(wire.num_samples()) + " is not from 1 to " +
                                        std::to_string(limits.max_samples));
    } else if (wire.num_samples() > 1 && !wire.session_id().empty()) {
      violations.add("num_samples", std::to_string(wire.num_samples()) +
                                        " samples cannot continue one session, at most 1 can");
    } else {
      request.num_samples = static_cast<int>(wire.num_samples());
    }
  }
  check_particles(wire, most_particles, request, violations);
  const int most_top = std::min(limits.max_top_log2_probs, config.vocab_size);
  if (wire.top_log2_probs() > static_cast<std::uint32_t>(most_top)) {
    violations.add("top_log2_probs", std::to_string(wire.top_log2_probs()) + " is more than " +
                                         std::to_string(most_top));
  } else {
    request.top_log2_probs = static_cast<int>(wire.top_log2_probs());
  }
  // The N best come in addition to the token's own.
  request.log2_probs = wire.log2_probs() || request.top_log2_probs > 0;
  out.max_tokens_per_message =
      static_cast<int>(std::min<std::uint32_t>(wire.max_tokens_per_message(), 1u << 30));
}

}  // namespace

std::int64_t check_window(std::int64_t window, const ModelConfig& config, Violations& violations) {
  if (window == 0) return 0;
  const std::int64_t most = config.max_length == 0 ? kMostWindow : config.max_length;
  if (config.modality == ModalityKind::kImage) {
    violations.add("window", "does not apply to images, which have an end");
  } else if (window < 2 || window > most || window % 2 != 0) {
    violations.add("window", std::to_string(window) + " is not an even number from 2 to " +
                                 std::to_string(most));
  } else {
    return window;
  }
  return 0;
}

std::int64_t default_window(const ModelConfig& config, const SessionImage* initial) {
  if (config.modality == ModalityKind::kImage) return 0;
  std::int64_t window = initial == nullptr ? 0 : initial->window;
  if (window == 0) {
    const std::int64_t most = config.max_length == 0 ? kMostWindow : config.max_length;
    window = std::min<std::int64_t>(config.trained_length, most) / 2 * 2;
  }
  const bool is_whole = initial == nullptr || check_window_of_state(window, *initial).ok();
  return is_whole ? window : 0;
}

grpc::Status check_window_of_state(std::int64_t window, const SessionImage& image) {
  if (window == 0 || image.base <= std::max<std::int64_t>(image.position - window, 0)) return {};
  return invalid_argument(
      {{"window", "the state to begin with lacks some of its last " + std::to_string(window) +
                      " tokens, from which a window restarts"}});
}

grpc::Status check_penalty_window(std::int64_t penalty_window, std::int64_t base,
                                  std::int64_t num_tokens) {
  const std::int64_t first = std::max<std::int64_t>(num_tokens - penalty_window, 0);
  if (penalty_window == 0 || base <= first) return {};
  return invalid_argument(
      {{"sampling.penalty_window", "of the last " + std::to_string(penalty_window) +
                                       " tokens those before position " + std::to_string(base) +
                                       " are no longer known"}});
}

std::vector<std::int32_t> encode_prompt(const v1::GenerateRequest& wire, const std::string& text,
                                        const Tokenizer& tokenizer, bool begins) {
  return tokenizer.encode(text,
                          {.add_special = wire.has_add_special() ? wire.add_special() : begins,
                           .parse_special = wire.parse_special(),
                           .continues = !begins});
}

CheckedGenerate check_generate(const v1::GenerateRequest& wire, const v1::Values& prompt,
                               const ServedModel& model, std::optional<std::int64_t> session_window,
                               const SessionImage* initial, bool begins, Violations& violations) {
  const ModelConfig& config = model.transformer->config();
  const RequestLimits& limits = model.limits;
  CheckedGenerate out;
  GenerationRequest& request = out.request;
  if (session_window && wire.has_window() && wire.window() != *session_window) {
    violations.add("window", std::to_string(wire.window()) + " is not the session's, " +
                                 std::to_string(*session_window));
  }
  if (session_window) {
    request.window = *session_window;
  } else if (wire.has_window()) {
    request.window = check_window(wire.window(), config, violations);
  } else if (wire.particles() <= 1) {  // whose states go through the positions together
    request.window = default_window(config, initial);
    out.has_default_window = true;
  }
  const std::int64_t capacity = request.window > 0 ? 0 : config.max_tokens();
  const std::int64_t max_prompt =
      capacity == 0 ? limits.max_prompt_tokens : std::min(limits.max_prompt_tokens, capacity);
  const Tokenizer* const tokenizer = model.transformer->tokenizer().get();
  if (!prompt.has_text()) {
    read_tokens(prompt, "prompt", config, max_prompt, request.prompt, violations);
  } else if (tokenizer == nullptr) {
    violations.add("prompt.text", kNeedsTokenizer);
  } else {
    request.prompt = encode_prompt(wire, prompt.text(), *tokenizer, begins);
    check_tokens(request.prompt, "prompt", config, max_prompt, violations);
  }
  const std::int64_t prompt_size =
      prompt.has_text() ? static_cast<std::int64_t>(request.prompt.size()) : num_tokens(prompt);
  if (capacity != 0 && prompt_size > capacity) violations.set_reason(kContextLengthExceeded);
  if (wire.cache_prefix_tokens() > request.prompt.size() && violations.empty()) {
    violations.add("cache_prefix_tokens",
                   std::to_string(wire.cache_prefix_tokens()) + " is more than the " +
                       std::to_string(request.prompt.size()) + " tokens of the prompt");
  }
  request.cache_prefix_tokens = wire.cache_prefix_tokens();
  check_counts(wire, config, limits, model.scheduler->options().max_batch_rows, out, violations);
  request.sampling = read_sampling(wire.sampling(), config, model.transformer->head(), violations);
  out.has_seed = wire.sampling().has_seed();
  request.seed = wire.sampling().seed();
  check_stop(wire.stop(), *model.transformer, limits, request.stop, violations);
  // Particles go through all positions.
  if (prompt.has_text() && tokenizer != nullptr && !request.uses_particles()) {
    request.stop.tokens.insert(request.stop.tokens.end(), tokenizer->eos().begin(),
                               tokenizer->eos().end());
  }
  out.token_bytes = wire.token_bytes();
  if (out.token_bytes && tokenizer == nullptr && !prompt.has_text()) {
    violations.add("token_bytes", kNeedsTokenizer);
  }
  request.echo_prompt = wire.echo_prompt();
  check_given(wire, config, capacity, limits, request.given, violations);
  if (wire.has_time_limit()) check_time_limit(wire.time_limit(), out, violations);
  return out;
}

grpc::Status check_position(const SequencePosition& at, const ServedModel& model,
                            const std::string& subject, CheckedGenerate& checked) {
  GenerationRequest& request = checked.request;
  Violations violations;
  const std::int64_t capacity = at.max_tokens;
  if (capacity != 0 && at.num_tokens >= capacity) {
    return failed_precondition(
        "SEQUENCE_COMPLETE", subject,
        "the sequence is complete: it holds all of its " + std::to_string(capacity) + " tokens");
  }
  const auto prompt_size = static_cast<std::int64_t>(request.prompt.size());
  if (capacity != 0 && prompt_size > capacity - at.num_tokens) {
    violations.add("prompt", std::to_string(prompt_size) + " tokens are more than the " +
                                 std::to_string(capacity - at.num_tokens) +
                                 " left of the sequence");
    violations.set_reason(kContextLengthExceeded);
    return violations.status();
  }
  std::int64_t first_new = at.num_tokens + prompt_size;
  if (prompt_size == 0 && !at.has_pending) {
    const bool starts_given =
        at.num_tokens == 0 && !request.given.empty() && request.given.front().position == 0;
    const bool starts_image =
        at.num_tokens == 0 && model.transformer->config().modality == ModalityKind::kImage;
    if (starts_image && !starts_given) first_new = 1;  // after the start token
    if (!starts_given && !starts_image) {
      violations.add("prompt",
                     "is empty, and there is no start token or pending token to continue from");
      return violations.status();
    }
  }
  if (!request.given.empty()) {
    const std::int64_t first = request.given.front().position;
    const std::int64_t last = request.given.back().position;
    if (first < first_new) {
      violations.add("given", "position " + std::to_string(first) + " is before " +
                                  std::to_string(first_new) + ", the first new token");
    }
    if (capacity != 0 && last >= capacity) {
      violations.add("given", "position " + std::to_string(last) + " is after " +
                                  std::to_string(capacity - 1) + ", the sequence's last");
    }
    if (!violations.empty()) return violations.status();
  }
  std::int64_t max_new = checked.max_new.value_or(model.limits.max_new_tokens);
  if (capacity != 0 && !checked.max_new) max_new = std::min(max_new, capacity - first_new);
  // Who names neither a window nor a number has text up to the model's length, as without a window.
  const std::int64_t length = model.transformer->config().max_tokens();
  if (checked.has_default_window && !checked.max_new && first_new < length) {
    max_new = std::min(max_new, length - first_new);
  }
  request.max_new_tokens = max_new;
  return grpc::Status::OK;
}

std::int64_t prompt_tokens_of(const SequencePosition& at, const ServedModel& model,
                              const GenerationRequest& request) {
  const bool starts_given = !request.given.empty() && request.given.front().position == 0;
  const bool starts_image = at.num_tokens == 0 && request.prompt.empty() && !starts_given &&
                            model.transformer->config().modality == ModalityKind::kImage;
  return starts_image ? 1 : static_cast<std::int64_t>(request.prompt.size());
}

std::int64_t tokens_needed(const SequencePosition& at, const CheckedGenerate& checked) {
  const GenerationRequest& request = checked.request;
  const auto prompt_size = static_cast<std::int64_t>(request.prompt.size());
  // One for a start token, which the prompt may lack.
  const std::int64_t values =
      at.num_tokens + std::max<std::int64_t>(prompt_size, 1) + request.max_new_tokens;
  // A state to begin with may be longer than the window.
  return request.window > 0 ? std::min(values, std::max(request.window, at.num_tokens)) : values;
}

ScoreSequences check_score(const v1::ScoreRequest& wire, const ModelConfig& config,
                           const Tokenizer* tokenizer, const RequestLimits& limits,
                           Violations& violations) {
  ScoreSequences out;
  const int count = wire.sequences_size();
  if (wire.token_bytes() && tokenizer == nullptr) violations.add("token_bytes", kNeedsTokenizer);
  if (count == 0) violations.add("sequences", "is empty");
  if (count > kMaxScoreSequences) {
    violations.add("sequences", std::to_string(count) + " sequences are more than " +
                                    std::to_string(kMaxScoreSequences));
    return out;
  }
  out.ends.reserve(static_cast<std::size_t>(count));
  std::int64_t total = 0;
  const std::int64_t longest = config.max_tokens();
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    if (violations.full()) break;
    const v1::Values& values = wire.sequences(static_cast<int>(i));
    const std::string path = indexed("sequences", i);
    std::vector<std::int32_t> of_text;
    if (values.has_text()) {
      if (tokenizer == nullptr) {
        violations.add(path + ".text", kNeedsTokenizer);
        continue;
      }
      of_text = tokenizer->encode(values.text(),
                                  {.add_special = !wire.has_add_special() || wire.add_special(),
                                   .parse_special = wire.parse_special()});
    }
    const std::int64_t size =
        values.has_text() ? static_cast<std::int64_t>(of_text.size()) : num_tokens(values);
    total += size;
    if (total > limits.max_score_tokens) {
      violations.add("sequences",
                     "more than " + std::to_string(limits.max_score_tokens) + " tokens in all");
      break;
    }
    if (size < 2) {
      violations.add(
          path, std::to_string(size) + " tokens are fewer than 2: the first is given, not scored");
      continue;
    }
    const std::int64_t most = longest == 0 ? size : longest;
    if (!values.has_text()) {
      read_tokens(values, path, config, most, out.tokens, violations);
    } else if (check_tokens(of_text, path, config, most, violations)) {
      out.tokens.insert(out.tokens.end(), of_text.begin(), of_text.end());
    }
    out.ends.push_back(out.tokens.size());
  }
  return violations.empty() ? out : ScoreSequences();
}

namespace {

// Of all that makes the tokens but the seed, which a repeat need not know. When a repeat is sent,
// where it stands and how long it may take are its own.
Digest digest_of_call(v1::GenerateRequest wire, const v1::Values* prompt) {
  if (prompt != nullptr) *wire.mutable_prompt() = *prompt;
  wire.clear_from_position();
  wire.clear_expected_position();
  wire.clear_time_limit();
  wire.clear_max_tokens_per_message();
  wire.mutable_sampling()->clear_seed();
  if (wire.window() == 0) wire.clear_window();  // 0 and absent have one digest
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    wire.SerializeToCodedStream(&coded);
  }
  return digest_of(std::as_bytes(std::span(bytes)));
}

}  // namespace

IdempotencyKey check_call_terms(const v1::GenerateRequest& wire, const v1::Values* prompt,
                                const SessionLease& lease, Violations& violations) {
  IdempotencyKey terms;
  const std::string& id = wire.call_id();
  const bool is_durable = lease && lease.durability() != Durability::kNone;
  if (!id.empty()) {
    const bool is_printable = std::ranges::all_of(id, [](char c) { return c >= ' ' && c <= '~'; });
    if (!lease) {
      violations.add("call_id", "is for calls on sessions: this one cannot be repeated");
    } else if (!is_durable) {
      violations.add("call_id", "is for sessions that outlive the server, which session " +
                                    clip(lease.session_id()) + " does not (durability)");
    } else if (id.size() > kMostCallIdBytes || !is_printable) {
      violations.add("call_id", "'" + clip(id) + "' is not at most " +
                                    std::to_string(kMostCallIdBytes) +
                                    " printable ASCII characters");
    }
  }
  if (wire.from_position() < 0) {
    violations.add("from_position", std::to_string(wire.from_position()) + " is less than 0");
  } else if (wire.from_position() > 0 && id.empty()) {
    violations.add("from_position", "is for repeats, which have a call_id");
  }
  if (wire.has_expected_position()) {
    if (!lease) {
      violations.add("expected_position", "is for calls on sessions");
    } else if (wire.expected_position() < 0) {
      violations.add("expected_position",
                     std::to_string(wire.expected_position()) + " is less than 0");
    }
    terms.expected_position = wire.expected_position();
  }
  terms.id = id;
  if (wire.sampling().has_seed()) terms.seed = wire.sampling().seed();
  terms.from_position = wire.from_position();
  terms.log2_probs = wire.log2_probs() || wire.top_log2_probs() > 0;
  terms.echo_prompt = wire.echo_prompt();
  if (is_durable && violations.empty()) terms.request = digest_of_call(wire, prompt);
  return terms;
}

SessionRefusal check_expected_position(const IdempotencyKey& terms, std::int64_t num_tokens) {
  if (!terms.expected_position || *terms.expected_position == num_tokens) return {};
  return {SessionError::kPositionMismatch, 0, 0, -1, num_tokens, *terms.expected_position};
}

}  // namespace lintel
