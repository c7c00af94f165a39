#include "server/api/generate_checks.h"

#include <algorithm>
#include <utility>

#include "server/api/sampling_checks.h"
#include "server/api/value_checks.h"
#include "server/grpc/transport/status.h"

namespace lintel {
namespace {

void check_stop(const v1::Stop& wire, const ModelConfig& config, const RequestLimits& limits,
                StopOptions& out, Violations& violations) {
  if (wire.token_ids_size() > limits.max_stop_tokens) {
    violations.add("stop.token_ids", std::to_string(wire.token_ids_size()) +
                                         " stop tokens are more than " +
                                         std::to_string(limits.max_stop_tokens));
    return;
  }
  for (int i = 0; i < wire.token_ids_size(); ++i) {
    check_token(wire.token_ids(i), indexed("stop.token_ids", static_cast<std::size_t>(i)),
                config.vocab_size, violations);
  }
  out.tokens.assign(wire.token_ids().begin(), wire.token_ids().end());
  out.include_in_output = wire.include_in_output();
  if (wire.strings_size() == 0) return;
  if (config.modality != ModalityKind::kBytes) {
    violations.add("stop.strings", "applies to models of modality bytes only");
    return;
  }
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

// Spans in any order -> values ascending by position; overlapping spans are refused.
void check_given(const v1::GenerateRequest& wire, const ModelConfig& config, std::int64_t capacity,
                 const RequestLimits& limits, std::vector<GivenValue>& out,
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
    const std::int64_t size = num_values(span.values());
    total += size;
    if (total > limits.max_given_tokens) {
      violations.add("given",
                     "more than " + std::to_string(limits.max_given_tokens) + " given values");
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
      violations.add(path + ".values", "has no values");
      continue;
    }
    const std::int64_t end = span.position() + size;
    if (capacity != 0 && end > capacity) {
      violations.add(path + ".position", "values at " + std::to_string(span.position()) + " to " +
                                             std::to_string(end - 1) + " end after position " +
                                             std::to_string(capacity - 1) +
                                             ", the sequence's last");
      continue;
    }
    std::vector<std::int32_t> values;
    read_values(span.values(), path + ".values", config, size, values, violations);
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
            [](const GivenValue& a, const GivenValue& b) { return a.position < b.position; });
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
  // The N best come in addition to the value's own.
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
                      " values, from which a window restarts"}});
}

grpc::Status check_penalty_window(std::int64_t penalty_window, std::int64_t base,
                                  std::int64_t num_values) {
  const std::int64_t first = std::max<std::int64_t>(num_values - penalty_window, 0);
  if (penalty_window == 0 || base <= first) return {};
  return invalid_argument(
      {{"sampling.penalty_window", "of the last " + std::to_string(penalty_window) +
                                       " values those before position " + std::to_string(base) +
                                       " are no longer known"}});
}

CheckedGenerate check_generate(const v1::GenerateRequest& wire,
                               std::optional<std::vector<std::int32_t>> prompt,
                               const ServedModel& model, std::optional<std::int64_t> session_window,
                               const SessionImage* initial, Violations& violations) {
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
  const std::int64_t capacity = request.window > 0 ? 0 : config.max_values();
  const std::int64_t max_prompt =
      capacity == 0 ? limits.max_prompt_tokens : std::min(limits.max_prompt_tokens, capacity);
  if (prompt) {
    check_tokens(*prompt, "prompt", config, max_prompt, violations);
    request.prompt = std::move(*prompt);
  } else {
    read_values(wire.prompt(), "prompt", config, max_prompt, request.prompt, violations);
  }
  if (wire.cache_prefix_tokens() > request.prompt.size() && violations.empty()) {
    violations.add("cache_prefix_tokens",
                   std::to_string(wire.cache_prefix_tokens()) + " is more than the " +
                       std::to_string(request.prompt.size()) + " values of the prompt");
  }
  request.cache_prefix_tokens = wire.cache_prefix_tokens();
  check_counts(wire, config, limits, model.scheduler->options().max_batch_rows, out, violations);
  request.sampling = read_sampling(wire.sampling(), config, model.transformer->head(), violations);
  out.has_seed = wire.sampling().has_seed();
  request.seed = wire.sampling().seed();
  check_stop(wire.stop(), config, limits, request.stop, violations);
  request.echo_prompt = wire.echo_prompt();
  check_given(wire, config, capacity, limits, request.given, violations);
  if (wire.has_time_limit()) check_time_limit(wire.time_limit(), out, violations);
  return out;
}

grpc::Status check_position(const SequencePosition& at, const ServedModel& model,
                            const std::string& subject, CheckedGenerate& checked) {
  GenerationRequest& request = checked.request;
  Violations violations;
  const std::int64_t capacity = at.max_values;
  if (capacity != 0 && at.num_values >= capacity) {
    return failed_precondition(
        "SEQUENCE_COMPLETE", subject,
        "the sequence is complete: it holds all of its " + std::to_string(capacity) + " values");
  }
  const auto prompt_size = static_cast<std::int64_t>(request.prompt.size());
  if (capacity != 0 && prompt_size > capacity - at.num_values) {
    violations.add("prompt", std::to_string(prompt_size) + " values are more than the " +
                                 std::to_string(capacity - at.num_values) +
                                 " left of the sequence");
    return violations.status();
  }
  std::int64_t first_new = at.num_values + prompt_size;
  if (prompt_size == 0 && !at.has_pending) {
    const bool starts_given =
        at.num_values == 0 && !request.given.empty() && request.given.front().position == 0;
    const bool starts_image =
        at.num_values == 0 && model.transformer->config().modality == ModalityKind::kImage;
    if (starts_image && !starts_given) first_new = 1;  // after the start token
    if (!starts_given && !starts_image) {
      violations.add("prompt",
                     "is empty, and there is no start token or pending value to continue from");
      return violations.status();
    }
  }
  if (!request.given.empty()) {
    const std::int64_t first = request.given.front().position;
    const std::int64_t last = request.given.back().position;
    if (first < first_new) {
      violations.add("given", "position " + std::to_string(first) + " is before " +
                                  std::to_string(first_new) + ", the first new value");
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
  const std::int64_t length = model.transformer->config().max_values();
  if (checked.has_default_window && !checked.max_new && first_new < length) {
    max_new = std::min(max_new, length - first_new);
  }
  request.max_new_tokens = max_new;
  return grpc::Status::OK;
}

std::int64_t prompt_values_of(const SequencePosition& at, const ServedModel& model,
                              const GenerationRequest& request) {
  const bool starts_given = !request.given.empty() && request.given.front().position == 0;
  const bool starts_image = at.num_values == 0 && request.prompt.empty() && !starts_given &&
                            model.transformer->config().modality == ModalityKind::kImage;
  return starts_image ? 1 : static_cast<std::int64_t>(request.prompt.size());
}

std::int64_t values_needed(const SequencePosition& at, const CheckedGenerate& checked) {
  const GenerationRequest& request = checked.request;
  const auto prompt_size = static_cast<std::int64_t>(request.prompt.size());
  // One for a start token, which the prompt may lack.
  const std::int64_t values =
      at.num_values + std::max<std::int64_t>(prompt_size, 1) + request.max_new_tokens;
  // A state to begin with may be longer than the window.
  return request.window > 0 ? std::min(values, std::max(request.window, at.num_values)) : values;
}

}  // namespace lintel
