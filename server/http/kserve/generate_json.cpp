#include "server/http/kserve/generate_json.h"

#include <cstdint>
#include <utility>

#include "server/http/encoding/bounded_json.h"
#include "server/http/kserve/infer_json.h"

namespace lintel {
namespace {

using FlatJson = nlohmann::json;

// A value, or a list of values, as an input of the inference protocol. `shape`: of its `size`
// values.
FlatJson input_of(const char* name, const char* datatype, FlatJson values, bool is_row) {
  FlatJson data = values.is_array() ? std::move(values) : FlatJson::array({std::move(values)});
  const std::size_t size = data.size();
  FlatJson input = {{"name", name}, {"datatype", datatype}};
  input["shape"] = is_row ? FlatJson::array({1, size}) : FlatJson::array({size});
  input["data"] = std::move(data);  // a list in braces would be copied
  return input;
}

}  // namespace

std::string read_generate_request(FlatJson request, inference::ModelInferRequest& wire) {
  FlatJson infer = {{"inputs", FlatJson::array()}, {"parameters", FlatJson::object()}};
  for (auto& [name, value] : request.items()) {
    if (name == "id") {
      infer["id"] = std::move(value);
    } else if (name == "text_input") {
      infer["inputs"].push_back(input_of("text_input", "BYTES", std::move(value), /*is_row=*/true));
    } else if (name == "tokens") {
      infer["inputs"].push_back(input_of("tokens", "INT64", std::move(value), /*is_row=*/true));
    } else if (name == "given_positions" || name == "given_tokens") {
      infer["inputs"].push_back(
          input_of(name.c_str(), "INT64", std::move(value), /*is_row=*/false));
    } else if (name == "stop") {
      infer["inputs"].push_back(input_of("stop", "BYTES", std::move(value), /*is_row=*/false));
    } else if (name == "outputs") {
      if (!value.is_array()) return "outputs is not a list of names";
      for (const FlatJson& output : value) infer["outputs"].push_back({{"name", output}});
    } else if (name == "parameters") {
      if (!value.is_object()) return "parameters is not an object";
      infer["parameters"].update(value);
    } else {
      infer["parameters"][name] = std::move(value);
    }
  }
  // A list of stop strings may stand among the parameters, too, as other servers have it.
  FlatJson& parameters = infer["parameters"];
  if (parameters.contains("stop")) {
    infer["inputs"].push_back(
        input_of("stop", "BYTES", std::move(parameters["stop"]), /*is_row=*/false));
    parameters.erase("stop");
  }
  return read_infer_request(std::move(infer), wire);
}

std::string GenerateJson::of(const inference::ModelInferResponse& wire, bool is_last) {
  nlohmann::ordered_json flat = {{"model_name", wire.model_name()},
                                 {"model_version", wire.model_version()}};
  if (!wire.id().empty()) flat["id"] = wire.id();
  for (const char* const name : {"lintel_position", "lintel_window", "lintel_window_restarts"}) {
    const auto parameter = wire.parameters().find(name);
    if (parameter != wire.parameters().end()) flat[name] = parameter->second.int64_param();
  }
  for (const auto& tensor : wire.outputs()) {
    if (tensor.name() == "text_output") {
      std::string text;
      for (const std::string& piece : tensor.contents().bytes_contents()) utf8_.add(piece, text);
      if (is_last) utf8_.end(text);
      flat[tensor.name()] = std::move(text);
    } else if (tensor.name() == "score" || tensor.name() == "log2_evidence") {
      const nlohmann::ordered_json values = tensor_values(tensor);
      flat[tensor.name()] = values.size() == 1 ? values[0] : values;  // of several samples each
    } else {
      flat[tensor.name()] = tensor_values(tensor);
    }
  }
  return dumped(flat);
}

}  // namespace lintel
