// SPDX-License-Identifier: Apache-2.0
#include "server/api/request_checks.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <span>
#include <sstream>
#include <string>
#include <utility>

#include "lintel/v1/generation.pb.h"
#include "model/config/config.h"
#include "model/sampling/head.h"
#include "server/api/params/generate_params.h"
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

void read_tokens(const api::Values& values, const std::string& path, const ModelConfig& config,
                 std::int64_t max_tokens, std::vector<std::int32_t>& out, Violations& violations) {
  using Form = api::Values::Form;
  if (values.form == Form::kTokens) {
    if (check_tokens(values.ids, path, config, max_tokens, violations)) {
      out.insert(out.end(), values.ids.begin(), values.ids.end());
    }
    return;
  }
  if (!check_count(values.size(), max_tokens, path, violations)) return;
  if (values.form == Form::kNone) return;
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
  for (std::size_t i = 0; i < values.bytes.size() && !violations.full(); ++i) {
    const auto value = static_cast<unsigned char>(values.bytes[i]);
    if (value >= config.vocab_size) {
      check_token(value, indexed(field, i), config.vocab_size, violations);
    }
    out.push_back(value);
  }
}

// Checks of sampling options.

namespace {

// The row of the table that has this name; another name does not compile.
consteval const RequestField& field_named(std::string_view name) {
  const RequestField* row = kRequestFields;
  while (row->name != name) ++row;
  return *row;
}

std::string text(float value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

// A number against the range that the table of fields has for it. `where`: the field, or an item of
// it.
template <typename Number>
void check_range(Number value, const RequestField& field, const std::string& where,
                 Violations& violations) {
  if (field.range.contains(static_cast<float>(value))) return;
  violations.add(where, text(static_cast<float>(value)) + " is not " + field.range.text());
}

// Reads sampling as this head supports it.
SamplingOptions read_sampling(const api::SamplingParams& params, const ModelConfig& config,
                              const Head& head, Violations& violations) {
  SamplingOptions out;
  // Filters that would change the distribution are refused, not ignored, on a head without filters;
  // neutral values ask for nothing and pass.
  const bool has_filters = head.supports_filters();
  const auto refuse = [&](bool changes, const RequestField& field) {
    if (!changes) return;
    violations.add(std::string(field.name),
                   std::string("does not apply to a head of type ") + to_string(config.head));
  };
  const auto take = [&](const auto& given, const RequestField& field, auto neutral, auto& to) {
    if (!given) return;
    if (!has_filters) return refuse(*given != neutral, field);
    to = *given;
    check_range(*given, field, std::string(field.name), violations);
  };
  if (params.temperature) {
    constexpr const RequestField& kField = field_named("sampling.temperature");
    out.temperature = *params.temperature;
    check_range(out.temperature, kField, std::string(kField.name), violations);
  }
  if (!has_filters) {
    refuse(params.top_k.value_or(0) != 0, field_named("sampling.top_k"));
  } else if (params.top_k) {
    out.top_k = static_cast<int>(
        std::min<std::uint32_t>(*params.top_k, static_cast<std::uint32_t>(config.vocab_size)));
  }
  take(params.top_p, field_named("sampling.top_p"), 1.0f, out.top_p);
  take(params.min_p, field_named("sampling.min_p"), 0.0f, out.min_p);
  take(params.repetition_penalty, field_named("sampling.repetition_penalty"), 1.0f,
       out.repetition_penalty);
  take(params.presence_penalty, field_named("sampling.presence_penalty"), 0.0f,
       out.presence_penalty);
  take(params.frequency_penalty, field_named("sampling.frequency_penalty"), 0.0f,
       out.frequency_penalty);
  constexpr const RequestField& kWindow = field_named("sampling.penalty_window");
  if (!has_filters) {
    refuse(params.penalty_window != 0, kWindow);
  } else if (!kWindow.range.contains(static_cast<float>(params.penalty_window))) {
    violations.add(std::string(kWindow.name),
                   std::to_string(params.penalty_window) + " is not " + kWindow.range.text());
  } else {
    out.penalty_window = static_cast<int>(params.penalty_window);
  }
  constexpr const RequestField& kBias = field_named("sampling.logit_bias");
  if (!has_filters) refuse(!params.logit_bias.empty(), kBias);
  if (!has_filters) return out;
  for (const auto& [token, bias] : params.logit_bias) {
    if (violations.full()) break;
    const std::string where = std::string(kBias.name) + "[" + std::to_string(token) + "]";
    if (token < 0 || token >= config.vocab_size) {
      violations.add(where, "token id " + std::to_string(token) + " is not from 0 to " +
                                std::to_string(config.vocab_size - 1));
      continue;
    }
    check_range(bias, kBias, where, violations);
    out.logit_bias.emplace_back(token, bias);
  }
  return out;
}

}  // namespace

void check_stop_strings(const std::vector<std::string>& strings, const std::string& path,
                        const RequestLimits& limits, Violations& violations) {
  if (strings.size() > static_cast<std::size_t>(limits.max_stop_strings)) {
    violations.add(path, std::to_string(strings.size()) + " stop strings are more than " +
                             std::to_string(limits.max_stop_strings));
    return;
  }
  for (std::size_t i = 0; i < strings.size(); ++i) {
    if (strings[i].empty()) violations.add(indexed(path, i), "is empty");
    if (strings[i].size() > static_cast<std::size_t>(limits.max_stop_string_bytes)) {
      violations.add(indexed(path, i), std::to_string(strings[i].size()) + " bytes are more than " +
                                           std::to_string(limits.max_stop_string_bytes));
    }
  }
}

namespace {

constexpr const char* kNeedsTokenizer = "applies to models with a tokenizer only";

// max_new: the call's tokens, if it names a number.
void check_min_tokens(std::uint32_t min_tokens, const Transformer& model,
                      std::optional<std::int64_t> max_new, StopOptions& out,
                      Violations& violations) {
  constexpr const char* kField = "stop.min_tokens";
  if (min_tokens == 0) return;
  if (model.tokenizer() == nullptr) return violations.add(kField, kNeedsTokenizer);
  if (!model.head().supports_filters()) {
    return violations.add(
        kField, std::string("does not apply to a head of type ") + to_string(model.config().head));
  }
  if (max_new && std::int64_t{min_tokens} > *max_new) {
    return violations.add(kField, std::to_string(min_tokens) +
                                      " is more than the most tokens of the answer, " +
                                      std::to_string(*max_new));
  }
  out.min_tokens = min_tokens;
}

void check_stop(const api::StopParams& params, const Transformer& model,
                const RequestLimits& limits, std::optional<std::int64_t> max_new, StopOptions& out,
                Violations& violations) {
  if (params.token_ids.size() > static_cast<std::size_t>(limits.max_stop_tokens)) {
    violations.add("stop.token_ids", std::to_string(params.token_ids.size()) +
                                         " stop tokens are more than " +
                                         std::to_string(limits.max_stop_tokens));
    return;
  }
  for (std::size_t i = 0; i < params.token_ids.size(); ++i) {
    check_token(params.token_ids[i], indexed("stop.token_ids", i), model.config().vocab_size,
                violations);
  }
  out.tokens = params.token_ids;
  out.include_in_output = params.include_in_output;
  check_min_tokens(params.min_tokens, model, max_new, out, violations);
  if (params.strings.empty()) return;
  if (model.tokenizer() == nullptr) return violations.add("stop.strings", kNeedsTokenizer);
  check_stop_strings(params.strings, "stop.strings", limits, violations);
  out.strings = params.strings;
}

// Spans in any order -> tokens ascending by position; overlapping spans are refused.
void check_given(const std::vector<api::GivenValues>& given, const ModelConfig& config,
                 std::int64_t capacity, const RequestLimits& limits, std::vector<GivenToken>& out,
                 Violations& violations) {
  struct Span {
    std::int64_t begin, end;
    std::size_t index;
  };
  std::vector<Span> spans;
  std::int64_t total = 0;
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (violations.full()) return;
    const api::GivenValues& span = given[i];
    const std::string path = indexed("given", i);
    const std::int64_t size = span.values.size();
    total += size;
    if (total > limits.max_given_tokens) {
      violations.add("given",
                     "more than " + std::to_string(limits.max_given_tokens) + " given tokens");
      return;
    }
    // Far positions are refused before anything is added to them.
    constexpr std::int64_t kFarthest = std::int64_t{1} << 53;
    if (span.position < 0 || span.position > kFarthest) {
      violations.add(path + ".position", std::to_string(span.position) + " is not from 0 to 2^53");
      continue;
    }
    if (size == 0) {
      violations.add(path + ".values", "has no tokens");
      continue;
    }
    const std::int64_t end = span.position + size;
    if (capacity != 0 && end > capacity) {
      violations.add(path + ".position", "tokens at " + std::to_string(span.position) + " to " +
                                             std::to_string(end - 1) + " end after position " +
                                             std::to_string(capacity - 1) +
                                             ", the sequence's last");
      continue;
    }
    std::vector<std::int32_t> values;
    read_tokens(span.values, path + ".values", config, size, values, violations);
    for (std::size_t k = 0; k < values.size(); ++k) {
      out.push_back({span.position + static_cast<std::int64_t>(k), values[k]});
    }
    spans.push_back({span.position, end, i});
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

void check_time_limit(const api::TimeLimit& limit, CheckedGenerate& out, Violations& violations) {
  constexpr std::int64_t kLongest = 315'576'000;  // ten years, in seconds: no clock overflows
  const bool valid = limit.seconds >= 0 && limit.nanos >= 0 && limit.nanos < 1'000'000'000 &&
                     (limit.seconds > 0 || limit.nanos > 0);
  if (!valid) {
    violations.add("time_limit", std::to_string(limit.seconds) + " s and " +
                                     std::to_string(limit.nanos) +
                                     " ns are not a duration above 0");
    return;
  }
  out.time_limit = std::chrono::seconds(std::min(limit.seconds, kLongest)) +
                   std::chrono::nanoseconds(limit.nanos);
}

// `most`: rows of a step. Refuses, by its name, a field that would end particles at different
// places, or that the one state of a sequence cannot serve.
void check_particles(const api::GenerateParams& params, int most, GenerationRequest& out,
                     Violations& violations) {
  if (params.particles <= 1) return;
  const std::string particles = std::to_string(params.particles);
  if (params.particles > static_cast<std::uint32_t>(most)) {
    violations.add("particles", particles + " is more than " + std::to_string(most) +
                                    ", the rows of the model's step");
    return;
  }
  out.particles = static_cast<int>(params.particles);
  if (params.num_samples.value_or(1) > params.particles) {
    violations.add("num_samples", std::to_string(*params.num_samples) + " is more than the " +
                                      particles + " particles that samples are chosen from");
  }
  const auto refuse = [&](bool is_set, const char* field, const char* why) {
    if (is_set) violations.add(field, std::string("cannot be combined with particles: ") + why);
  };
  refuse(!params.session_id.empty(), "session_id", "a session has one state");
  refuse(!params.stop.token_ids.empty(), "stop.token_ids",
         "what has stopped cannot be weighed by what is given behind");
  refuse(!params.stop.strings.empty(), "stop.strings",
         "what has stopped cannot be weighed by what is given behind");
  refuse(params.window.value_or(0) != 0, "window",
         "their states go through the positions together");
  refuse(params.top_log2_probs > 0, "top_log2_probs",
         "their tokens are reported at the end, without other candidates");
}

void check_counts(const api::GenerateParams& params, const ModelConfig& config,
                  const RequestLimits& limits, int most_particles, CheckedGenerate& out,
                  Violations& violations) {
  GenerationRequest& request = out.request;
  if (params.max_new_tokens) {
    out.max_new = *params.max_new_tokens;
    if (*out.max_new > limits.max_new_tokens) {
      violations.add("max_new_tokens", std::to_string(*out.max_new) + " is more than " +
                                           std::to_string(limits.max_new_tokens));
    }
  }
  if (params.num_samples) {
    if (*params.num_samples < 1 ||
        *params.num_samples > static_cast<std::uint32_t>(limits.max_samples)) {
      violations.add("num_samples", std::to_string(*params.num_samples) + " is not from 1 to " +
                                        std::to_string(limits.max_samples));
    } else if (*params.num_samples > 1 && !params.session_id.empty()) {
      violations.add("num_samples", std::to_string(*params.num_samples) +
                                        " samples cannot continue one session, at most 1 can");
    } else {
      request.num_samples = static_cast<int>(*params.num_samples);
    }
  }
  check_particles(params, most_particles, request, violations);
  if (params.top_log2_probs > static_cast<std::uint32_t>(limits.max_top_log2_probs)) {
    violations.add("top_log2_probs", std::to_string(params.top_log2_probs) + " is more than " +
                                         std::to_string(limits.max_top_log2_probs) +
                                         " (--max-top-log2-probs)");
  } else if (params.top_log2_probs > static_cast<std::uint32_t>(config.vocab_size)) {
    violations.add("top_log2_probs", std::to_string(params.top_log2_probs) + " is more than the " +
                                         std::to_string(config.vocab_size) +
                                         " tokens of the vocabulary");
  } else {
    request.top_log2_probs = static_cast<int>(params.top_log2_probs);
  }
  // The N best come in addition to the token's own.
  request.log2_probs = params.log2_probs || request.top_log2_probs > 0;
  out.max_tokens_per_message =
      static_cast<int>(std::min<std::uint32_t>(params.max_tokens_per_message, 1u << 30));
}

}  // namespace

std::int64_t check_window(std::int64_t window, const ModelConfig& config, Violations& violations) {
  if (window == 0) return 0;
  const std::int64_t length = config.served_length();
  const std::int64_t most = length == 0 ? kMostWindow : length;
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
    const std::int64_t length = config.served_length();
    const std::int64_t most = length == 0 ? kMostWindow : length;
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

std::vector<std::int32_t> encode_prompt(const api::GenerateParams& params, const std::string& text,
                                        const Tokenizer& tokenizer, bool begins) {
  return tokenizer.encode(text, {.add_special = params.add_special.value_or(begins),
                                 .parse_special = params.parse_special,
                                 .continues = !begins});
}

CheckedGenerate check_generate(const api::GenerateParams& params, const api::Values& prompt,
                               const ServedModel& model, std::optional<std::int64_t> session_window,
                               const SessionImage* initial, bool begins, Violations& violations) {
  const ModelConfig& config = model.transformer->config();
  const RequestLimits& limits = model.limits;
  CheckedGenerate out;
  GenerationRequest& request = out.request;
  if (session_window && params.window && *params.window != *session_window) {
    violations.add("window", std::to_string(*params.window) + " is not the session's, " +
                                 std::to_string(*session_window));
  }
  if (session_window) {
    request.window = *session_window;
  } else if (params.window) {
    request.window = check_window(*params.window, config, violations);
  } else if (params.particles <= 1) {  // whose states go through the positions together
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
    request.prompt = encode_prompt(params, prompt.bytes, *tokenizer, begins);
    check_tokens(request.prompt, "prompt", config, max_prompt, violations);
  }
  const std::int64_t prompt_size =
      prompt.has_text() ? static_cast<std::int64_t>(request.prompt.size()) : prompt.size();
  if (capacity != 0 && prompt_size > capacity) violations.set_reason(kContextLengthExceeded);
  if (params.cache_prefix_tokens > request.prompt.size() && violations.empty()) {
    violations.add("cache_prefix_tokens",
                   std::to_string(params.cache_prefix_tokens) + " is more than the " +
                       std::to_string(request.prompt.size()) + " tokens of the prompt");
  }
  request.cache_prefix_tokens = params.cache_prefix_tokens;
  check_counts(params, config, limits, model.scheduler->options().max_batch_rows, out, violations);
  request.sampling = read_sampling(params.sampling, config, model.transformer->head(), violations);
  out.has_seed = params.sampling.seed.has_value();
  request.seed = params.sampling.seed.value_or(0);
  check_stop(params.stop, *model.transformer, limits, out.max_new, request.stop, violations);
  // Particles go through all positions.
  if (prompt.has_text() && tokenizer != nullptr && !request.uses_particles() &&
      !params.stop.ignore_eos) {
    request.stop.tokens.insert(request.stop.tokens.end(), tokenizer->eos().begin(),
                               tokenizer->eos().end());
  }
  out.token_bytes = params.token_bytes;
  // A text is refused above: Connect asks for the bytes of its tokens, not the client.
  if (out.token_bytes && tokenizer == nullptr && !prompt.has_text()) {
    violations.add("token_bytes", kNeedsTokenizer);
  }
  request.echo_prompt = params.echo_prompt;
  check_given(params.given, config, capacity, limits, request.given, violations);
  if (params.time_limit) check_time_limit(*params.time_limit, out, violations);
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
  // A request that names neither a window nor a number gets text up to the model's length.
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
    const api::Values values = api::read_values(wire.sequences(static_cast<int>(i)));
    const std::string path = indexed("sequences", i);
    std::vector<std::int32_t> of_text;
    if (values.has_text()) {
      if (tokenizer == nullptr) {
        violations.add(path + ".text", kNeedsTokenizer);
        continue;
      }
      of_text = tokenizer->encode(values.bytes,
                                  {.add_special = !wire.has_add_special() || wire.add_special(),
                                   .parse_special = wire.parse_special()});
    }
    const std::int64_t size =
        values.has_text() ? static_cast<std::int64_t>(of_text.size()) : values.size();
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

// The digest of all fields that make the tokens but the seed, which a repeat need not know. A
// repeat has its own deadline, time limit and expected position.
Digest digest_of_call(const api::GenerateParams& params, const api::Values* prompt) {
  api::GenerateParams terms = params;
  if (prompt != nullptr) terms.prompt = *prompt;
  if (terms.window == 0) terms.window.reset();  // 0 and absent have one digest
  v1::GenerateRequest wire;
  api::write_params(terms, wire);
  if (prompt != nullptr) wire.mutable_prompt();  // also an empty one
  wire.mutable_sampling()->clear_seed();
  api::clear_what_changes_no_answer(wire);
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

IdempotencyKey check_call_terms(const api::GenerateParams& params, const api::Values* prompt,
                                const SessionLease& lease, Violations& violations) {
  IdempotencyKey terms;
  const std::string& id = params.call_id;
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
  if (params.from_position < 0) {
    violations.add("from_position", std::to_string(params.from_position) + " is less than 0");
  } else if (params.from_position > 0 && id.empty()) {
    violations.add("from_position", "is for repeats, which have a call_id");
  }
  if (params.expected_position) {
    if (!lease) {
      violations.add("expected_position", "is for calls on sessions");
    } else if (*params.expected_position < 0) {
      violations.add("expected_position",
                     std::to_string(*params.expected_position) + " is less than 0");
    }
    terms.expected_position = *params.expected_position;
  }
  terms.id = id;
  terms.seed = params.sampling.seed;
  terms.from_position = params.from_position;
  terms.log2_probs = params.log2_probs || params.top_log2_probs > 0;
  terms.echo_prompt = params.echo_prompt;
  if (is_durable && violations.empty()) terms.request = digest_of_call(params, prompt);
  return terms;
}

SessionRefusal check_expected_position(const IdempotencyKey& terms, std::int64_t num_tokens) {
  if (!terms.expected_position || *terms.expected_position == num_tokens) return {};
  return {SessionError::kPositionMismatch, 0, 0, -1, num_tokens, *terms.expected_position};
}

}  // namespace lintel
