// SPDX-License-Identifier: Apache-2.0
// Checkpoints as files: unknown keys, and what a GGUF file recommends.
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "server/models/model_loader.h"
#include "server/models/model_manager.h"
#include "tests/support/gguf_copy.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

namespace fs = std::filesystem;

fs::path golden_file(const std::string& name) {
  return fs::path(LINTEL_TEST_DATA) / "golden" / name;
}

struct Served {
  SharedModel model;
  std::string log;
};

// Loads a model as the server does at its start.
Served serve(const fs::path& path, bool is_strict = false) {
  ModelOptions options;
  options.directories = {{"m", path}};
  options.strict_config = is_strict;
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "captured", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  struct Restore {
    ~Restore() { spdlog::set_default_logger(logger); }
    std::shared_ptr<spdlog::logger> logger;
  } const restore{before};
  static const SteadyClock clock;
  ModelRegistry registry;
  SessionManager store({.session_memory_bytes = 1u << 30}, clock);
  ModelManager manager(options, registry, store, clock);
  manager.load_at_start();
  const SharedModel found = registry.find("m");
  REQUIRE(found != nullptr);
  auto copy = std::make_shared<ServedModel>();  // what outlives its scheduler
  copy->warnings = found->warnings;
  copy->chat = found->chat;
  return {copy, log.str()};
}

TEST_CASE("an unknown key is in the log and among the warnings, or refused if asked") {
  const TemporaryDirectory directory;
  fs::copy(golden_file("families/rwkv7"), directory.path(), fs::copy_options::recursive);
  std::ifstream in(directory.path() / "config.json");
  nlohmann::json config = nlohmann::json::parse(in);
  config["new_switch"] = 3;
  std::ofstream(directory.path() / "config.json") << config.dump();
  const std::string said = "key \"new_switch\": found 3, which is not known here";
  const Served served = serve(directory.path());
  REQUIRE(served.model->warnings.size() == 1);
  CHECK_THAT(served.model->warnings[0], Catch::StartsWith(said));
  CHECK_THAT(served.log, Catch::Contains("model m: " + said));
  CHECK_THROWS_WITH(
      serve(directory.path(), /*is_strict=*/true),
      Catch::Contains("key \"new_switch\": found 3, expected no such key: it is not known"));
  CHECK(serve(golden_file("families/rwkv7"), /*is_strict=*/true).model->warnings.empty());
}

}  // namespace
}  // namespace lintel::testing
