#include "server/kserve/request.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "server/kserve/parameters.h"

namespace lintel {
namespace {

static_assert(std::endian::native == std::endian::little, "raw contents are little-endian");

constexpr std::int32_t kNoToken = -1;

// Of a tensor: shared memory and classification elsewhere, none here.
template <typename Parameters>
void refuse_parameters(const std::string& tensor, const Parameters& parameters,
                       Violations& violations) {
  for (const auto& [name, parameter] : parameters) {
    violations.add(tensor + ".parameters[" + clip(name) + "]", "is not a parameter of this server");
  }
}

void read_outputs(const inference::ModelInferRequest& wire, TensorRequest& request,
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

// The values of the one input, row by row. None where something is wrong with it.
std::vector<std::vector<std::int32_t>> read_prompts(const inference::ModelInferRequest& wire,
                                                    int max_rows, TensorRequest& request,
                                                    Violations& violations) {
  if (wire.inputs_size() != 1 || wire.inputs(0).name() != "tokens") {
    violations.add("inputs", "there has to be one, named tokens");
    return {};
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
    return {};
  }
  const google::protobuf::RepeatedField<std::int32_t>& ints = input.contents().int_contents();
  const void* from = ints.data();
  auto size = static_cast<std::size_t>(ints.size());
  request.raw = wire.raw_input_contents_size() > 0;
  if (request.raw) {
    const std::string& bytes = wire.raw_input_contents(0);
    if (wire.raw_input_contents_size() != 1 || input.has_contents() ||
        bytes.size() % sizeof(std::int32_t) != 0) {
      violations.add("raw_input_contents", "is not the values of the one input, and nothing else");
      return {};
    }
    from = bytes.data();
    size = bytes.size() / sizeof(std::int32_t);
  }
  // By division: the product of a hostile shape may overflow.
  const auto num_rows = static_cast<std::size_t>(input.shape(0));
  const std::size_t length = size / num_rows;
  if (size % num_rows != 0 || static_cast<std::int64_t>(length) != input.shape(1)) {
    violations.add("inputs[0].shape",
                   "does not fit the " + std::to_string(size) + " values that are given");
    return {};
  }
  std::vector<std::vector<std::int32_t>> prompts(num_rows, std::vector<std::int32_t>(length));
  if (length == 0) return prompts;
  const std::size_t row_bytes = length * sizeof(std::int32_t);
  for (std::size_t i = 0; i < num_rows; ++i) {
    std::memcpy(prompts[i].data(), static_cast<const char*>(from) + i * row_bytes, row_bytes);
  }
  return prompts;
}

template <typename Value>
void write_tensor(
    const std::vector<RowValues>& rows, std::vector<Value> RowValues::*member, Value filler,
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
  for (const RowValues& row : rows) {
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

TensorRequest read_tensor_request(const inference::ModelInferRequest& wire, int max_rows,
                                  Violations& violations) {
  TensorRequest request;
  read_parameters(wire, request, violations);
  read_outputs(wire, request, violations);
  request.prompts = read_prompts(wire, max_rows, request, violations);
  const bool many = request.prompts.size() > 1;
  if (request.streams && many) {
    violations.add("inputs[0].shape", "a stream of values takes one row at a time");
  }
  if (!request.sequence_id.empty() && many) {
    violations.add("inputs[0].shape", "a sequence takes one row at a time");
  }
  if (request.sequence_id.empty() && (request.sequence_start || request.sequence_end)) {
    violations.add("parameters[sequence_id]", "is missing");
  }
  if (request.max_tokens != 0 && !request.sequence_start) {
    violations.add("parameters[max_tokens]",
                   "goes with sequence_start: it is of the whole sequence");
  }
  request.settings.set_log2_probs(request.log2_probs);
  return request;
}

std::size_t most_response_bytes(const TensorRequest& request, std::int64_t longest) {
  // As varints, ids below 2^21 take three bytes.
  const std::size_t token_bytes = request.raw ? sizeof(std::int32_t) : 3;
  const std::size_t bytes_each = token_bytes + (request.log2_probs ? sizeof(float) : 0);
  return request.prompts.size() * static_cast<std::size_t>(longest) * bytes_each;
}

void write_tensor_response(const TensorRequest& request, const std::vector<RowValues>& rows,
                           inference::ModelInferResponse& wire) {
  std::size_t longest = 0;
  for (const RowValues& row : rows) longest = std::max(longest, row.tokens.size());
  write_tensor<std::int32_t>(rows, &RowValues::tokens, kNoToken, longest, request.raw, "tokens",
                             "INT32", &inference::InferTensorContents::mutable_int_contents, wire);
  if (!request.log2_probs) return;
  write_tensor<float>(rows, &RowValues::log2_probs, std::nanf(""), longest, request.raw,
                      "log2_probs", "FP32", &inference::InferTensorContents::mutable_fp32_contents,
                      wire);
}

}  // namespace lintel
