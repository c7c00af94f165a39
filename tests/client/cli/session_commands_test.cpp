// SPDX-License-Identifier: Apache-2.0
// `lintel session` and `lintel state`: what reaches the server, and what is printed.
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/client/support/fake_server.h"
#include "tests/client/support/run_lintel.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

CommandResult run_on(const FakeServer& server, std::vector<std::string> arguments,
                     const std::string& input = "") {
  arguments.insert(arguments.end(), {"--address", server.address()});
  return run_lintel(arguments, input);
}

std::string only_copy_request(const FakeServer& server) {
  const auto requests = server.copy_requests();
  REQUIRE(requests.size() == 1);
  return requests[0];
}

std::string contents_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST_CASE("session create sends its checkpoint and history flags") {
  FakeServer server;
  const auto result = run_on(
      server, {"session", "create", "--checkpoint-every", "64", "--checkpoints", "4",
               "--history-tokens", "5000", "--window", "128", "--initial-state", "greeting"});
  CHECK(result.out == "session-0\n");
  CHECK(only_copy_request(server) ==
        "Create initial_state: \"greeting\" checkpoints { every_tokens: 64 keep: 4 } "
        "history_tokens: 5000 window: 128");
  run_on(server, {"session", "create", "--window", "0"});
  CHECK(server.copy_requests().back() == "Create window: 0");
  run_on(server, {"session", "create"});
  CHECK(server.copy_requests().back() == "Create ");
}

TEST_CASE("session fork prints an id for each copy") {
  FakeServer server;
  const auto result = run_on(server, {"session", "fork", "abc", "--position", "9", "--count", "3"});
  CHECK(result.code == cli::kOk);
  CHECK(result.out == "session-0\nsession-1\nsession-2\n");
  CHECK(only_copy_request(server) == "Fork id: \"abc\" position: 9 count: 3");
  const auto one = run_on(server, {"session", "fork", "abc"});
  CHECK(one.out == "session-0\n");
  CHECK(server.copy_requests().back() == "Fork id: \"abc\" count: 1");
}

TEST_CASE("session rewind needs a position, of which 0 is one") {
  FakeServer server;
  CHECK(run_on(server, {"session", "rewind", "abc"}).code == cli::kUsage);
  const auto result =
      run_on(server, {"session", "rewind", "abc", "--position", "0", "--expected-digest", "f00d"});
  CHECK(result.code == cli::kOk);
  CHECK(result.out.empty());
  CHECK(only_copy_request(server) == "Rewind id: \"abc\" expected_digest: \"f00d\"");
  const auto as_json = run_on(server, {"session", "rewind", "abc", "--position", "7", "--json"});
  CHECK(nlohmann::json::parse(as_json.out)["position"] == 7);
}

TEST_CASE("a snapshot goes to a file whole, and comes back from it") {
  FakeServer server;
  const TemporaryDirectory directory;
  const std::string path = (directory.path() / "snapshot").string();
  const auto made = run_on(server, {"session", "snapshot", "abc", "--out", path, "--position", "5",
                                    "--without-history"});
  INFO(made.err);
  REQUIRE(made.code == cli::kOk);
  CHECK(made.out.empty());
  CHECK(contents_of(path) == "0123456789");
  CHECK(only_copy_request(server) == "Snapshot id: \"abc\" position: 5 without_history: true");

  const auto restored = run_on(server, {"session", "restore", path, "--model", "tiny", "--verify",
                                        "--accept-other-numerics"});
  INFO(restored.err);
  CHECK(restored.out == "session-10\n");
  const auto requests = server.copy_requests();
  REQUIRE(requests.size() == 3);
  CHECK(requests[1] ==
        "Restore model: \"tiny\" total_bytes: 10 accept_other_numerics: true verify: true");
  CHECK(requests[2] == "Restored data: \"0123456789\"");
  CHECK(run_on(server, {"session", "restore", "-"}, "abc").out == "session-3\n");
}

TEST_CASE("a snapshot that does not come whole leaves no file, and an old one as it was") {
  FakeServer server;
  const TemporaryDirectory directory;
  const auto path = directory.path() / "snapshot";
  const auto snapshot = [&] {
    return run_on(server, {"session", "snapshot", "abc", "--out", path.string()});
  };
  SECTION("a stream that ends early") { server.end_early = true; }
  SECTION("a refusal") {
    server.failure = grpc::Status(grpc::StatusCode::NOT_FOUND, "no session abc");
  }
  CHECK(snapshot().code == cli::kFailed);
  CHECK_FALSE(std::filesystem::exists(path));
  std::ofstream(path) << "old";
  CHECK(snapshot().code == cli::kFailed);
  CHECK(contents_of(path) == "old");
  CHECK(run_on(server, {"session", "restore", (directory.path() / "none").string()}).code ==
        cli::kFailed);
}

TEST_CASE("a history is printed as ids, text or runs with their sources") {
  FakeServer server;
  const auto ids = run_on(server, {"session", "history", "abc", "--from", "4", "--to", "7"});
  CHECK(ids.out == "104,101,121\n");
  CHECK(only_copy_request(server) == "ReadHistory id: \"abc\" from_position: 4 to_position: 7");
  const auto jsonl = run_on(server, {"session", "history", "abc", "--format", "jsonl"});
  CHECK(jsonl.out ==
        "{\"first_position\":0,\"source\":\"prompt\",\"tokens\":[104,101]}\n"
        "{\"first_position\":2,\"source\":\"sampled\",\"tokens\":[121]}\n");
  CHECK(run_on(server, {"session", "history", "abc", "--format", "text"}).code == cli::kUsage);
  server.model.set_modality("bytes");
  CHECK(run_on(server, {"session", "history", "abc"}).out == "hey");
}

TEST_CASE("named states are saved, listed, deleted, and used as initial states") {
  FakeServer server;
  CHECK(run_on(server, {"state", "save", "abc", "greeting", "--position", "3"}).out ==
        "greeting: 12 tokens, 4096 bytes\n");
  CHECK(run_on(server, {"state", "list", "--json"}).out.find("\"b\"") != std::string::npos);
  CHECK(run_on(server, {"state", "delete", "greeting", "--public"}).code == cli::kOk);
  const auto requests = server.copy_requests();
  REQUIRE(requests.size() == 4);
  CHECK(requests[0] == "SaveState session_id: \"abc\" name: \"greeting\" position: 3");
  CHECK(requests[2] == "ListStates page_size: 1000 page_token: \"a\"");
  CHECK(requests[3] == "DeleteState name: \"greeting\" is_public: true");
  run_on(server,
         {"generate", "--initial-state", "greeting", "--window", "64", "--max-new-tokens", "1"});
  REQUIRE(server.generate_requests().size() == 1);
  CHECK(server.generate_requests()[0].initial_state() == "greeting");
  CHECK(server.generate_requests()[0].window() == 64);
}

TEST_CASE("state delete takes several names") {
  FakeServer server;
  const auto result = run_on(server, {"state", "delete", "one", "two", "--json"});
  CHECK(result.code == cli::kOk);
  CHECK(result.out == "{\"deleted\":\"one\"}\n{\"deleted\":\"two\"}\n");
  const auto requests = server.copy_requests();
  REQUIRE(requests.size() == 2);
  CHECK(requests[0] == "DeleteState name: \"one\"");
  CHECK(requests[1] == "DeleteState name: \"two\"");
}

TEST_CASE("progress is for terminals, and ids alone are printed") {
  FakeServer server;
  const TemporaryDirectory directory;
  const std::string path = (directory.path() / "snapshot").string();
  const auto made = run_on(server, {"session", "snapshot", "abc", "--out", path});
  const auto restored = run_on(server, {"session", "restore", path});
  CHECK(made.err.empty());
  CHECK(restored.err.empty());
}

}  // namespace
}  // namespace lintel::testing
