// Whoever serves in f32 without having chosen it is told of what is faster.
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <catch2/catch.hpp>
#include <sstream>

#include "server/models/model_manager.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

// What is logged while models are loaded.
std::string log_of_loading(const ModelOptions& options) {
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "captured", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  {
    const SteadyClock clock;
    ModelRegistry registry;
    SessionStore store({.session_memory_bytes = 1u << 30}, clock);
    ModelManager(options, registry, store, clock).load_at_start();
  }
  spdlog::set_default_logger(before);
  return log.str();
}

TEST_CASE("a server in f32 names int8 once in its log, unless a weight type was chosen") {
  const TemporaryDirectory directory;
  write_random_model(directory.path(), tiny_config(TinyModel::kTokens), /*seed=*/1);
  ModelOptions options;
  options.directories = {{"one", directory.path()}, {"two", directory.path()}};
  const std::string hint = "weights are f32: --weight-type int8 is 1.5 to 3.7 times faster";
  const std::string log = log_of_loading(options);
  CHECK(log.find(hint) != std::string::npos);
  CHECK(log.find(hint) == log.rfind(hint));
  // What multiplies is said of each model.
  const std::string kernels = Transformer::load(directory.path(), {})->kernels();
  CHECK(log.find(kernels) != std::string::npos);
  options.weight_type_given = true;
  CHECK(log_of_loading(options).find("--weight-type") == std::string::npos);
  options.weight_type = WeightType::kInt8;
  CHECK(log_of_loading(options).find("--weight-type") == std::string::npos);
}

}  // namespace
}  // namespace lintel::testing
