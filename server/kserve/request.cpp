#include "server/kserve/request.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

namespace lintel {
namespace {

static_assert(std::endian::native == std::endian::little, "raw contents are little-endian");

constexpr std::int32_t kNoToken = -1;

// A parameter as a number, whichever of the forms it came in.
template <typename Number>
std::optional<Number> number_of(const inference::InferParameter& parameter) {
  switch (parameter.parameter_choice_case()) {
    case inference::InferParameter::kInt64Param: {
      const std::int64_t value = parameter.int64_param();
      if (std::is_unsigned_v<Number> && value < 0) return std::nullopt;
      return static_cast<Number>(value);
    }
    case inference::InferParameter::kUint64Param:
      if (std::is_same_v<Number, std::int64_t> &&
          parameter.uint64_param() > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
        return std::nullopt;
      }
      return static_cast<Number>(parameter.uint64_param());
    case inference::InferParameter::kDoubleParam:
      if constexpr (std::is_floating_point_v<Number>) {
        return static_cast<Number>(parameter.double_param());
      }
      return std::nullopt;
    case inference::InferParameter::kStringParam: {
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

std::optional<bool> flag_of(const inference::InferParameter& parameter) {
  if (parameter.parameter_choice_case() == inference::InferParameter::kBoolParam) {
    return parameter.bool_param();
  }
  const auto number = number_of<std::int64_t>(parameter);  // as older clients send flags
  if (number == 0 || number == 1) return *number == 1;
  return std::nullopt;
}

// A number or a text; 0 and "" stand for no sequence.
std::optional<std::string> sequence_id_of(const inference::InferParameter& parameter) {
  if (parameter.parameter_choice_case() == inference::InferParameter::kStringParam) {
    if (parameter.string_param().size() > 256) return std::nullopt;
    const std::string& text = parameter.string_param();
    return text.empty() ? "" : "text:" + text;
  }
  const auto number = number_of<std::uint64_t>(parameter);
  if (!number) return std::nullopt;
  return *number == 0 ? "" : "number:" + std::to_string(*number);
}

class ParameterReader {
 public:
  ParameterReader(InferRequest& request, v1::GenerateRequest& row, Violations& violations)
      : request_(request), row_(row), violations_(violations) {}

  void read(const std::string& name, const inference::InferParameter& parameter) {
    const std::string field = "parameters[" + clip(name) + "]";
    v1::Sampling& sampling = *row_.mutable_sampling();
    bool good = true;
    const auto take = [&good](const auto& value, const auto& store) {
      good = value.has_value();
      if (good) store(*value);
    };
    if (name == "max_new_tokens") {
      const auto value = number_of<std::uint64_t>(parameter);
      good = value && *value <= std::numeric_limits<std::uint32_t>::max();
      if (good) row_.set_max_new_tokens(static_cast<std::uint32_t>(*value));
    } else if (name == "top_k") {
      const auto value = number_of<std::uint64_t>(parameter);
      good = value && *value <= std::numeric_limits<std::uint32_t>::max();
      if (good) sampling.set_top_k(static_cast<std::uint32_t>(*value));
    } else if (name == "seed") {
      take(number_of<std::uint64_t>(parameter), [&](auto v) { sampling.set_seed(v); });
    } else if (name == "temperature") {
      take(number_of<float>(parameter), [&](auto v) { sampling.set_temperature(v); });
    } else if (name == "top_p") {
      take(number_of<float>(parameter), [&](auto v) { sampling.set_top_p(v); });
    } else if (name == "min_p") {
      take(number_of<float>(parameter), [&](auto v) { sampling.set_min_p(v); });
    } else if (name == "repetition_penalty") {
      take(number_of<float>(parameter), [&](auto v) { sampling.set_repetition_penalty(v); });
    } else if (name == "presence_penalty") {
      take(number_of<float>(parameter), [&](auto v) { sampling.set_presence_penalty(v); });
    } else if (name == "frequency_penalty") {
      take(number_of<float>(parameter), [&](auto v) { sampling.set_frequency_penalty(v); });
    } else if (name == "max_tokens_per_message") {
      const auto value = number_of<std::uint64_t>(parameter);
      good = value && *value <= std::numeric_limits<std::uint32_t>::max();
      if (good) row_.set_max_tokens_per_message(static_cast<std::uint32_t>(*value));
    } else if (name == "stream") {
      take(flag_of(parameter), [&](auto v) { request_.streams = v; });
    } else if (name == "triton_enable_empty_final_response") {
      take(flag_of(parameter), [&](auto v) { request_.marks_final = v; });
    } else if (name == "sequence_id") {
      take(sequence_id_of(parameter), [&](auto v) { request_.sequence_id = std::move(v); });
    } else if (name == "max_tokens") {
      const auto value = number_of<std::uint64_t>(parameter);
      good =
          value && *value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
      if (good) request_.max_tokens = static_cast<std::int64_t>(*value);
    } else if (name == "sequence_start") {
      take(flag_of(parameter), [&](auto v) { request_.sequence_start = v; });
    } else if (name == "sequence_end") {
      take(flag_of(parameter), [&](auto v) { request_.sequence_end = v; });
    } else {
      violations_.add(field, "is not a parameter of this server");
      return;
    }
    if (!good) violations_.add(field, "is not of its type or range");
  }

 private:
  InferRequest& request_;
  v1::GenerateRequest& row_;
  Violations& violations_;
};

// Of a tensor: shared memory and classification elsewhere, none here.
template <typename Parameters>
void refuse_parameters(const std::string& tensor, const Parameters& parameters,
                       Violations& violations) {
  for (const auto& [name, parameter] : parameters) {
    violations.add(tensor + ".parameters[" + clip(name) + "]", "is not a parameter of this server");
  }
}

void read_outputs(const inference::ModelInferRequest& wire, InferRequest& request,
                  Violations& violations) {
  bool tokens = wire.outputs_size() == 0;
  for (int i = 0; i < wire.outputs_size(); ++i) {
    const auto& output = wire.outputs(i);
    refuse_parameters("outputs[" + std::to_string(i) + "]", output.parameters(), violations);
    if (output.name() == "tokens") {
      tokens = true;
    } else if (output.name() == "log2_probs") {
      request.log2_probs = true;
    } else {
      violations.add("outputs", "'" + clip(output.name()) + "' is not tokens or log2_probs");
    }
  }
  if (!tokens) violations.add("outputs", "tokens has to be among them");
}

// The one input's values, row after row. Shape and size agree, or there is a violation.
std::vector<std::int32_t> read_input(const inference::ModelInferRequest& wire, int max_rows,
                                     std::size_t* num_rows, InferRequest& request,
                                     Violations& violations) {
  std::vector<std::int32_t> values;
  if (wire.inputs_size() != 1 || wire.inputs(0).name() != "tokens") {
    violations.add("inputs", "there has to be one, named tokens");
    return values;
  }
  const auto& input = wire.inputs(0);
  refuse_parameters("inputs[0]", input.parameters(), violations);
  if (input.datatype() != "INT32") {
    violations.add("inputs[0].datatype", "'" + clip(input.datatype()) + "' is not INT32");
  }
  if (input.shape_size() != 2 || input.shape(0) < 1 || input.shape(0) > max_rows ||
      input.shape(1) < 0) {
    violations.add("inputs[0].shape",
                   "is not [n, length] with n from 1 to " + std::to_string(max_rows));
    return values;
  }
  request.raw = wire.raw_input_contents_size() > 0;
  if (request.raw) {
    const std::string& bytes = wire.raw_input_contents(0);
    if (wire.raw_input_contents_size() != 1 || input.has_contents() ||
        bytes.size() % sizeof(std::int32_t) != 0) {
      violations.add("raw_input_contents", "is not the values of the one input, and nothing else");
      return values;
    }
    values.resize(bytes.size() / sizeof(std::int32_t));
    std::memcpy(values.data(), bytes.data(), bytes.size());
  } else {
    values.assign(input.contents().int_contents().begin(), input.contents().int_contents().end());
  }
  *num_rows = static_cast<std::size_t>(input.shape(0));
  // By division: the product of a hostile shape may overflow.
  if (values.size() % *num_rows != 0 ||
      static_cast<std::int64_t>(values.size() / *num_rows) != input.shape(1)) {
    violations.add("inputs[0].shape",
                   "does not fit the " + std::to_string(values.size()) + " values that are given");
    *num_rows = 0;
  }
  return values;
}

template <typename Value>
void write_tensor(
    const std::vector<InferredRow>& rows, std::vector<Value> InferredRow::*member, Value filler,
    std::size_t longest, bool raw, const char* name, const char* datatype,
    google::protobuf::RepeatedField<Value>* (inference::InferTensorContents::*contents)(),
    inference::ModelInferResponse& wire) {
  auto& tensor = *wire.add_outputs();
  tensor.set_name(name);
  tensor.set_datatype(datatype);
  tensor.add_shape(static_cast<std::int64_t>(rows.size()));
  tensor.add_shape(static_cast<std::int64_t>(longest));
  std::vector<Value> all;
  all.reserve(rows.size() * longest);
  for (const InferredRow& row : rows) {
    all.insert(all.end(), (row.*member).begin(), (row.*member).end());
    all.insert(all.end(), longest - (row.*member).size(), filler);
  }
  if (raw) {
    wire.add_raw_output_contents(all.data(), all.size() * sizeof(Value));
  } else {
    (tensor.mutable_contents()->*contents)()->Assign(all.begin(), all.end());
  }
}

}  // namespace

InferRequest read_infer_request(const inference::ModelInferRequest& wire, int max_rows,
                                Violations& violations) {
  InferRequest request;
  v1::GenerateRequest row;
  row.set_model(wire.model_name());
  ParameterReader reader(request, row, violations);
  for (const auto& [name, parameter] : wire.parameters()) reader.read(name, parameter);
  read_outputs(wire, request, violations);
  std::size_t num_rows = 0;
  const std::vector<std::int32_t> values =
      read_input(wire, max_rows, &num_rows, request, violations);
  if (request.streams && num_rows > 1) {
    violations.add("inputs[0].shape", "a stream of values takes one row at a time");
  }
  if (!request.sequence_id.empty() && num_rows > 1) {
    violations.add("inputs[0].shape", "a sequence takes one row at a time");
  }
  if (request.sequence_id.empty() && (request.sequence_start || request.sequence_end)) {
    violations.add("parameters[sequence_id]", "is missing");
  }
  if (request.max_tokens != 0 && !request.sequence_start) {
    violations.add("parameters[max_tokens]",
                   "goes with sequence_start: it is of the whole sequence");
  }
  row.set_log2_probs(request.log2_probs);
  const bool has_seed = row.sampling().has_seed();
  const std::uint64_t seed = row.sampling().seed();
  const std::size_t length = num_rows == 0 ? 0 : values.size() / num_rows;
  for (std::size_t i = 0; i < num_rows; ++i) {
    request.rows.push_back(row);
    v1::GenerateRequest& made = request.rows.back();
    if (has_seed) made.mutable_sampling()->set_seed(seed + i);
    if (length == 0) continue;
    const auto first = values.begin() + static_cast<std::ptrdiff_t>(i * length);
    made.mutable_prompt()->mutable_tokens()->mutable_ids()->Assign(
        first, first + static_cast<std::ptrdiff_t>(length));
  }
  return request;
}

std::size_t most_response_bytes(const InferRequest& request, std::int64_t longest) {
  // As varints, ids below 2^21 take three bytes.
  const std::size_t token_bytes = request.raw ? sizeof(std::int32_t) : 3;
  const std::size_t bytes_each = token_bytes + (request.log2_probs ? sizeof(float) : 0);
  return request.rows.size() * static_cast<std::size_t>(longest) * bytes_each;
}

void write_infer_response(const InferRequest& request, const std::vector<InferredRow>& rows,
                          inference::ModelInferResponse& wire) {
  std::size_t longest = 0;
  for (const InferredRow& row : rows) longest = std::max(longest, row.tokens.size());
  write_tensor<std::int32_t>(rows, &InferredRow::tokens, kNoToken, longest, request.raw, "tokens",
                             "INT32", &inference::InferTensorContents::mutable_int_contents, wire);
  if (!request.log2_probs) return;
  write_tensor<float>(rows, &InferredRow::log2_probs, std::nanf(""), longest, request.raw,
                      "log2_probs", "FP32", &inference::InferTensorContents::mutable_fp32_contents,
                      wire);
}

}  // namespace lintel
