#include "server/requests/request_checks.h"

#include <algorithm>

#include "model/config/names.h"

namespace lintel {
namespace {

std::string indexed(const std::string& path, std::size_t index) {
  return path + "[" + std::to_string(index) + "]";
}

std::string number(std::int64_t value) { return std::to_string(value); }

void check_token(std::int64_t token, const std::string& field, int vocab_size,
                 Violations& violations) {
  if (token < 0 || token >= vocab_size) {
    violations.add(field, "value " + number(token) + " is not from 0 to " + number(vocab_size - 1));
  }
}

std::int64_t num_values(const v1::Values& values) {
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

void check_stop(const v1::Stop& wire, const ModelConfig& config, const RequestLimits& limits,
                StopOptions& out, Violations& violations) {
  if (wire.token_ids_size() > limits.max_stop_tokens) {
    violations.add("stop.token_ids", number(wire.token_ids_size()) + " stop tokens are more than " +
                                         number(limits.max_stop_tokens));
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
    violations.add("stop.strings", number(wire.strings_size()) + " stop strings are more than " +
                                       number(limits.max_stop_strings));
    return;
  }
  for (int i = 0; i < wire.strings_size(); ++i) {
    const std::string& string = wire.strings(i);
    const std::string field = indexed("stop.strings", static_cast<std::size_t>(i));
    if (string.empty()) violations.add(field, "is empty");
    if (string.size() > static_cast<std::size_t>(limits.max_stop_string_bytes)) {
      violations.add(field, number(static_cast<std::int64_t>(string.size())) +
                                " bytes are more than " + number(limits.max_stop_string_bytes));
    }
  }
  out.strings.assign(wire.strings().begin(), wire.strings().end());
}

// Spans in any order -> values ascending by position; overlapping spans are refused.
void check_given(const v1::GenerateRequest& wire, const ModelConfig& config,
                 const RequestLimits& limits, std::vector<GivenValue>& out,
                 Violations& violations) {
  struct Span {
    std::int64_t begin, end;
    std::size_t index;
  };
  std::vector<Span> spans;
  std::int64_t total = 0;
  const std::int64_t capacity = sequence_capacity(config);
  for (std::size_t i = 0; i < static_cast<std::size_t>(wire.given_size()); ++i) {
    if (violations.full()) return;
    const v1::GivenSpan& span = wire.given(static_cast<int>(i));
    const std::string path = indexed("given", i);
    const std::int64_t size = num_values(span.values());
    total += size;
    if (total > limits.max_given_tokens) {
      violations.add("given", "more than " + number(limits.max_given_tokens) + " given values");
      return;
    }
    // Far positions are refused before anything is added to them.
    constexpr std::int64_t kFarthest = std::int64_t{1} << 53;
    if (span.position() < 0 || span.position() > kFarthest) {
      violations.add(path + ".position", number(span.position()) + " is not from 0 to 2^53");
      continue;
    }
    if (size == 0) {
      violations.add(path + ".values", "has no values");
      continue;
    }
    const std::int64_t end = span.position() + size;
    if (capacity != 0 && end > capacity) {
      violations.add(path + ".position", "values at " + number(span.position()) + " to " +
                                             number(end - 1) + " end behind position " +
                                             number(capacity - 1) + ", the sequence's last");
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
                     "the span at " + number(spans[i].begin) + " overlaps " +
                         indexed("given", spans[i - 1].index) + ", which ends at " +
                         number(spans[i - 1].end - 1));
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
    violations.add("time_limit", number(wire.seconds()) + " s and " + number(wire.nanos()) +
                                     " ns are not a duration above 0");
    return;
  }
  out.time_limit = std::chrono::seconds(std::min(wire.seconds(), kLongest)) +
                   std::chrono::nanoseconds(wire.nanos());
}

void check_counts(const v1::GenerateRequest& wire, const ModelConfig& config,
                  const RequestLimits& limits, CheckedGenerate& out, Violations& violations) {
  GenerationRequest& request = out.request;
  if (wire.has_max_new_tokens()) {
    out.max_new = wire.max_new_tokens();
    if (*out.max_new > limits.max_new_tokens) {
      violations.add("max_new_tokens",
                     number(*out.max_new) + " is more than " + number(limits.max_new_tokens));
    }
  }
  if (wire.has_num_samples()) {
    if (wire.num_samples() < 1 ||
        wire.num_samples() > static_cast<std::uint32_t>(limits.max_samples)) {
      violations.add("num_samples", number(wire.num_samples()) + " is not from 1 to " +
                                        number(limits.max_samples));
    } else if (wire.num_samples() > 1 && !wire.session_id().empty()) {
      violations.add("num_samples", number(wire.num_samples()) +
                                        " samples cannot go on with one session: only 1 can");
    } else {
      request.num_samples = static_cast<int>(wire.num_samples());
    }
  }
  const int most_top = std::min(limits.max_top_log2_probs, config.vocab_size);
  if (wire.top_log2_probs() > static_cast<std::uint32_t>(most_top)) {
    violations.add("top_log2_probs",
                   number(wire.top_log2_probs()) + " is more than " + number(most_top));
  } else {
    request.top_log2_probs = static_cast<int>(wire.top_log2_probs());
  }
  // The N best come beside the value's own.
  request.log2_probs = wire.log2_probs() || request.top_log2_probs > 0;
  out.max_tokens_per_message =
      static_cast<int>(std::min<std::uint32_t>(wire.max_tokens_per_message(), 1u << 30));
}

}  // namespace

void Violations::add(std::string field, std::string description) {
  if (!full()) violations_.push_back({std::move(field), std::move(description)});
}

std::int64_t sequence_capacity(const ModelConfig& config) {
  const std::int64_t table = config.max_values();
  if (config.modality != ModalityKind::kImage) return table;
  const std::int64_t image = config.image.num_values();
  return table == 0 ? image : std::min(table, image);
}

void read_values(const v1::Values& values, const std::string& path, const ModelConfig& config,
                 std::int64_t max_values, std::vector<std::int32_t>& out, Violations& violations) {
  const std::int64_t size = num_values(values);
  if (size > max_values) {
    violations.add(path, number(size) + " values are more than " + number(max_values));
    return;
  }
  if (values.has_tokens()) {
    const auto& ids = values.tokens().ids();
    for (int i = 0; i < ids.size() && !violations.full(); ++i) {
      if (ids[i] >= 0 && ids[i] < config.vocab_size) continue;
      check_token(ids[i], indexed(path + ".tokens.ids", static_cast<std::size_t>(i)),
                  config.vocab_size, violations);
    }
    out.insert(out.end(), ids.begin(), ids.end());
    return;
  }
  if (values.form_case() == v1::Values::FORM_NOT_SET) return;
  const bool is_text = values.has_text();
  const std::string field = path + (is_text ? ".text" : ".pixels");
  const ModalityKind needed = is_text ? ModalityKind::kBytes : ModalityKind::kImage;
  if (config.modality != needed) {
    violations.add(field, std::string("applies to models of modality ") + to_string(needed) +
                              " only; this one is of " + to_string(config.modality));
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

CheckedGenerate check_generate(const v1::GenerateRequest& wire, const ModelConfig& config,
                               const Head& head, const RequestLimits& limits,
                               Violations& violations) {
  CheckedGenerate out;
  GenerationRequest& request = out.request;
  const std::int64_t capacity = sequence_capacity(config);
  const std::int64_t max_prompt =
      capacity == 0 ? limits.max_prompt_tokens : std::min(limits.max_prompt_tokens, capacity);
  read_values(wire.prompt(), "prompt", config, max_prompt, request.prompt, violations);
  check_counts(wire, config, limits, out, violations);
  request.sampling = read_sampling(wire.sampling(), config, head, violations);
  out.has_seed = wire.sampling().has_seed();
  request.seed = wire.sampling().seed();
  check_stop(wire.stop(), config, limits, request.stop, violations);
  request.echo_prompt = wire.echo_prompt();
  check_given(wire, config, limits, request.given, violations);
  if (wire.has_time_limit()) check_time_limit(wire.time_limit(), out, violations);
  return out;
}

grpc::Status check_position(const SequencePosition& at, const ModelConfig& config,
                            const RequestLimits& limits, const std::string& subject,
                            CheckedGenerate& checked) {
  GenerationRequest& request = checked.request;
  Violations violations;
  std::int64_t capacity = sequence_capacity(config);
  if (at.max_values != 0) {
    capacity = capacity == 0 ? at.max_values : std::min(capacity, at.max_values);
  }
  if (capacity != 0 && at.num_values >= capacity) {
    return failed_precondition(
        "SEQUENCE_COMPLETE", subject,
        "the sequence is complete: it holds all of its " + number(capacity) + " values");
  }
  const auto prompt_size = static_cast<std::int64_t>(request.prompt.size());
  if (capacity != 0 && prompt_size > capacity - at.num_values) {
    violations.add("prompt", number(prompt_size) + " values are more than the " +
                                 number(capacity - at.num_values) + " left of the sequence");
    return violations.status();
  }
  std::int64_t first_new = at.num_values + prompt_size;
  if (prompt_size == 0 && !at.has_pending) {
    const bool starts_given =
        at.num_values == 0 && !request.given.empty() && request.given.front().position == 0;
    const bool starts_image = at.num_values == 0 && config.modality == ModalityKind::kImage;
    if (starts_image && !starts_given) first_new = 1;  // behind the start token
    if (!starts_given && !starts_image) {
      violations.add("prompt",
                     "is empty, and there is no start token or pending value to go on from");
      return violations.status();
    }
  }
  if (!request.given.empty()) {
    const std::int64_t first = request.given.front().position;
    const std::int64_t last = request.given.back().position;
    if (first < first_new) {
      violations.add("given", "position " + number(first) + " is before " + number(first_new) +
                                  ", the first new value");
    }
    if (capacity != 0 && last >= capacity) {
      violations.add("given", "position " + number(last) + " is behind " + number(capacity - 1) +
                                  ", the sequence's last");
    }
    if (!violations.empty()) return violations.status();
  }
  std::int64_t max_new = checked.max_new.value_or(limits.max_new_tokens);
  if (capacity != 0 && !checked.max_new) max_new = std::min(max_new, capacity - first_new);
  request.max_new_tokens = max_new;
  return grpc::Status::OK;
}

std::int64_t values_needed(const SequencePosition& at, const CheckedGenerate& checked) {
  const GenerationRequest& request = checked.request;
  const auto prompt_size = static_cast<std::int64_t>(request.prompt.size());
  // One for a start token, which the prompt may lack.
  return at.num_values + std::max<std::int64_t>(prompt_size, 1) + request.max_new_tokens;
}

ScoreSequences check_score(const v1::ScoreRequest& wire, const ModelConfig& config,
                           const RequestLimits& limits, Violations& violations) {
  ScoreSequences out;
  const int count = wire.sequences_size();
  if (count == 0) violations.add("sequences", "is empty");
  if (count > kMaxScoreSequences) {
    violations.add("sequences",
                   number(count) + " sequences are more than " + number(kMaxScoreSequences));
    return out;
  }
  out.ends.reserve(static_cast<std::size_t>(count));
  std::int64_t total = 0;
  const std::int64_t longest = sequence_capacity(config);
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    if (violations.full()) break;
    const v1::Values& values = wire.sequences(static_cast<int>(i));
    const std::string path = indexed("sequences", i);
    const std::int64_t size = num_values(values);
    total += size;
    if (total > limits.max_score_tokens) {
      violations.add("sequences",
                     "more than " + number(limits.max_score_tokens) + " values in all");
      break;
    }
    if (size < 2) {
      violations.add(path,
                     number(size) + " values are fewer than 2: the first is given, not scored");
      continue;
    }
    read_values(values, path, config, longest == 0 ? size : longest, out.values, violations);
    out.ends.push_back(out.values.size());
  }
  return violations.empty() ? out : ScoreSequences();
}

CheckedList check_list(const v1::ListSessionsRequest& wire, Violations& violations) {
  CheckedList out;
  constexpr int kMaxPage = 1000;
  if (wire.page_size() < 0 || wire.page_size() > kMaxPage) {
    violations.add("page_size", number(wire.page_size()) + " is not from 0 to " + number(kMaxPage));
  } else if (wire.page_size() > 0) {
    out.page_size = static_cast<std::size_t>(wire.page_size());
  }
  const std::string& token = wire.page_token();
  const bool is_id =
      token.size() == 32 && token.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!token.empty() && !is_id) {
    violations.add("page_token", "'" + clip(token) + "' is not a next_page_token of this server");
  }
  out.after_id = token;
  return out;
}

void check_session_length(std::int64_t max_tokens, const std::string& field,
                          const ModelConfig& config, Violations& violations) {
  const std::int64_t most = sequence_capacity(config);
  constexpr std::int64_t kFarthest = std::int64_t{1} << 53;
  if (max_tokens >= 0 && max_tokens <= (most == 0 ? kFarthest : most)) return;
  violations.add(field, number(max_tokens) + " is not from 0 to " +
                            (most == 0 ? std::string("2^53") : number(most)));
}

std::int64_t check_create(const v1::CreateSessionRequest& wire, const ModelConfig& config,
                          Violations& violations) {
  check_session_length(wire.max_tokens(), "max_tokens", config, violations);
  return wire.max_tokens();
}

}  // namespace lintel
