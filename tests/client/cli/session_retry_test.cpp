// SPDX-License-Identifier: Apache-2.0
// `lintel session`, of sessions that outlive the server: created, shown, and continued.
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/client/support/fake_server.h"
#include "tests/client/support/run_lintel.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

CommandResult run_at(const FakeServer& server, std::vector<std::string> arguments,
                     const std::string& input = "") {
  arguments.insert(arguments.end(), {"--address", server.address()});
  return run_lintel(arguments, input);
}

struct ByteServer : FakeServer {
  ByteServer() {
    model.set_modality("bytes");
    model.clear_image();
    session.set_durability(v1::DURABILITY_INPUT);
    session.set_in_memory(true);
  }
};

std::vector<std::string> go_on(const std::string& format) {
  return {"session", "continue", "session-0", "--prompt", "ab",  "--max-new-tokens",
          "5",       "--seed",   "3",         "--format", format};
}

// The output when the server is killed, and started again, after token `killed_at` of 5.
CommandResult with_a_kill(FakeServer& server, const std::string& format, int killed_at) {
  server.hang = true;
  server.values_before_hanging = killed_at;
  std::thread killer([&] {
    server.wait_until_hanging();
    server.hang = false;
    server.restart();
  });
  CommandResult result = run_at(server, go_on(format));
  killer.join();
  return result;
}

TEST_CASE("session create sends --durability and --expire-after") {
  FakeServer server;
  for (const char* level : {"none", "call", "input", "token"}) {
    run_at(server, {"session", "create", "--durability", level, "--expire-after", "36h"});
  }
  run_at(server, {"session", "create"});
  const auto requests = server.copy_requests();
  REQUIRE(requests.size() == 5);
  CHECK(requests[0] == "Create durability: DURABILITY_NONE expire_after { seconds: 129600 }");
  CHECK(requests[1] == "Create durability: DURABILITY_CALL expire_after { seconds: 129600 }");
  CHECK(requests[2] == "Create durability: DURABILITY_INPUT expire_after { seconds: 129600 }");
  CHECK(requests[3] == "Create durability: DURABILITY_TOKEN expire_after { seconds: 129600 }");
  CHECK(requests[4] == "Create ");
  CHECK(run_at(server, {"session", "create", "--durability", "all"}).code == cli::kUsage);
  CHECK(run_at(server, {"session", "create", "--expire-after", "36"}).code == cli::kUsage);
}

TEST_CASE("copies may have another durability than their source") {
  FakeServer server;
  const TemporaryDirectory directory;
  run_at(server, {"session", "fork", "abc", "--durability", "token"});
  CHECK(server.copy_requests().back() == "Fork id: \"abc\" count: 1 durability: DURABILITY_TOKEN");
  run_at(server, {"session", "restore", "-", "--durability", "call"}, "x");
  CHECK(server.copy_requests()[1] == "Restore total_bytes: 1 durability: DURABILITY_CALL");
}

TEST_CASE("session get and list show durability, place in memory and interrupted calls") {
  FakeServer server;
  CHECK(run_at(server, {"session", "get", "x"}).out.find("durability       none") !=
        std::string::npos);
  server.session.set_durability(v1::DURABILITY_TOKEN);
  server.session.mutable_interrupted()->set_call_id("c1");
  server.session.mutable_interrupted()->set_start_position(4);
  server.session.mutable_interrupted()->set_stored_position(9);
  server.session.mutable_expire_time()->set_seconds(1'700'000'000);
  const std::string shown = run_at(server, {"session", "get", "x"}).out;
  INFO(shown);
  CHECK(shown.find("durability        token\n") != std::string::npos);
  CHECK(shown.find("where             cold\n") != std::string::npos);
  CHECK(shown.find("interrupted call  c1, from position 4, stored up to 9\n") != std::string::npos);
  CHECK(shown.find("expires           2023-11-14T22:13:20Z\n") != std::string::npos);
  const auto json = nlohmann::json::parse(run_at(server, {"session", "get", "x", "--json"}).out);
  CHECK(json["durability"] == "token");
  CHECK(json["in_memory"] == false);
  CHECK(json["interrupted"]["call_id"] == "c1");
  CHECK(json["interrupted"]["start_position"] == 4);
  CHECK(json["interrupted"]["stored_position"] == 9);
  CHECK(json["expire_time"] == "2023-11-14T22:13:20Z");
  const std::string listed = run_at(server, {"session", "list"}).out;
  INFO(listed);
  CHECK(listed.find("DURABILITY  WHERE  INTERRUPTED  EXPIRES") != std::string::npos);
  CHECK(listed.find("token       cold   yes          2023-11-14T22:13:20Z") != std::string::npos);
}

TEST_CASE("session get shows from where on a session has the bits of this server") {
  FakeServer server;
  CHECK(run_at(server, {"session", "get", "x"}).out.find("numerics changed at") ==
        std::string::npos);
  CHECK_FALSE(nlohmann::json::parse(run_at(server, {"session", "get", "x", "--json"}).out)
                  .contains("numerics_changed_at"));
  server.session.set_numerics_changed_at(45);
  const std::string shown = run_at(server, {"session", "get", "x"}).out;
  INFO(shown);
  CHECK(shown.find("numerics changed at  token 45\n") != std::string::npos);
  const auto json = nlohmann::json::parse(run_at(server, {"session", "get", "x", "--json"}).out);
  CHECK(json["numerics_changed_at"] == 45);
}

TEST_CASE("a session that is continued over a crash prints what it prints without one") {
  const std::string format = GENERATE("text", "tokens", "jsonl");
  ByteServer undisturbed;
  const CommandResult expected = run_at(undisturbed, go_on(format));
  REQUIRE(expected.code == cli::kOk);
  CHECK(expected.err.empty());
  for (int killed_at = 1; killed_at <= 5; ++killed_at) {
    ByteServer server;
    const CommandResult result = with_a_kill(server, format, killed_at);
    INFO(format << ", killed at token " << killed_at << ": " << result.err);
    CHECK(result.code == cli::kOk);
    CHECK(result.out == expected.out);
    CHECK(result.err.rfind("lintel: the server is away; trying again for 30 s\n", 0) == 0);
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    CHECK(server.generate_requests().size() == 2);
  }
}

TEST_CASE("a server that stays away: after --retry the error has the last position") {
  ByteServer server;
  server.hang = true;
  server.values_before_hanging = 3;
  std::thread killer([&] {
    server.wait_until_hanging();
    server.stop();
  });
  std::vector<std::string> arguments = go_on("tokens");
  arguments.insert(arguments.end(), {"--retry", "0.5"});
  const CommandResult result = run_at(server, arguments);
  killer.join();
  INFO(result.err);
  CHECK(result.code == cli::kUnavailable);
  CHECK(std::count(result.out.begin(), result.out.end(), ',') == 2);
  CHECK(result.err.find("lintel: the server is away; trying again for 1 s\n") == 0);
  CHECK(result.err.find("lintel: gave up at position 5;") != std::string::npos);
  CHECK(result.err.find("(UNAVAILABLE)") != std::string::npos);
}

TEST_CASE("with --retry 0, and in sessions that end with the server, a crash ends the command") {
  ByteServer server;
  std::vector<std::string> arguments = go_on("text");
  SECTION("--retry 0") { arguments.insert(arguments.end(), {"--retry", "0"}); }
  SECTION("--durability none") { server.session.set_durability(v1::DURABILITY_NONE); }
  server.refusals = {grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone")};
  const CommandResult result = run_at(server, arguments);
  CHECK(result.code == cli::kUnavailable);
  CHECK(result.err == "lintel: gone (UNAVAILABLE)\n");
  CHECK(run_at(server, {"session", "continue", "x", "--retry", "-1"}).code == cli::kUsage);
}

}  // namespace
}  // namespace lintel::testing
