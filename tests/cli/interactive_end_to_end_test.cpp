// SPDX-License-Identifier: Apache-2.0
// `lintel generate --interactive` against a server, from a pipe and in a terminal.
#include <signal.h>

#include <sstream>

#include "tests/cli/processes.h"
#include "tests/cli/terminal_process.h"
#include "tests/support/catch.h"
#include "tests/support/eventually.h"

namespace lintel::testing {
namespace {

struct TokensServer : ServerProcess {
  // Until Ctrl-C arrives the tiny model may produce more tokens than a history has by default.
  TokensServer()
      : ServerProcess({TinyModel::kTokens},
                      {"--max-new-tokens", "1000000000", "--session-history-tokens", "1000000"}) {}

  // Types lines through a pipe. Returns what came, a line a turn.
  Result type(const std::string& lines, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"generate", "--interactive"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    std::string words;
    for (const std::string& word : command(arguments)) words += " '" + word + "'";
    Process process({"/bin/sh", "-c", "exec" + words + " <'" + write("lines", lines) + "'"});
    const int code = process.wait();
    return {code, process.out(), process.err()};
  }
  std::vector<std::string> turns(const std::string& lines,
                                 const std::vector<std::string>& more = {}) const {
    const Result result = type(lines, more);
    INFO(result.err);
    REQUIRE(result.code == 0);
    std::istringstream in(result.out);
    std::vector<std::string> turns;
    for (std::string line; std::getline(in, line);) turns.push_back(line);
    return turns;
  }
  std::string new_session() const {
    const Result created = lintel({"session", "create"});
    REQUIRE(created.code == 0);
    return created.out.substr(0, created.out.size() - 1);
  }
  nlohmann::json session(const std::string& id) const {
    return lintel({"session", "get", id, "--json"}).json();
  }
  std::size_t num_sessions() const { return lintel({"session", "list", "--json"}).json().size(); }
};

const std::vector<std::string> kShort = {"--max-new-tokens", "6", "--seed", "9"};

TEST_CASE("turns of an interactive session are those of a session that is continued") {
  const TokensServer server;
  const auto turns = server.turns("3,1,4\n\n7\n", kShort);
  REQUIRE(turns.size() == 3);
  const std::string id = server.new_session();
  const auto go_on = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"session", "continue", id};
    arguments.insert(arguments.end(), kShort.begin(), kShort.end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    return server.lintel(arguments).out;
  };
  CHECK(turns[0] + "\n" == go_on({"--prompt-tokens", "3,1,4"}));
  CHECK(turns[1] + "\n" == go_on({}));
  CHECK(turns[2] + "\n" == go_on({"--prompt-tokens", "7"}));
  // Its own sessions are deleted.
  CHECK(server.num_sessions() == 1);
}

TEST_CASE("turns are taken back, repeated, and continued in copies") {
  const TokensServer server;
  const std::string id = server.new_session();
  std::vector<std::string> flags = kShort;
  flags.insert(flags.end(), {"--session", id});
  const auto turns = server.turns(
      "3,1,4\n7\n/rewind\n7\n/rewind 2\n3,1,4\n/fork\n7\n/session " + id + "\n7\n/rewind @9\n7\n",
      flags);
  REQUIRE(turns.size() == 7);
  CHECK(turns[2] == turns[1]);
  CHECK(turns[3] == turns[0]);
  CHECK(turns[4] == turns[1]);
  CHECK(turns[5] == turns[1]);
  CHECK(turns[6] == turns[1]);
  CHECK(server.session(id)["position"] == 9 + 7);
  CHECK(server.num_sessions() == 1);  // the copy is deleted, and the one that was named is not
}

TEST_CASE("seeds and temperatures hold until they are changed") {
  const TokensServer server;
  const auto turns = server.turns(
      "3,1,4\n/rewind\n/seed 10\n3,1,4\n/rewind\n/seed 9\n3,1,4\n/rewind\n/temperature 0\n3,1,4\n"
      "/rewind\n/seed 10\n3,1,4\n",
      kShort);
  REQUIRE(turns.size() == 5);
  CHECK(turns[1] != turns[0]);
  CHECK(turns[2] == turns[0]);
  CHECK(turns[4] == turns[3]);  // the most likely tokens, for any seed
}

TEST_CASE("a saved snapshot continues as the session would have") {
  const TokensServer server;
  const std::string file = server.path("kept.snapshot");
  const auto turns = server.turns("3,1,4\n/save " + file + "\n7\n", kShort);
  const Result restored = server.lintel({"session", "restore", file});
  REQUIRE(restored.code == 0);
  const std::string id = restored.out.substr(0, restored.out.size() - 1);
  std::vector<std::string> flags = kShort;
  flags.insert(flags.end(), {"--session", id});
  CHECK(server.turns("7\n", flags) == std::vector<std::string>{turns[1]});
}

TEST_CASE("a detached session can be continued") {
  const TokensServer server;
  std::vector<std::string> flags = kShort;
  const Result left = server.type("3,1,4\n/detach\nnever read\n", flags);
  REQUIRE(left.code == 0);
  const std::string before = "--session ";
  const std::size_t at = left.err.find(before) + before.size();
  const std::string id = left.err.substr(at, left.err.find('`', at) - at);
  CHECK(server.session(id)["position"] == 9);
  flags.insert(flags.end(), {"--session", id});
  CHECK(server.turns("7\n", flags)[0] == server.turns("3,1,4\n7\n", kShort)[1]);
}

TEST_CASE("in a terminal Ctrl-C stops the model, and the program continues") {
  const TokensServer server;
  TerminalProcess terminal(server.command(
      {"generate", "--interactive", "--max-new-tokens", "1000000000", "--seed", "9", "--quiet"}));
  terminal.read_until(">>> ");
  terminal.type("3,1,4\r");
  terminal.read_until(",4\r\n");
  terminal.read_until(",");  // the first tokens
  terminal.type("\x03");
  terminal.read_until("stopped at position ");
  const int position = std::stoi(terminal.read_until("\n"));
  CHECK(position > 3);
  terminal.read_until(">>> ");
  terminal.type("/session\r");
  CHECK_THAT(terminal.read_until(">>> "),
             Catch::Contains("at position " + std::to_string(position)));
  terminal.type("/rewind\r");
  CHECK_THAT(terminal.read_until(">>> "), Catch::Contains("at position 0"));
  // Once more, out of the history: /rewind, /session, 3,1,4.
  terminal.type("\x1b[A\x1b[A\x1b[A\r");
  terminal.read_until("3,1,4");
  terminal.read_until("\n");
  terminal.read_until(",");
  terminal.type("\x03");
  terminal.read_until("stopped at position ");
  terminal.read_until(">>> ");
  terminal.type("\x04");
  CHECK(terminal.wait() == 0);
  CHECK(server.num_sessions() == 0);
}

TEST_CASE("in a terminal a line is edited, and Ctrl-C clears it") {
  const TokensServer server;
  TerminalProcess terminal(server.command({"generate", "--interactive", "--seed", "9"}));
  CHECK_THAT(terminal.read_until(">>> "), Catch::Contains("/help says what can be typed"));
  terminal.type("nonsense\x03/sessiom\x7fn\r");
  CHECK_THAT(terminal.read_until("position 0"), Catch::Contains("lintel: session "));
  terminal.read_until(">>> ");
  terminal.type("/temperaturx 3\x1b[D\x1b[D\x1b[D\x1b[3~e\r");  // mended in its middle
  terminal.read_until(">>> ");
  terminal.type("/temperature \u00fc\r");  // characters of several bytes are one
  CHECK_THAT(terminal.read_until(">>> "), Catch::Contains("/temperature '\u00fc'"));
  terminal.type("/quit\r");
  CHECK(terminal.wait() == 0);
}

TEST_CASE("signals that end programs end an interactive one, while it waits and while it streams") {
  const TokensServer server;
  const std::string id = server.new_session();
  const bool streams = GENERATE(false, true);
  TerminalProcess terminal(
      server.command({"generate", "--interactive", "--max-new-tokens", "1000000000", "--seed", "9",
                      "--session", id, "--quiet"}));
  terminal.read_until(">>> ");
  if (streams) {
    terminal.type("3,1,4\r");
    terminal.read_until(",4\r\n");
    terminal.read_until(",");
  }
  terminal.send(SIGTERM);
  CHECK(terminal.wait() == 128 + SIGTERM);
  REQUIRE(eventually([&] { return server.session(id)["busy"] == false; }));
  CHECK(server.session(id)["position"].get<int>() >= (streams ? 4 : 0));
}

}  // namespace
}  // namespace lintel::testing
