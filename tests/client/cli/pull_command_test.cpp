// SPDX-License-Identifier: Apache-2.0
// `lintel pull`: what it prints, and the environment that it reads.
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>

#include "client/hub/pull.h"
#include "tests/client/support/fake_hub.h"
#include "tests/client/support/run_lintel.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;

// Variables of the environment, as they were before at the end.
class HubEnvironment {
 public:
  explicit HubEnvironment(const std::map<std::string, std::string>& variables) {
    for (const char* name : {"HF_ENDPOINT", "HF_TOKEN", "HF_HUB_CACHE", "HF_HOME", "HF_HUB_OFFLINE",
                             "XDG_CACHE_HOME", "HOME"}) {
      const char* const before = std::getenv(name);
      if (before != nullptr) before_[name] = before;
      set(name, variables.contains(name) ? std::optional(variables.at(name)) : std::nullopt);
      names_.push_back(name);
    }
  }
  ~HubEnvironment() {
    for (const std::string& name : names_) {
      set(name, before_.contains(name) ? std::optional(before_.at(name)) : std::nullopt);
    }
  }
  HubEnvironment(const HubEnvironment&) = delete;
  HubEnvironment& operator=(const HubEnvironment&) = delete;

 private:
  static void set(const std::string& name, const std::optional<std::string>& value) {
    if (value) {
      setenv(name.c_str(), value->c_str(), 1);
    } else {
      unsetenv(name.c_str());
    }
  }

  std::vector<std::string> names_;
  std::map<std::string, std::string> before_;
};

}  // namespace

TEST_CASE("pull command: the path is the only line on standard output") {
  FakeHub hub;
  hub.add_file("config.json", "{}", false);
  hub.add_file("model.safetensors", "weights");
  hub.add_file("m-Q8_0.gguf", "gguf");
  const TemporaryDirectory home;
  const std::string snapshot =
      (home.path() / "hub/models--org--name/snapshots" / FakeHub::kCommit).string();
  {
    const HubEnvironment environment(
        {{"HF_ENDPOINT", hub.url() + "/"}, {"HF_HOME", home.path()}, {"HF_TOKEN", "secret"}});
    const CommandResult all = run_lintel({"pull", "org/name"});
    CHECK(all.code == cli::kOk);
    CHECK(all.out == snapshot + "\n");
    CHECK_THAT(all.err, Contains("lintel: org/name: its .gguf files are left out") &&
                            Contains("m-Q8_0.gguf"));
    CHECK(run_lintel({"pull", hub.url() + "/org/name"}).out == snapshot + "\n");
    CHECK(run_lintel({"pull", "https://huggingface.co/org/name/blob/main/m-Q8_0.gguf"}).out ==
          snapshot + "/m-Q8_0.gguf\n");
    CHECK(run_lintel({"pull", "org/name:q8_0"}).out == snapshot + "/m-Q8_0.gguf\n");
    CHECK(run_lintel({"pull", "org/name", "--file", "*.json"}).out == snapshot + "\n");
    CHECK(run_lintel({"pull", "org/name", "--offline"}).out == snapshot + "\n");
    CHECK(hub.requests()[0].headers.at("authorization") == "Bearer secret");
    const CommandResult wrong = run_lintel({"pull", "org/name:Q4"});
    CHECK(wrong.code == cli::kFailed);
    CHECK(wrong.out.empty());
    CHECK_THAT(wrong.err, Contains("lintel: no .gguf file has 'Q4'") && Contains("m-Q8_0.gguf"));
    CHECK(run_lintel({"pull", "../name"}).code == cli::kUsage);
    CHECK(run_lintel({"pull"}).code == cli::kUsage);
    CHECK(run_lintel({"pull", "org/name:Q8_0", "--file", "*"}).code == cli::kUsage);
    CHECK(run_lintel({"pull", "org/name", "--if-missing", "--file", "*"}).code == cli::kUsage);
    const CommandResult elsewhere = run_lintel({"pull", "https://example.org/org/name"});
    CHECK(elsewhere.code == cli::kUsage);
    CHECK_THAT(elsewhere.err, Contains("is no address of the hub " + hub.url()));
    const std::size_t asked = hub.requests().size();
    CHECK(run_lintel({"pull", "org/name", "--if-missing"}).out == snapshot + "\n");
    CHECK(hub.requests().size() == asked);
    CHECK(run_lintel({"pull", "org/other", "--if-missing"}).code == cli::kOk);
    CHECK(hub.requests().size() > asked);
  }
  const std::size_t before = hub.requests().size();
  const HubEnvironment environment(
      {{"HF_ENDPOINT", hub.url()}, {"HF_HUB_CACHE", home.path() / "hub"}, {"HF_HUB_OFFLINE", "1"}});
  CHECK(run_lintel({"pull", "org/name"}).out == snapshot + "\n");
  CHECK(hub.requests().size() == before);
}

TEST_CASE("pull command: the environment names cache, hub and token") {
  const auto cache = [](const std::map<std::string, std::string>& variables) {
    const HubEnvironment environment(variables);
    return hub::hub_settings_from_environment().cache.string();
  };
  CHECK(cache({{"HOME", "/h"}}) == "/h/.cache/huggingface/hub");
  CHECK(cache({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}}) == "/x/huggingface/hub");
  CHECK(cache({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}, {"HF_HOME", "~/f"}}) == "/h/f/hub");
  CHECK(cache({{"HF_HOME", "/f"}, {"HF_HUB_CACHE", "/c"}}) == "/c");
  CHECK_THROWS_AS(cache({}), hub::HubError);
  const HubEnvironment environment({{"HOME", "/h"}, {"HF_HUB_OFFLINE", "TRUE"}});
  const hub::HubSettings settings = hub::hub_settings_from_environment();
  CHECK(settings.offline);
  CHECK(settings.endpoint == "https://huggingface.co");
  CHECK(settings.token.empty());
}

}  // namespace lintel::testing
