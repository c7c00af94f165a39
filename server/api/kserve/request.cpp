// SPDX-License-Identifier: Apache-2.0
#include "server/api/kserve/request.h"

#include <google/protobuf/map.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "inference/grpc_service.pb.h"
#include "proto/fields/request_fields.h"
#include "server/api/request_checks.h"

namespace lintel {

namespace {

// The tensors of a ModelInfer request, typed or raw, read into rows.

static_assert(std::endian::native == std::endian::little, "raw contents are little-endian");

using WireTensor = inference::ModelInferRequest::InferInputTensor;

constexpr const char* kNotTheInputs = "is not the values of the inputs, and nothing else";

struct InputTensor {
  const WireTensor& wire;
  const std::string* raw;  // null: its contents are typed
  std::string path;        // as violations call it
};

// The tensor's numbers as they lie in memory, perhaps unaligned.
template <typename Number>
struct Numbers {
  const char* from = nullptr;
  std::size_t size = 0;

  Number operator[](std::size_t i) const {
    Number number;
    std::memcpy(&number, from + i * sizeof(Number), sizeof(Number));
    return number;
  }
};

template <typename Number>
std::optional<Numbers<Number>> numbers_of(const InputTensor& tensor,
                                          const google::protobuf::RepeatedField<Number>& typed,
                                          Violations& violations) {
  if (tensor.raw == nullptr) {
    return Numbers<Number>{reinterpret_cast<const char*>(typed.data()),
                           static_cast<std::size_t>(typed.size())};
  }
  if (tensor.raw->size() % sizeof(Number) != 0) {
    violations.add("raw_input_contents", kNotTheInputs);
    return std::nullopt;
  }
  return Numbers<Number>{tensor.raw->data(), tensor.raw->size() / sizeof(Number)};
}

// The elements of a tensor of BYTES. Raw, each is its length in four bytes and then the bytes.
std::optional<std::vector<std::string_view>> bytes_of(const InputTensor& tensor,
                                                      Violations& violations) {
  if (tensor.wire.datatype() != "BYTES") {
    violations.add(tensor.path + ".datatype",
                   "'" + clip(tensor.wire.datatype()) + "' is not BYTES");
    return std::nullopt;
  }
  std::vector<std::string_view> elements;
  if (tensor.raw == nullptr) {
    const auto& typed = tensor.wire.contents().bytes_contents();
    elements.assign(typed.begin(), typed.end());
    return elements;
  }
  for (std::string_view rest = *tensor.raw; !rest.empty();) {
    std::uint32_t size = 0;
    const bool has_size = rest.size() >= sizeof(size);
    if (has_size) std::memcpy(&size, rest.data(), sizeof(size));
    if (!has_size || size > rest.size() - sizeof(size)) {
      violations.add("raw_input_contents", "an element of " + tensor.path + " is cut short");
      return std::nullopt;
    }
    elements.push_back(rest.substr(sizeof(size), size));
    rest.remove_prefix(sizeof(size) + size);
  }
  return elements;
}

void add_size_violation(const InputTensor& tensor, std::size_t size, Violations& violations) {
  violations.add(tensor.path + ".shape",
                 "does not fit the " + std::to_string(size) + " values that are given");
}

// A list applies to all rows. `size`: of its elements.
void check_list_shape(const InputTensor& tensor, std::size_t size, Violations& violations) {
  const WireTensor& wire = tensor.wire;
  const bool is_list = wire.shape_size() == 1 || (wire.shape_size() == 2 && wire.shape(0) == 1);
  if (!is_list) {
    violations.add(tensor.path + ".shape", "is not [k]: they are of all rows");
  } else if (static_cast<std::int64_t>(size) != wire.shape(wire.shape_size() - 1)) {
    add_size_violation(tensor, size, violations);
  }
}

bool check_integers(const InputTensor& tensor, Violations& violations) {
  const std::string& datatype = tensor.wire.datatype();
  if (datatype == "INT32" || datatype == "INT64") return true;
  violations.add(tensor.path + ".datatype", "'" + clip(datatype) + "' is not INT32 or INT64");
  return false;
}

// Calls `read` with the typed contents of the tensor's type.
template <typename Read>
void read_integers(const InputTensor& tensor, const Read& read) {
  const inference::InferTensorContents& contents = tensor.wire.contents();
  if (tensor.wire.datatype() == "INT64") {
    read(contents.int64_contents());
  } else {
    read(contents.int_contents());
  }
}

// Tensors have no parameters here. Other servers read shared memory and classification from them.
void refuse_parameters(const google::protobuf::Map<std::string, inference::InferParameter>& wire,
                       const std::string& path, Violations& violations) {
  for (const auto& [name, parameter] : wire) {
    violations.add(path + ".parameters[" + clip(name) + "]", "is not a parameter of this server");
  }
}

template <typename Number>
void read_token_rows(const InputTensor& tensor,
                     const google::protobuf::RepeatedField<Number>& typed,
                     std::vector<api::Values>& prompts, Violations& violations) {
  const auto numbers = numbers_of(tensor, typed, violations);
  if (!numbers) return;
  // Divides: the product of a hostile shape may overflow.
  const auto num_rows = static_cast<std::size_t>(tensor.wire.shape(0));
  const std::size_t length = numbers->size / num_rows;
  if (numbers->size % num_rows != 0 || static_cast<std::int64_t>(length) != tensor.wire.shape(1)) {
    return add_size_violation(tensor, numbers->size, violations);
  }
  prompts.resize(num_rows);
  for (api::Values& prompt : prompts) {
    prompt.form = api::Values::Form::kTokens;
    prompt.ids.reserve(length);
  }
  for (std::size_t i = 0; i < numbers->size; ++i) {
    const Number token = (*numbers)[i];
    if (!std::in_range<std::int32_t>(token)) {
      violations.add(indexed(tensor.path, i), std::to_string(token) + " is not a token id");
      if (violations.full()) return;
    }
    prompts[i / length].ids.push_back(static_cast<std::int32_t>(token));
  }
}

void read_tokens(const InputTensor& tensor, int max_rows, TensorRequest& request,
                 Violations& violations) {
  const WireTensor& wire = tensor.wire;
  check_integers(tensor, violations);
  if (wire.shape_size() != 2 || wire.shape(0) < 1 || wire.shape(0) > max_rows ||
      wire.shape(1) < 0) {
    violations.add(tensor.path + ".shape",
                   "is not [n, length] with n from 1 to " + std::to_string(max_rows));
    return;
  }
  read_integers(tensor, [&](const auto& typed) {
    read_token_rows(tensor, typed, request.prompts, violations);
  });
}

void read_text(const InputTensor& tensor, int max_rows, TensorRequest& request,
               Violations& violations) {
  const auto texts = bytes_of(tensor, violations);
  if (!texts) return;
  const WireTensor& wire = tensor.wire;
  const bool has_rows = wire.shape_size() == 1 || (wire.shape_size() == 2 && wire.shape(1) == 1);
  if (!has_rows || wire.shape(0) < 1 || wire.shape(0) > max_rows) {
    violations.add(tensor.path + ".shape",
                   "is not [n, 1] with n from 1 to " + std::to_string(max_rows));
    return;
  }
  if (static_cast<std::int64_t>(texts->size()) != wire.shape(0)) {
    return add_size_violation(tensor, texts->size(), violations);
  }
  for (const std::string_view text : *texts) {
    request.prompts.push_back(api::text_values(std::string(text)));
  }
}

void read_stop(const InputTensor& tensor, TensorRequest& request, Violations& violations) {
  const auto strings = bytes_of(tensor, violations);
  if (!strings) return;
  check_list_shape(tensor, strings->size(), violations);
  for (const std::string_view string : *strings) {
    request.settings.stop.strings.emplace_back(string);
  }
}

// Reads a list of whole numbers, of all rows.
std::vector<std::int64_t> read_list(const InputTensor& tensor, Violations& violations) {
  std::vector<std::int64_t> list;
  if (!check_integers(tensor, violations)) return list;
  read_integers(tensor, [&](const auto& typed) {
    if (const auto numbers = numbers_of(tensor, typed, violations)) {
      for (std::size_t i = 0; i < numbers->size; ++i) list.push_back((*numbers)[i]);
    }
  });
  check_list_shape(tensor, list.size(), violations);
  return list;
}

// Known tokens, each at its position; those that follow each other are a span.
struct GivenLists {
  std::optional<std::vector<std::int64_t>> positions, tokens;

  void add_to(api::GenerateParams& settings, Violations& violations) const {
    if (!positions && !tokens) return;
    if (!positions || !tokens || positions->size() != tokens->size()) {
      violations.add("inputs",
                     "given_positions and given_tokens have to be there both, one "
                     "position for each token");
      return;
    }
    api::GivenValues* span = nullptr;
    std::int64_t next = 0;
    for (std::size_t i = 0; i < positions->size() && !violations.full(); ++i) {
      const std::int64_t token = (*tokens)[i];
      if (!std::in_range<std::int32_t>(token)) {
        violations.add(indexed("given_tokens", i), std::to_string(token) + " is not a token id");
        continue;
      }
      if (span == nullptr || (*positions)[i] != next) {
        span = &settings.given.emplace_back();
        span->position = (*positions)[i];
        span->values.form = api::Values::Form::kTokens;
      }
      span->values.ids.push_back(static_cast<std::int32_t>(token));
      next = span->position + span->values.size();
    }
  }
};

// Reads the prompts, at most `max_rows` of them, and the stop strings into `request`: what is wrong
// with a tensor is named by it.
void read_inputs(const inference::ModelInferRequest& wire, int max_rows, TensorRequest& request,
                 Violations& violations) {
  request.raw = wire.raw_input_contents_size() > 0;
  if (request.raw && wire.raw_input_contents_size() != wire.inputs_size()) {
    violations.add("raw_input_contents", kNotTheInputs);
    return;
  }
  int num_prompts = 0, num_stops = 0;
  GivenLists given;
  for (int i = 0; i < wire.inputs_size() && !violations.full(); ++i) {
    const InputTensor tensor{wire.inputs(i), request.raw ? &wire.raw_input_contents(i) : nullptr,
                             indexed("inputs", static_cast<std::size_t>(i))};
    refuse_parameters(tensor.wire.parameters(), tensor.path, violations);
    if (request.raw && tensor.wire.has_contents()) {
      violations.add("raw_input_contents", kNotTheInputs);
      return;
    }
    const std::string& name = tensor.wire.name();
    if (name == "stop") {
      if (++num_stops == 1) read_stop(tensor, request, violations);
    } else if (name == "given_positions" || name == "given_tokens") {
      auto& list = name == "given_tokens" ? given.tokens : given.positions;
      if (list) violations.add("inputs", name + " is there more than once");
      list = read_list(tensor, violations);
    } else if (name != "tokens" && name != "text_input") {
      violations.add("inputs", "'" + clip(name) +
                                   "' is not tokens, text_input, stop, given_positions or "
                                   "given_tokens");
    } else if (++num_prompts == 1) {
      request.from_text = name == "text_input";
      request.from_text ? read_text(tensor, max_rows, request, violations)
                        : read_tokens(tensor, max_rows, request, violations);
    }
  }
  // A sequence that continues needs no input.
  request.has_no_input =
      num_prompts == 0 && !request.sequence_id.empty() && !request.sequence_start;
  if (request.has_no_input) {
    request.prompts.emplace_back();
  } else if (num_prompts != 1) {
    violations.add("inputs",
                   "there has to be one of the name tokens, or text_input in its place: only a "
                   "sequence that continues or ends needs none");
  }
  given.add_to(request.settings, violations);
  if (num_stops > 1) violations.add("inputs", "stop is there more than once");
}

// The parameters of a ModelInfer request.

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

// A parameter as a field has it. Nothing: it is not of its type or range.
template <typename Value>
std::optional<Value> value_of(const Parameter& parameter) {
  if constexpr (std::is_same_v<Value, bool>) {
    if (parameter.parameter_choice_case() == Parameter::kBoolParam) return parameter.bool_param();
    const auto number = number_of<std::int64_t>(parameter);  // as older clients send flags
    if (number == 0 || number == 1) return *number == 1;
    return std::nullopt;
  } else if constexpr (std::is_same_v<Value, std::uint32_t>) {
    const auto number = number_of<std::uint64_t>(parameter);
    if (!number || !std::in_range<std::uint32_t>(*number)) return std::nullopt;
    return static_cast<std::uint32_t>(*number);
  } else {
    return number_of<Value>(parameter);
  }
}

// A parameter, read into a field of the table; false: it is not of its type or range.
struct FieldReader {
  const Parameter& parameter;

  template <typename Value>
  bool read(Value& to) const {
    if constexpr (std::is_arithmetic_v<Value>) {
      const auto value = value_of<Value>(parameter);
      if (value) to = *value;
      return value.has_value();
    } else {
      return false;  // no column of the table has such a field
    }
  }
  bool read(std::string& to) const {
    if (parameter.parameter_choice_case() != Parameter::kStringParam) return false;
    to = parameter.string_param();
    return true;
  }
  template <typename Value>
  bool read(std::optional<Value>& to) const {
    Value value{};
    if (!read(value)) return false;
    to = std::move(value);
    return true;
  }
};

template <bool TensorRequest::*flag>
bool read_flag(const Parameter& parameter, TensorRequest& request) {
  return FieldReader{parameter}.read(request.*flag);
}

// A number or a text; 0 and "" stand for no sequence.
bool read_sequence_id(const Parameter& parameter, TensorRequest& request) {
  if (parameter.parameter_choice_case() == Parameter::kStringParam) {
    const std::string& text = parameter.string_param();
    if (text.size() > 256) return false;
    request.sequence_id = text.empty() ? "" : "text:" + text;
    return true;
  }
  const auto number = number_of<std::uint64_t>(parameter);
  if (!number) return false;
  request.sequence_id = *number == 0 ? "" : "number:" + std::to_string(*number);
  return true;
}

bool read_max_tokens(const Parameter& parameter, TensorRequest& request) {
  const auto number = number_of<std::uint64_t>(parameter);
  if (!number || !std::in_range<std::int64_t>(*number)) return false;
  request.max_tokens = static_cast<std::int64_t>(*number);
  return true;
}

bool read_stop_string(const Parameter& parameter, TensorRequest& request) {
  if (parameter.parameter_choice_case() != Parameter::kStringParam) return false;
  request.settings.stop.strings.push_back(parameter.string_param());
  return true;
}

// "none", "call", "input" or "token".
bool read_durability(const Parameter& parameter, TensorRequest& request) {
  if (parameter.parameter_choice_case() != Parameter::kStringParam) return false;
  std::string name = parameter.string_param();
  // Characters other than lower-case letters are replaced by one that no name has.
  for (char& c : name) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : '.';
  return v1::Durability_Parse("DURABILITY_" + name, &request.durability) &&
         request.durability != v1::DURABILITY_UNSPECIFIED;
}

struct ParameterReader {
  const char* name;
  // False: it is not of its type or range.
  bool (*read)(const Parameter& parameter, TensorRequest& request);
};

// Parameters in addition to those of the table of fields.
constexpr ParameterReader kOwnParameters[] = {
    {"stop", read_stop_string},
    {"stream", read_flag<&TensorRequest::streams>},
    {"details", read_flag<&TensorRequest::details>},
    {"triton_enable_empty_final_response", read_flag<&TensorRequest::marks_final>},
    {"sequence_id", read_sequence_id},
    {"sequence_start", read_flag<&TensorRequest::sequence_start>},
    {"sequence_end", read_flag<&TensorRequest::sequence_end>},
    {"max_tokens", read_max_tokens},
    {"lintel_durability", read_durability},
};

// Reads each by its name into `request`. Checks that it is a parameter and of its type and range;
// values are checked where those of every Generate request are.
void read_parameters(const inference::ModelInferRequest& wire, TensorRequest& request,
                     Violations& violations) {
  for (const auto& [name, parameter] : wire.parameters()) {
    const std::string field = "parameters[" + clip(name) + "]";
    const auto* const own =
        std::ranges::find_if(kOwnParameters, [&](const auto& row) { return name == row.name; });
    const std::optional<std::size_t> known = find_field(&RequestField::kserve, name);
    bool is_read = false;
    if (own != std::end(kOwnParameters)) {
      is_read = own->read(parameter, request);
    } else if (known) {
      const FieldReader reader{parameter};
      is_read = std::visit([&](auto* member) { return reader.read(*member); },
                           api::param_of(request.settings, *known));
    } else {
      violations.add(field, "is not a parameter of this server");
      continue;
    }
    if (!is_read) violations.add(field, "is not of its type or range");
  }
}

// Outputs that a request either has or has not.
constexpr std::pair<const char*, bool TensorRequest::*> kOutputFlags[] = {
    {"tokens", &TensorRequest::tokens},
    {"text_output", &TensorRequest::text},
    {"log2_probs", &TensorRequest::log2_probs},
    {"score", &TensorRequest::score},
    {"log2_evidence", &TensorRequest::log2_evidence},
};

// Outputs of the most likely tokens come only if the request says how many.
void read_outputs(const inference::ModelInferRequest& wire, TensorRequest& request,
                  Violations& violations) {
  for (int i = 0; i < wire.outputs_size(); ++i) {
    const auto& output = wire.outputs(i);
    refuse_parameters(output.parameters(), indexed("outputs", static_cast<std::size_t>(i)),
                      violations);
    const std::string& name = output.name();
    const auto* const flag =
        std::ranges::find_if(kOutputFlags, [&](const auto& row) { return name == row.first; });
    if (flag != std::end(kOutputFlags)) {
      request.*(flag->second) = true;
    } else if (name == "top_tokens" || name == "top_log2_probs") {
      if (request.top_log2_probs == 0) {
        violations.add("parameters[top_log2_probs]",
                       "says of how many values the output '" + name + "' is");
      }
    } else {
      violations.add("outputs", "'" + clip(name) +
                                    "' is not tokens, text_output, log2_probs, score, "
                                    "log2_evidence, top_tokens or top_log2_probs");
    }
  }
  if (wire.outputs_size() == 0) choose_outputs(request.from_text, request);
}

// A sequence continues from its own last token where a request brings none. A request that ends it
// first produces what it asks for, by default nothing.
void settle_end(TensorRequest& request) {
  const api::GenerateParams& settings = request.settings;
  request.only_ends = request.sequence_end && !request.sequence_start &&
                      !request.sequence_id.empty() && request.prompts.size() == 1 &&
                      request.prompts.front().size() == 0 && settings.given.empty() &&
                      settings.max_new_tokens.value_or(0) == 0;
}

// `max_tokens` is of a sequence that starts. Beside text without one it is what other servers of
// text call so: how many tokens to produce.
void settle_max_tokens(TensorRequest& request, Violations& violations) {
  if (request.max_tokens == 0 || request.sequence_start) return;
  if (!request.from_text || !request.sequence_id.empty()) {
    violations.add("parameters[max_tokens]",
                   "goes with sequence_start: it is of the whole sequence");
  } else if (request.settings.max_new_tokens) {
    violations.add("parameters[max_tokens]", "is max_new_tokens here, which is given, too");
  } else {
    constexpr std::int64_t kMost = 0xffffffff;
    request.settings.max_new_tokens =
        static_cast<std::uint32_t>(std::min(request.max_tokens, kMost));
    request.max_tokens = 0;
    request.names_max_tokens = true;
  }
}

// Samples and particles are of a request that has its states for itself.
void check_samples(TensorRequest& request, int max_rows, Violations& violations) {
  const api::GenerateParams& settings = request.settings;
  request.num_samples = settings.num_samples.value_or(1);
  const std::size_t most =
      static_cast<std::size_t>(max_rows) / std::max<std::size_t>(request.prompts.size(), 1);
  if (request.num_samples > 1 && request.num_samples > most) {
    violations.add("parameters[num_samples]",
                   std::to_string(request.num_samples) + " of each row are more than " +
                       std::to_string(max_rows) + " rows of the response");
  } else if (request.num_samples > 1 && request.streams) {
    violations.add("parameters[num_samples]", "a stream of values takes one sample at a time");
  }
  if (request.sequence_id.empty()) return;
  if (request.num_samples > 1) {
    violations.add("parameters[num_samples]", "a sequence continues with one sample");
  }
  if (settings.particles > 1) {
    violations.add("parameters[particles]", "cannot continue a sequence, which has one state");
  }
}

}  // namespace

bool names_sequence(const inference::ModelInferRequest& wire) {
  return wire.parameters().contains("sequence_id");
}

void choose_outputs(bool is_text, TensorRequest& request) {
  request.tokens = !is_text;
  request.text = is_text;
}

TensorRequest read_tensor_request(const inference::ModelInferRequest& wire, int max_rows,
                                  Violations& violations) {
  TensorRequest request;
  read_parameters(wire, request, violations);
  request.top_log2_probs = request.settings.top_log2_probs;
  read_inputs(wire, max_rows, request, violations);
  read_outputs(wire, request, violations);
  settle_max_tokens(request, violations);
  const bool many = request.prompts.size() > 1;
  if (request.streams && many) {
    violations.add("inputs[0].shape", "a stream of values takes one row at a time");
  }
  if (!request.sequence_id.empty() && many) {
    violations.add("inputs[0].shape", "a sequence takes one row at a time");
  }
  check_samples(request, max_rows, violations);
  if (request.sequence_id.empty() && (request.sequence_start || request.sequence_end)) {
    violations.add("parameters[sequence_id]", "is missing");
  }
  if (request.durability != v1::DURABILITY_UNSPECIFIED && !request.sequence_start) {
    violations.add("parameters[lintel_durability]",
                   "goes with sequence_start: it is of the whole sequence");
  }
  settle_end(request);
  request.settings.log2_probs = request.log2_probs || request.score || request.details;
  return request;
}

}  // namespace lintel
