// SPDX-License-Identifier: Apache-2.0
// lintel-convert: a model directory to another, with its weights in another type or an adapter
// merged. Exit codes: 0 when it is written, 1 when it cannot be, 2 for flags that make no sense.
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

#include "model/config/attention_spec.h"
#include "model/core/errors.h"
#include "tools/convert/convert_model.h"
#include "tools/describe/flags.h"

namespace {

constexpr int kExitUsage = 2;

constexpr char kDescription[] =
    "Writes the model directory FROM to TO, with its weights in another type.";

constexpr char kFooter[] = R"(
bf16 rounds the matrices of the layers, as lintel-server --weight-type bf16 does when it loads FROM; embeddings,
norms, biases and the predictor keep their type. So TO, about half of a model in f32, gives the same tokens in bf16.
f32 widens what is narrower, exactly. TO must not exist, and appears complete or not at all.

--merge-adapter adds a LoRA adapter's matrices to those that they adapt, in double: TO is a model of its own, without
an adapter.

There is no int8: model files have neither I8 tensors nor their scales; lintel-server --weight-type int8 converts at
load.

Examples:
  lintel-convert my-model-f32 my-model-bf16 --weight-type bf16
  lintel-convert weights/mnist-linear-small small-f32 --weight-type f32
  lintel-convert my-model my-tuned-model --weight-type f32 --merge-adapter my-model/adapters/tuned)";

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(kDescription, "lintel-convert");
  app.set_version_flag("--version", "lintel-convert " LINTEL_VERSION);
  lintel::describe::add_flags(app);
  app.footer(kFooter);
  app.add_flag_callback(
      "--kinds", [] { throw CLI::CallForVersion(lintel::kinds_json(), 0); },
      "Print the kinds of attention, their keys and their tensors as JSON, and exit");
  std::string from;
  std::string to;
  std::string type;
  std::string adapter;
  app.add_option("FROM", from, "Model directory to read")->type_name("DIR")->required();
  app.add_option("TO", to, "Model directory to write")->type_name("DIR")->required();
  app.add_option("--weight-type", type, "Type of the layers' matrices: f32 or bf16")
      ->type_name("TYPE")
      ->check(CLI::IsMember({"f32", "bf16", "int8"}).description(""))
      ->check(lintel::describe::offers({"f32", "bf16"}))
      ->required();
  app.add_option("--merge-adapter", adapter, "LoRA adapter to make part of the weights")
      ->type_name("DIR");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? EXIT_SUCCESS : kExitUsage;
  }
  try {
    lintel::convert_model(from, to,
                          type == "f32"    ? lintel::WeightType::kF32
                          : type == "bf16" ? lintel::WeightType::kBf16
                                           : lintel::WeightType::kInt8,
                          adapter);
  } catch (const std::exception& error) {
    std::cerr << "lintel-convert: " << lintel::one_line(error.what()) << "\n";
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
