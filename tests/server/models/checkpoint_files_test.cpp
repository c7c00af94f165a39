// SPDX-License-Identifier: Apache-2.0
// Checkpoints as files: unknown keys, and what a GGUF file recommends.
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "server/models/model_loader.h"
#include "server/models/model_manager.h"
#include "tests/support/catch.h"
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
  auto copy = std::make_shared<ServedModel>();  // the parts that outlive its scheduler
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

TEST_CASE("general.sampling of a GGUF file are defaults, where they are in range") {
  const TemporaryDirectory directory;
  const fs::path file = directory.path() / "m.gguf";
  GgufCopy gguf(golden_file("gguf/rwkv7-f32.gguf"));
  gguf.set("general.sampling.temp", 0.6f);
  gguf.set("general.sampling.top_k", 20u);
  gguf.set("general.sampling.top_p", 0.95f);
  gguf.set("general.sampling.penalty_repeat", 1000.0f);
  gguf.set("general.sampling.min_p", "0.1");
  gguf.write(file);
  const SamplingDefaults defaults = serve(file).model->chat->defaults();
  CHECK(defaults.temperature == 0.6f);
  CHECK(defaults.top_k == 20u);
  CHECK(defaults.top_p == 0.95f);
  CHECK_FALSE(defaults.repetition_penalty.has_value());
  CHECK_FALSE(defaults.min_p.has_value());
  CHECK_FALSE(serve(golden_file("gguf/rwkv7-f32.gguf")).model->chat->defaults().top_k.has_value());
}

TEST_CASE("a chat template that leaves calls of tools out is named in the log at load") {
  const TemporaryDirectory directory;
  const fs::path file = directory.path() / "m.gguf";
  const auto log_of = [&](const std::string& of_message) {
    GgufCopy gguf(golden_file("gguf/rwkv7-f32.gguf"));
    const std::string source =
        "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}"
        "[{{ m.role }}]{{ m.content }}" +
        of_message + "{% endfor %}";
    gguf.set("tokenizer.chat_template", source.c_str());
    gguf.write(file);
    return serve(file).log;
  };
  const auto leaves_out =
      Catch::Contains("model m: its chat template leaves calls of tools out: prompts do not show");
  CHECK_THAT(log_of(""), leaves_out);
  CHECK_THAT(log_of("{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}"
                    "</tool_call>{% endfor %}"),
             !leaves_out);
}

}  // namespace
}  // namespace lintel::testing
