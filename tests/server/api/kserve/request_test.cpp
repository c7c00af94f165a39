// SPDX-License-Identifier: Apache-2.0
// What a ModelInfer request is read as.
#include "server/api/kserve/request.h"

#include <map>

#include "lintel/v1/generation.pb.h"
#include "server/api/params/generate_params.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

inference::ModelInferRequest request_of(const std::vector<std::int32_t>& tokens,
                                        std::int64_t rows) {
  inference::ModelInferRequest wire;
  auto& input = *wire.add_inputs();
  input.set_name("tokens");
  input.set_datatype("INT32");
  input.add_shape(rows);
  input.add_shape(static_cast<std::int64_t>(tokens.size()) / rows);
  input.mutable_contents()->mutable_int_contents()->Assign(tokens.begin(), tokens.end());
  return wire;
}

TEST_CASE("every parameter sets the field of its name and no other") {
  // A value of each parameter, and the field of the settings that has it then.
  const std::map<std::string, std::pair<const char*, const char*>> in_settings = {
      {"max_new_tokens", {"11", "max_new_tokens: 11"}},
      {"max_tokens_per_message", {"12", "max_tokens_per_message: 12"}},
      {"seed", {"13", "sampling { seed: 13 }"}},
      {"temperature", {"0.5", "sampling { temperature: 0.5 }"}},
      {"top_k", {"14", "sampling { top_k: 14 }"}},
      {"top_p", {"0.25", "sampling { top_p: 0.25 }"}},
      {"min_p", {"0.125", "sampling { min_p: 0.125 }"}},
      {"repetition_penalty", {"1.5", "sampling { repetition_penalty: 1.5 }"}},
      {"presence_penalty", {"2.5", "sampling { presence_penalty: 2.5 }"}},
      {"frequency_penalty", {"3.5", "sampling { frequency_penalty: 3.5 }"}},
      {"top_log2_probs", {"15", "top_log2_probs: 15"}},
      {"echo", {"1", "echo_prompt: true"}},
      {"add_special", {"0", "add_special: false"}},
      {"parse_special", {"1", "parse_special: true"}},
      {"stop", {"16", "stop { strings: \"16\" }"}},
      {"include_stop_str_in_output", {"1", "stop { include_in_output: true }"}},
      {"penalty_window", {"16", "sampling { penalty_window: 16 }"}},
      {"window", {"0", "window: 0"}},
  };
  for (const auto& [name, expected] : in_settings) {
    CAPTURE(name);
    inference::ModelInferRequest wire = request_of({1, 2}, 1);
    (*wire.mutable_parameters())[name].set_string_param(expected.first);
    Violations violations;
    const TensorRequest read = read_tensor_request(wire, 1, violations);
    CHECK(violations.empty());
    v1::GenerateRequest settings;
    api::write_params(read.settings, settings);
    const std::string text = settings.ShortDebugString();
    CHECK(text.substr(0, text.find_last_not_of(' ') + 1) == expected.second);
  }
  inference::ModelInferRequest wire = request_of({1, 2}, 1);
  auto& parameters = *wire.mutable_parameters();
  parameters["stream"].set_bool_param(true);
  parameters["triton_enable_empty_final_response"].set_int64_param(1);
  parameters["sequence_id"].set_uint64_param(7);
  parameters["sequence_start"].set_string_param("1");
  parameters["max_tokens"].set_int64_param(15);
  Violations violations;
  const TensorRequest read = read_tensor_request(wire, 1, violations);
  CHECK(violations.empty());
  CHECK(read.streams);
  CHECK(read.marks_final);
  CHECK(read.sequence_id == "number:7");
  CHECK(read.sequence_start);
  CHECK_FALSE(read.sequence_end);
  CHECK(read.max_tokens == 15);
  v1::GenerateRequest settings;
  api::write_params(read.settings, settings);
  CHECK(settings.ShortDebugString().empty());
}

TEST_CASE("a parameter out of its range, of another type or unknown is refused by its name") {
  const std::pair<const char*, const char*> bad[] = {
      {"max_new_tokens", "4294967296"},
      {"top_k", "-1"},
      {"window", "x"},
      {"window", "0.5"},
      {"seed", "x"},
      {"top_p", ""},
      {"stream", "2"},
      {"sequence_end", "yes"},
      {"max_tokens", "-5"},
      {"top_log2_probs", "-1"},
      {"echo", "yes"},
      {"no_such_one", "1"},
      {"max_tokens_per_message", "0.5"},
  };
  for (const auto& [name, value] : bad) {
    CAPTURE(name, value);
    inference::ModelInferRequest wire = request_of({1}, 1);
    (*wire.mutable_parameters())[name].set_string_param(value);
    Violations violations;
    read_tensor_request(wire, 1, violations);
    REQUIRE(violations.list().size() == 1);
    CHECK(violations.list()[0].field == std::string("parameters[") + name + "]");
  }
}

std::vector<std::vector<std::int32_t>> ids_of(const TensorRequest& request) {
  std::vector<std::vector<std::int32_t>> rows;
  for (const api::Values& prompt : request.prompts) rows.push_back(prompt.ids);
  return rows;
}

TEST_CASE("rows are separated, typed and raw") {
  const std::vector<std::int32_t> tokens = {1, 2, 3, 4, 5, 6};
  inference::ModelInferRequest typed = request_of(tokens, 3);
  inference::ModelInferRequest raw = typed;
  raw.mutable_inputs(0)->clear_contents();
  raw.add_raw_input_contents(tokens.data(), tokens.size() * sizeof(std::int32_t));
  for (const auto& wire : {typed, raw}) {
    Violations violations;
    const TensorRequest read = read_tensor_request(wire, 3, violations);
    CHECK(violations.empty());
    CHECK(ids_of(read) == std::vector<std::vector<std::int32_t>>{{1, 2}, {3, 4}, {5, 6}});
  }
  Violations violations;
  CHECK(ids_of(read_tensor_request(request_of({}, 2), 3, violations)) ==
        std::vector<std::vector<std::int32_t>>(2));
  CHECK(violations.empty());
}

}  // namespace
}  // namespace lintel::testing
