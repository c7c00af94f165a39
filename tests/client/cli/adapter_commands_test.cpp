// SPDX-License-Identifier: Apache-2.0
// LoRA adapters on the command line: named in calls, shown, loaded and unloaded.
#include <nlohmann/json.hpp>

#include "client/cli/program.h"
#include "tests/client/support/fake_server.h"
#include "tests/client/support/run_lintel.h"
#include "tests/support/catch.h"

namespace lintel::testing {

TEST_CASE("an adapter is named to the server, and shown") {
  FakeServer server;
  const auto run = [&](std::vector<std::string> arguments, const std::string& input = "") {
    arguments.insert(arguments.end(), {"--adapter", "thin", "--address", server.address()});
    const auto result = run_lintel(arguments, input);
    INFO(result.err);
    REQUIRE(result.code == cli::kOk);
    return result.out;
  };
  run({"generate"});
  run({"complete", "--unconditional", "1"});
  for (const v1::GenerateRequest& request : server.generate_requests()) {
    CHECK(request.adapter() == "thin");
  }
  CHECK(server.generate_requests().size() == 2);
  const std::string results = run({"complete", "--unconditional", "1", "--json", "-"});
  CHECK(nlohmann::json::parse(results)["adapter"] == "thin");
  run({"score", "--input", "-"}, "[1, 2]\n");
  REQUIRE(server.score_requests().size() == 1);
  CHECK(server.score_requests()[0].adapter() == "thin");
  CHECK(nlohmann::json::parse(run({"session", "create", "--json"}))["adapter"] == "thin");

  v1::Adapter& thin = *server.model.add_adapters();
  thin.set_name("thin");
  thin.set_rank(8);
  thin.set_modules(12);
  thin.set_bytes(4096);
  thin.set_fingerprint("0123456789abcdef");
  const auto shown = run_lintel({"model", "get", "--address", server.address()});
  CHECK_THAT(shown.out, Catch::Contains("thin: rank 8, 12 modules, 4096 bytes, "
                                        "fingerprint 0123456789ab\n"));
  const auto json = run_lintel({"model", "get", "--json", "--address", server.address()});
  CHECK(nlohmann::json::parse(json.out)["adapters"][0]["fingerprint"] == "0123456789abcdef");
}

TEST_CASE("adapters are loaded and unloaded by name, of a model") {
  FakeServer server;
  const auto run = [&](const std::string& command, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"model", command, "thin", "--address", server.address()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto result = run_lintel(arguments);
    INFO(result.err);
    REQUIRE(result.code == cli::kOk);
    return result.out;
  };
  CHECK(nlohmann::json::parse(run("load-adapter", {"--model", "tiny", "--json"}))["name"] ==
        "thin");
  CHECK(server.last_seen().model == "tiny");
  CHECK_THAT(run("load-adapter", {}), Catch::Contains("thin: rank 8"));
  CHECK(run("unload-adapter", {"--model", "other"}) == "thin is unloaded\n");
  CHECK(server.last_seen().model == "other");
}

}  // namespace lintel::testing
