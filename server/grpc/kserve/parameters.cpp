#include "server/grpc/kserve/parameters.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace lintel {
namespace {

using Parameter = inference::InferParameter;

// A parameter as a number, from any of its forms.
template <typename Number>
std::optional<Number> number_of(const Parameter& parameter) {
  switch (parameter.parameter_choice_case()) {
    case Parameter::kInt64Param: {
      const std::int64_t value = parameter.int64_param();
      if (std::is_unsigned_v<Number> && value < 0) return std::nullopt;
      return static_cast<Number>(value);
    }
    case Parameter::kUint64Param:
      if (std::is_same_v<Number, std::int64_t> &&
          parameter.uint64_param() > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
        return std::nullopt;
      }
      return static_cast<Number>(parameter.uint64_param());
    case Parameter::kDoubleParam:
      if constexpr (std::is_floating_point_v<Number>) {
        return static_cast<Number>(parameter.double_param());
      }
      return std::nullopt;
    case Parameter::kStringParam: {
      const std::string& text = parameter.string_param();
      Number value{};
      const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      if (error != std::errc() || rest != text.data() + text.size()) return std::nullopt;
      return value;
    }
    default:
      return std::nullopt;
  }
}

std::optional<bool> flag_of(const Parameter& parameter) {
  if (parameter.parameter_choice_case() == Parameter::kBoolParam) {
    return parameter.bool_param();
  }
  const auto number = number_of<std::int64_t>(parameter);  // as older clients send flags
  if (number == 0 || number == 1) return *number == 1;
  return std::nullopt;
}

// A number or a text; 0 and "" stand for no sequence.
std::optional<std::string> sequence_id_of(const Parameter& parameter) {
  if (parameter.parameter_choice_case() == Parameter::kStringParam) {
    if (parameter.string_param().size() > 256) return std::nullopt;
    const std::string& text = parameter.string_param();
    return text.empty() ? "" : "text:" + text;
  }
  const auto number = number_of<std::uint64_t>(parameter);
  if (!number) return std::nullopt;
  return *number == 0 ? "" : "number:" + std::to_string(*number);
}

// Of 32 bits on the wire of lintel.v1.
std::optional<std::uint32_t> count_of(const Parameter& parameter) {
  const auto number = number_of<std::uint64_t>(parameter);
  if (!number || *number > std::numeric_limits<std::uint32_t>::max()) return std::nullopt;
  return static_cast<std::uint32_t>(*number);
}

// Of a sequence, as CreateSession's.
std::optional<std::int64_t> length_of(const Parameter& parameter) {
  const auto number = number_of<std::uint64_t>(parameter);
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  if (!number || *number > kMost) return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

template <typename Value>
bool take(std::optional<Value> value, Value& to) {
  if (value) to = std::move(*value);
  return value.has_value();
}

template <void (v1::GenerateRequest::*set)(std::uint32_t)>
bool read_count(const Parameter& parameter, TensorRequest& request) {
  const auto count = count_of(parameter);
  if (count) (request.settings.*set)(*count);
  return count.has_value();
}

template <void (v1::Sampling::*set)(float)>
bool read_sampling(const Parameter& parameter, TensorRequest& request) {
  const auto number = number_of<float>(parameter);
  if (number) (request.settings.mutable_sampling()->*set)(*number);
  return number.has_value();
}

bool read_top_k(const Parameter& parameter, TensorRequest& request) {
  const auto count = count_of(parameter);
  if (count) request.settings.mutable_sampling()->set_top_k(*count);
  return count.has_value();
}

bool read_penalty_window(const Parameter& parameter, TensorRequest& request) {
  const auto count = count_of(parameter);
  if (count) request.settings.mutable_sampling()->set_penalty_window(*count);
  return count.has_value();
}

// 0 is a window, too: none.
bool read_window(const Parameter& parameter, TensorRequest& request) {
  const auto window = number_of<std::int64_t>(parameter);
  if (window) request.settings.set_window(*window);
  return window.has_value();
}

bool read_seed(const Parameter& parameter, TensorRequest& request) {
  const auto seed = number_of<std::uint64_t>(parameter);
  if (seed) request.settings.mutable_sampling()->set_seed(*seed);
  return seed.has_value();
}

template <bool TensorRequest::*flag>
bool read_flag(const Parameter& parameter, TensorRequest& request) {
  return take(flag_of(parameter), request.*flag);
}

bool read_sequence_id(const Parameter& parameter, TensorRequest& request) {
  return take(sequence_id_of(parameter), request.sequence_id);
}

bool read_max_tokens(const Parameter& parameter, TensorRequest& request) {
  return take(length_of(parameter), request.max_tokens);
}

bool read_stop_string(const Parameter& parameter, TensorRequest& request) {
  if (parameter.parameter_choice_case() != Parameter::kStringParam) return false;
  request.settings.mutable_stop()->add_strings(parameter.string_param());
  return true;
}

bool read_stop_is_shown(const Parameter& parameter, TensorRequest& request) {
  const auto shown = flag_of(parameter);
  if (shown) request.settings.mutable_stop()->set_include_in_output(*shown);
  return shown.has_value();
}

bool read_echo(const Parameter& parameter, TensorRequest& request) {
  const auto echo = flag_of(parameter);
  if (echo) request.settings.set_echo_prompt(*echo);
  return echo.has_value();
}

bool read_adapter(const Parameter& parameter, TensorRequest& request) {
  if (parameter.parameter_choice_case() != Parameter::kStringParam) return false;
  request.settings.set_adapter(parameter.string_param());
  return true;
}

bool read_call_id(const Parameter& parameter, TensorRequest& request) {
  if (parameter.parameter_choice_case() != Parameter::kStringParam) return false;
  request.settings.set_call_id(parameter.string_param());
  return true;
}

bool read_from_position(const Parameter& parameter, TensorRequest& request) {
  const auto position = number_of<std::int64_t>(parameter);
  if (position) request.settings.set_from_position(*position);
  return position.has_value();
}

bool read_expected_position(const Parameter& parameter, TensorRequest& request) {
  const auto position = number_of<std::int64_t>(parameter);
  if (position) request.settings.set_expected_position(*position);
  return position.has_value();
}

// "none", "call", "input" or "token".
bool read_durability(const Parameter& parameter, TensorRequest& request) {
  if (parameter.parameter_choice_case() != Parameter::kStringParam) return false;
  std::string name = parameter.string_param();
  // What is no letter makes no name of ours.
  for (char& c : name) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : '.';
  return v1::Durability_Parse("DURABILITY_" + name, &request.durability) &&
         request.durability != v1::DURABILITY_UNSPECIFIED;
}

struct ParameterReader {
  const char* name;
  // False: it is not of its type or range.
  bool (*read)(const Parameter& parameter, TensorRequest& request);
};

constexpr ParameterReader kParameters[] = {
    {"max_new_tokens", read_count<&v1::GenerateRequest::set_max_new_tokens>},
    {"max_tokens_per_message", read_count<&v1::GenerateRequest::set_max_tokens_per_message>},
    {"seed", read_seed},
    {"temperature", read_sampling<&v1::Sampling::set_temperature>},
    {"top_k", read_top_k},
    {"top_p", read_sampling<&v1::Sampling::set_top_p>},
    {"min_p", read_sampling<&v1::Sampling::set_min_p>},
    {"repetition_penalty", read_sampling<&v1::Sampling::set_repetition_penalty>},
    {"presence_penalty", read_sampling<&v1::Sampling::set_presence_penalty>},
    {"frequency_penalty", read_sampling<&v1::Sampling::set_frequency_penalty>},
    {"top_log2_probs", read_count<&v1::GenerateRequest::set_top_log2_probs>},
    {"echo", read_echo},
    {"stop", read_stop_string},
    {"include_stop_str_in_output", read_stop_is_shown},
    {"penalty_window", read_penalty_window},
    {"window", read_window},
    {"num_samples", read_count<&v1::GenerateRequest::set_num_samples>},
    {"particles", read_count<&v1::GenerateRequest::set_particles>},
    {"adapter", read_adapter},
    {"stream", read_flag<&TensorRequest::streams>},
    {"triton_enable_empty_final_response", read_flag<&TensorRequest::marks_final>},
    {"sequence_id", read_sequence_id},
    {"sequence_start", read_flag<&TensorRequest::sequence_start>},
    {"sequence_end", read_flag<&TensorRequest::sequence_end>},
    {"max_tokens", read_max_tokens},
    {"lintel_durability", read_durability},
    {"lintel_call_id", read_call_id},
    {"lintel_from_position", read_from_position},
    {"lintel_expected_position", read_expected_position},
};

}  // namespace

void read_parameters(const inference::ModelInferRequest& wire, TensorRequest& request,
                     Violations& violations) {
  for (const auto& [name, parameter] : wire.parameters()) {
    const std::string field = "parameters[" + clip(name) + "]";
    const auto* const known =
        std::ranges::find_if(kParameters, [&](const auto& row) { return name == row.name; });
    if (known == std::end(kParameters)) {
      violations.add(field, "is not a parameter of this server");
    } else if (!known->read(parameter, request)) {
      violations.add(field, "is not of its type or range");
    }
  }
}

}  // namespace lintel
