// SPDX-License-Identifier: Apache-2.0
// Sessions that outlive lintel-server, as people use them.
#include <signal.h>

#include <algorithm>

#include "tests/cli/processes.h"
#include "tests/cli/stored_servers.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// A lintel-server on a socket and a store that the next one has, too.
class StoredServer : public StoredServers {
 public:
  StoredServer() : StoredServers({"socket"}) { start(); }

  void start() { process_ = serve("socket"); }
  void kill() {
    process_->send(SIGKILL);
    CHECK(process_->wait() == 128 + SIGKILL);
  }

 private:
  std::unique_ptr<Process> process_;
};

std::vector<std::string> go_on(const std::string& session) {
  return {"session", "continue",         session, "--prompt-tokens", "3,1,4", "--seed",
          "9",       "--max-new-tokens", "20000", "--format",        "tokens"};
}

}  // namespace

TEST_CASE("a session that is continued while its server is killed prints every token once") {
  StoredServer server;
  const std::string undisturbed =
      server.lintel(go_on(server.lintel({"session", "create", "--durability", "none"})));
  REQUIRE(std::count(undisturbed.begin(), undisturbed.end(), ',') == 19999);
  const std::string level = GENERATE("call", "input", "token");
  INFO(level);
  const std::string session = server.lintel({"session", "create", "--durability", level});
  Process going_on(server.command(go_on(session)));
  going_on.read_out_until(",");
  for (int i = 0; i < 2; ++i) {
    server.kill();
    server.start();
  }
  const int code = going_on.wait();
  INFO(going_on.err());
  CHECK(code == 0);
  CHECK(going_on.err().find("lintel: the server is away; trying again for 30 s\n") == 0);
  CHECK(going_on.out() == undisturbed + "\n");
  const auto shown = nlohmann::json::parse(server.lintel({"session", "get", session, "--json"}));
  CHECK(shown["durability"] == level);
  CHECK(shown["position"] == 20003);
  CHECK_FALSE(shown.contains("interrupted"));
}

TEST_CASE("a call whose command was killed is finished by its name") {
  StoredServer server;
  const std::string session = server.lintel({"session", "create", "--durability", "input"});
  // Without a seed: the one that was drawn for it is the call's.
  std::vector<std::string> command = {"session",         "continue", session,
                                      "--prompt-tokens", "3,1,4",    "--max-new-tokens",
                                      "20000",           "--format", "tokens"};
  std::string seen;
  {
    Process cut_off(server.command(command));
    cut_off.read_out_until(",");
    server.kill();
    cut_off.send(SIGKILL);
    cut_off.wait();
    seen = cut_off.out();
  }
  server.start();
  const auto shown = nlohmann::json::parse(server.lintel({"session", "get", session, "--json"}));
  REQUIRE(shown.contains("interrupted"));
  command.insert(command.end(), {"--call-id", shown["interrupted"]["call_id"]});
  const std::string finished = server.lintel(command);
  CHECK(std::count(finished.begin(), finished.end(), ',') == 19999);
  CHECK(finished.substr(0, seen.size()) == seen);
  const auto after = nlohmann::json::parse(server.lintel({"session", "get", session, "--json"}));
  CHECK_FALSE(after.contains("interrupted"));
  CHECK(after["position"] == 20003);
  // One that has ended, too, while its tokens are in the history.
  command[6] = "10";
  command.back() = "a short one";
  const std::string ended = server.lintel(command);
  CHECK(server.lintel(command) == ended);
}

TEST_CASE("session delete takes several ids, and names those that are not there") {
  const ServerProcess server({TinyModel::kTokens});
  const auto created = [&server] {
    const Result session = server.lintel({"session", "create"});
    REQUIRE(session.code == 0);
    return session.out.substr(0, session.out.size() - 1);
  };
  const std::string one = created(), two = created(), three = created();
  const Result all = server.lintel({"session", "delete", one, two, "--json"});
  CHECK(all.code == 0);
  CHECK(all.out == "{\"deleted\":\"" + one + "\"}\n{\"deleted\":\"" + two + "\"}\n");
  const Result some = server.lintel({"session", "delete", one, three});
  CHECK(some.code == 1);
  CHECK_THAT(some.err,
             Catch::Contains(one) && Catch::Contains("NOT_FOUND") && !Catch::Contains(three));
  CHECK(server.lintel({"session", "list", "--json"}).json().empty());
}

TEST_CASE("a session of a model that is not loaded: the error names the command that loads it") {
  const TemporaryDirectory repository;
  write_random_model(repository.path() / "idle", tiny_config(TinyModel::kTokens), /*seed=*/1);
  const ServerProcess server({TinyModel::kBytes},
                             {"--model-repository", repository.path().string()});
  for (const std::vector<std::string>& line : std::vector<std::vector<std::string>>{
           {"session", "create", "--model", "idle"},
           {"generate", "--model", "idle", "--prompt-tokens", "1"},
           {"model", "load-adapter", "thin", "--model", "idle"}}) {
    const Result result = server.lintel(line);
    CHECK(result.code == 1);
    CHECK(result.err ==
          "lintel: model idle is not loaded; `lintel model load idle` loads it (NOT_FOUND)\n");
  }
  CHECK(server.lintel({"model", "load", "idle"}).code == 0);
  CHECK(server.lintel({"session", "create", "--model", "idle"}).code == 0);
  CHECK_THAT(server.lintel({"session", "create", "--model", "none"}).err,
             !Catch::Contains("lintel model load"));
}

}  // namespace lintel::testing
