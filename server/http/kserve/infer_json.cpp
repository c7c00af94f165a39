// SPDX-License-Identifier: Apache-2.0
#include "server/http/kserve/infer_json.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>
#include <utility>

#include "model/core/utf8.h"
#include "server/http/encoding/json_bodies.h"

namespace lintel {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;
using WireInput = inference::ModelInferRequest::InferInputTensor;
using WireParameters = google::protobuf::Map<std::string, inference::InferParameter>;

std::string named(const std::string& path, const std::string& name) {
  return path + (path.empty() ? "" : ".") + name.substr(0, 64);
}

// Binary contents after the JSON are an extension of the protocol that is not served; clients that
// have it say in parameters whether they use it.
constexpr const char* kNoBinary =
    "the binary tensor data extension is not served: tensors are JSON here, or of gRPC";

// A tensor's data is a list of its values, or lists of lists: either way, in order.
template <typename Take>
std::string read_data(const Json& data, const std::string& path, const Take& take) {
  if (!data.is_array()) return path + " is not a list";
  for (std::size_t i = 0; i < data.size(); ++i) {
    if (data[i].is_array()) {
      std::string wrong = read_data(data[i], path, take);
      if (!wrong.empty()) return wrong;
    } else if (!take(data[i])) {
      return path + "[" + std::to_string(i) + "] is not a value of the tensor's datatype";
    }
  }
  return "";
}

template <typename Number>
bool is_of(const Json& value) {
  if (value.is_number_unsigned()) return std::in_range<Number>(value.get<std::uint64_t>());
  return value.is_number_integer() && std::in_range<Number>(value.get<std::int64_t>());
}

std::string read_contents(const Json& data, const std::string& path, WireInput& input) {
  inference::InferTensorContents& contents = *input.mutable_contents();
  if (input.datatype() == "BYTES") {
    return read_data(data, path, [&](const Json& value) {
      if (value.is_string()) contents.add_bytes_contents(value.get<std::string>());
      return value.is_string();
    });
  }
  const int size = static_cast<int>(data.size());
  if (input.datatype() == "INT64") {
    contents.mutable_int64_contents()->Reserve(size);
    return read_data(data, path, [&](const Json& value) {
      if (!is_of<std::int64_t>(value)) return false;
      contents.add_int64_contents(value.get<std::int64_t>());
      return true;
    });
  }
  if (input.datatype() == "INT32") {
    contents.mutable_int_contents()->Reserve(size);
    return read_data(data, path, [&](const Json& value) {
      if (!is_of<std::int32_t>(value)) return false;
      contents.add_int_contents(value.get<std::int32_t>());
      return true;
    });
  }
  return "";  // of another type: no input has it, and the service says so
}

std::string read_shape(const Json& shape, const std::string& path, WireInput& input) {
  if (!shape.is_array() || shape.size() > 8) return path + " is not a list of a few sizes";
  for (const Json& size : shape) {
    if (!is_of<std::int64_t>(size)) return path + " is not a list of whole numbers";
    input.add_shape(size.get<std::int64_t>());
  }
  return "";
}

std::string read_text_member(const Json& value, const std::string& path, std::string& text) {
  if (!value.is_string()) return path + " is not a text";
  text = value.get<std::string>();
  return "";
}

// Reads each of an object's members as a parameter of that name.
std::string read_parameters(const Json& json, const std::string& path, WireParameters& parameters) {
  if (!json.is_object()) return path + " is not an object";
  for (const auto& [name, value] : json.items()) {
    inference::InferParameter& parameter = parameters[name];
    if (value.is_boolean()) {
      parameter.set_bool_param(value.get<bool>());
    } else if (value.is_string()) {
      parameter.set_string_param(value.get<std::string>());
    } else if (value.is_number_unsigned()) {
      parameter.set_uint64_param(value.get<std::uint64_t>());
    } else if (value.is_number_integer()) {
      parameter.set_int64_param(value.get<std::int64_t>());
    } else if (value.is_number_float()) {
      parameter.set_double_param(value.get<double>());
    } else {
      return named(path, name) + " is not a number, a text, true or false";
    }
  }
  return "";
}

std::string read_input(const Json& json, const std::string& path, WireInput& input) {
  if (!json.is_object()) return path + " is not an object";
  std::string wrong;
  for (const auto& [name, value] : json.items()) {
    const std::string member = named(path, name);
    if (name == "name") {
      wrong = read_text_member(value, member, *input.mutable_name());
    } else if (name == "datatype") {
      wrong = read_text_member(value, member, *input.mutable_datatype());
    } else if (name == "shape") {
      wrong = read_shape(value, member, input);
    } else if (name == "parameters") {
      if (value.is_object() && value.contains("binary_data_size")) {
        return named(member, "binary_data_size") + ": " + kNoBinary;
      }
      wrong = read_parameters(value, member, *input.mutable_parameters());
    } else if (name != "data") {
      wrong = member + " is not a member of an input";
    }
    if (!wrong.empty()) return wrong;
  }
  if (!json.contains("data")) return named(path, "data") + " is missing";
  return read_contents(json["data"], named(path, "data"), input);
}

// Drops a parameter that asks for JSON, which every answer is; refuses one that asks for binary.
std::string drop_binary(const char* name, const std::string& path, WireParameters& parameters) {
  const auto found = parameters.find(name);
  if (found == parameters.end()) return "";
  if (found->second.bool_param()) return named(path, name) + ": " + kNoBinary;
  parameters.erase(found);
  return "";
}

std::string read_output(const Json& json, const std::string& path,
                        inference::ModelInferRequest::InferRequestedOutputTensor& output) {
  if (!json.is_object()) return path + " is not an object";
  std::string wrong;
  for (const auto& [name, value] : json.items()) {
    const std::string member = named(path, name);
    if (name == "name") {
      wrong = read_text_member(value, member, *output.mutable_name());
    } else if (name == "parameters") {
      wrong = read_parameters(value, member, *output.mutable_parameters());
      if (wrong.empty()) wrong = drop_binary("binary_data", member, *output.mutable_parameters());
    } else {
      wrong = member + " is not a member of an output";
    }
    if (!wrong.empty()) return wrong;
  }
  return "";
}

template <typename Read>
std::string read_each(const Json& list, const std::string& path, const Read& read) {
  if (!list.is_array()) return path + " is not a list";
  for (std::size_t i = 0; i < list.size(); ++i) {
    std::string wrong = read(list[i], path + "[" + std::to_string(i) + "]");
    if (!wrong.empty()) return wrong;
  }
  return "";
}

using WireOutput = inference::ModelInferResponse::InferOutputTensor;

// The prefix of the names of outputs that hold details of tokens.
constexpr std::string_view kDetail = "details.";

// `write` appends a value's text. The list outlives the pieces.
template <typename Values, typename Write>
void add_list(const Values& values, Write write, JsonPieces& out) {
  out.raw("[");
  out.items(0, [at = values.begin(), end = values.end(), write](std::string& text) mutable {
    if (at == end) return false;
    write(*at++, text);
    return true;
  });
  out.raw("]");
}

void add_double(double value, std::string& text) {
  text += dumped(std::isfinite(value) ? OrderedJson(value) : OrderedJson());
}

// A tensor's values, all in one list; NaN is null. Bytes are text, with U+FFFD for what is no
// UTF-8. The tensor outlives the pieces.
void add_values(const WireOutput& tensor, JsonPieces& out) {
  const inference::InferTensorContents& contents = tensor.contents();
  if (tensor.datatype() == "INT32") {
    return add_list(
        contents.int_contents(),
        [](std::int32_t value, std::string& text) { text += std::to_string(value); }, out);
  }
  if (tensor.datatype() == "FP32") {
    return add_list(
        contents.fp32_contents(),
        [](float value, std::string& text) { text += dumped(short_number(value)); }, out);
  }
  if (tensor.datatype() == "FP64") return add_list(contents.fp64_contents(), add_double, out);
  if (tensor.datatype() == "BOOL") {
    return add_list(
        contents.bool_contents(),
        [](bool value, std::string& text) { text += value ? "true" : "false"; }, out);
  }
  out.raw("[");
  const char* separator = "";
  for (const std::string& bytes : contents.bytes_contents()) {
    Utf8Stream utf8;
    std::string text;
    utf8.push(bytes, text);
    utf8.finish(text);
    out.raw(std::exchange(separator, ","));
    out.quoted(std::move(text));
  }
  out.raw("]");
}

// The first members of every response.
OrderedJson head_json(const inference::ModelInferResponse& wire) {
  OrderedJson json = {{"model_name", wire.model_name()}, {"model_version", wire.model_version()}};
  if (!wire.id().empty()) json["id"] = wire.id();
  return json;
}

// An object as text, to which members may be added.
std::string without_end(const OrderedJson& object) {
  std::string text = dumped(object);
  text.pop_back();
  return text;
}

}  // namespace

std::string read_infer_request(Json json, inference::ModelInferRequest& wire) {
  std::string wrong;
  for (const auto& [name, value] : std::as_const(json).items()) {
    if (name == "id") {
      wrong = read_text_member(value, "id", *wire.mutable_id());
    } else if (name == "parameters") {
      wrong = read_parameters(value, "parameters", *wire.mutable_parameters());
      if (wrong.empty()) {
        wrong = drop_binary("binary_data_output", "parameters", *wire.mutable_parameters());
      }
    } else if (name == "inputs") {
      wrong = read_each(value, "inputs", [&](const Json& input, const std::string& path) {
        return read_input(input, path, *wire.add_inputs());
      });
    } else if (name == "outputs") {
      wrong = read_each(value, "outputs", [&](const Json& output, const std::string& path) {
        return read_output(output, path, *wire.add_outputs());
      });
    } else {
      wrong = named("", name) + " is not a member of an inference request";
    }
    if (!wrong.empty()) return wrong;
  }
  return "";
}

JsonPieces infer_response_pieces(const inference::ModelInferResponse& wire) {
  OrderedJson json = head_json(wire);
  for (const char* const name : {"triton_final_response", "finish_reason", "lintel_position",
                                 "lintel_window", "lintel_window_restarts"}) {
    const auto found = wire.parameters().find(name);
    if (found == wire.parameters().end()) continue;
    const inference::InferParameter& parameter = found->second;
    json["parameters"][name] = parameter.has_bool_param() ? OrderedJson(parameter.bool_param())
                               : parameter.has_string_param()
                                   ? OrderedJson(parameter.string_param())
                                   : OrderedJson(parameter.int64_param());
  }
  JsonPieces out;
  out.raw(without_end(json) + ",\"outputs\":[");
  const char* separator = "";
  for (const WireOutput& tensor : wire.outputs()) {
    const OrderedJson head = {
        {"name", tensor.name()},
        {"datatype", tensor.datatype()},
        {"shape", std::vector<std::int64_t>(tensor.shape().begin(), tensor.shape().end())}};
    out.raw(std::exchange(separator, ",") + without_end(head) + ",\"data\":");
    add_values(tensor, out);
    out.raw("}");
  }
  out.raw("]}");
  return out;
}

namespace {

// A value, or a list of values, as an input of the inference protocol.
Json input_of(const std::string& name, const char* datatype, Json values) {
  const bool is_row = name == "text_input" || name == "tokens";
  Json data = values.is_array() ? std::move(values) : Json::array({std::move(values)});
  const std::size_t size = data.size();
  Json input = {{"name", name}, {"datatype", datatype}};
  input["shape"] = is_row ? Json::array({1, size}) : Json::array({size});
  input["data"] = std::move(data);  // a list in braces would be copied
  return input;
}

}  // namespace

std::string read_generate_request(Json request, inference::ModelInferRequest& wire) {
  Json infer = {{"inputs", Json::array()}, {"parameters", Json::object()}};
  for (auto& [name, value] : request.items()) {
    if (name == "text_input" || name == "stop") {
      infer["inputs"].push_back(input_of(name, "BYTES", std::move(value)));
    } else if (name == "tokens" || name == "given_positions" || name == "given_tokens") {
      infer["inputs"].push_back(input_of(name, "INT64", std::move(value)));
    } else if (name == "id") {
      infer["id"] = std::move(value);
    } else if (name == "outputs") {
      if (!value.is_array()) return "outputs is not a list of names";
      for (const Json& output : value) infer["outputs"].push_back({{"name", output}});
    } else if (name == "parameters") {
      if (!value.is_object()) return "parameters is not an object";
      infer["parameters"].update(value);
    } else {
      infer["parameters"][name] = std::move(value);
    }
  }
  // A list of stop strings may stand among the parameters, too, as other servers have it.
  Json& parameters = infer["parameters"];
  if (parameters.contains("stop")) {
    infer["inputs"].push_back(input_of("stop", "BYTES", std::move(parameters["stop"])));
    parameters.erase("stop");
  }
  return read_infer_request(std::move(infer), wire);
}

JsonPieces GenerateJson::pieces(const inference::ModelInferResponse& wire, bool is_last) {
  OrderedJson flat = head_json(wire);
  for (const char* const name : {"lintel_position", "lintel_window", "lintel_window_restarts"}) {
    const auto parameter = wire.parameters().find(name);
    if (parameter != wire.parameters().end()) flat[name] = parameter->second.int64_param();
  }
  JsonPieces out;
  out.raw(without_end(flat));
  for (const WireOutput& tensor : wire.outputs()) {
    if (tensor.name().starts_with(kDetail)) continue;
    out.raw("," + dumped(OrderedJson(tensor.name())) + ":");
    const auto& scores = tensor.contents().fp64_contents();
    if (tensor.name() == "text_output") {
      std::string text;
      for (const std::string& piece : tensor.contents().bytes_contents()) utf8_.push(piece, text);
      if (is_last) utf8_.finish(text);
      out.quoted(std::move(text));
    } else if (scores.size() == 1) {  // of several samples each
      std::string text;
      add_double(scores[0], text);
      out.raw(std::move(text));
    } else {
      add_values(tensor, out);
    }
  }
  const auto reason = wire.parameters().find("finish_reason");
  if (reason != wire.parameters().end()) add_details(wire, reason->second.string_param(), out);
  out.raw("}");
  return out;
}

void GenerateJson::add_details(const inference::ModelInferResponse& wire,
                               const std::string& finish_reason, JsonPieces& out) const {
  const auto contents_of = [&](const char* name) {
    const auto tensor =
        std::ranges::find(wire.outputs(), std::string(kDetail) + name, &WireOutput::name);
    return tensor == wire.outputs().end() ? nullptr : &tensor->contents();
  };
  const inference::InferTensorContents* const ids = contents_of("id");
  const inference::InferTensorContents* const log2_probs = contents_of("log2_prob");
  const inference::InferTensorContents* const texts = contents_of("text");
  const inference::InferTensorContents* const special = contents_of("special");
  if (ids == nullptr || log2_probs == nullptr || texts == nullptr || special == nullptr) return;
  // Tokens of the first of several samples.
  int count = 0;
  const auto& head = *std::ranges::find(wire.outputs(), "details.id", &WireOutput::name);
  while (count < head.shape(1) && ids->int_contents(count) >= 0) ++count;
  const auto token = [=](int i) {
    const double log2_prob = log2_probs->fp32_contents(i);
    const OrderedJson logprob =
        std::isfinite(log2_prob) ? OrderedJson(log2_prob * std::numbers::ln2) : OrderedJson();
    return dumped(OrderedJson{{"id", ids->int_contents(i)},
                              {"text", texts->bytes_contents(i)},
                              {"logprob", logprob},
                              {"special", special->bool_contents(i)}});
  };
  out.raw(",\"details\":{\"finish_reason\":" +
          dumped(finish_reason.empty() ? OrderedJson() : OrderedJson(finish_reason)));
  if (streams_) {
    if (count > 0) out.raw(",\"token\":" + token(0));
  } else {
    out.raw(",\"logprobs\":[");
    out.items(0, [token, count, i = 0](std::string& text) mutable {
      if (i == count) return false;
      text += token(i++);
      return true;
    });
    out.raw("]");
  }
  out.raw("}");
}

}  // namespace lintel
