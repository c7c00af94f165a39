// SPDX-License-Identifier: Apache-2.0
// How commands end: usage, deadline, Ctrl-C, a reader that goes away.
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/cli/processes.h"
#include "tests/support/catch.h"
#include "tests/support/eventually.h"

namespace lintel::testing {
namespace {

// Endless: more tokens than any test waits for.
const std::vector<std::string> kEndless = {"--prompt-tokens", "3,1,4",    "--max-new-tokens",
                                           "1000000000",      "--format", "tokens"};

struct EndlessServer : ServerProcess {
  EndlessServer() : ServerProcess({TinyModel::kTokens}, {"--max-new-tokens", "1000000000"}) {}

  std::string new_session() const {
    const Result created = lintel({"session", "create"});
    REQUIRE(created.code == 0);
    return created.out.substr(0, created.out.size() - 1);
  }
  std::vector<std::string> endless(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), kEndless.begin(), kEndless.end());
    return command(arguments);
  }
  // A session can be deleted only when nothing uses it: the server has noticed that the client
  // went.
  void check_freed(const std::string& id) const {
    Result deleted;
    for (int i = 0; i < 500; ++i) {
      deleted = lintel({"session", "delete", id});
      if (deleted.code == 0) break;
    }
    INFO(deleted.err);
    CHECK(deleted.code == 0);
  }
};

}  // namespace

TEST_CASE("Ctrl-C cancels the call on the server, and the command dies of it") {
  const EndlessServer server;
  const std::string id = server.new_session();
  Process command(server.endless({"session", "continue", id}));
  command.read_out_until(",");
  CHECK(server.lintel({"session", "get", id, "--json"}).json()["busy"] == true);
  command.send(SIGINT);
  CHECK(command.wait() == 128 + SIGINT);
  CHECK(command.err() == "lintel: cancelled\n");
  server.check_freed(id);
}

TEST_CASE("every command that takes long dies of the signal it gets, and keeps its output") {
  const EndlessServer server;
  const std::string id = server.new_session();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    for (const std::vector<std::string>& line :
         std::vector<std::vector<std::string>>{{"generate"}, {"session", "continue", id}}) {
      INFO(line.front() << " and signal " << signal);
      Process command(server.endless(line));
      command.read_out_until(",");
      command.send(signal);
      CHECK(command.wait() == 128 + signal);
      CHECK_FALSE(command.out().empty());
      if (line.front() == "session") {
        REQUIRE(eventually([&] {
          return server.lintel({"session", "get", id, "--json"}).json()["busy"] == false;
        }));
      }
    }
  }
}

TEST_CASE("a command that does not end at the first signal says that a second one ends it") {
  const EndlessServer server;
  // A reader that is there and does not read.
  const std::string fifo = server.path("unread");
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  const int reader = open(fifo.c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(reader >= 0);
  const int room = fcntl(reader, F_SETPIPE_SZ, 4096);
  std::string words;
  for (const std::string& word : server.endless({"generate", "--tokens-per-message", "1"})) {
    words += " '" + word + "'";
  }
  Process command({"/bin/sh", "-c", "exec" + words + " >'" + fifo + "'"});
  // Full, so that a token that comes, with its comma, does not fit.
  int full = 0;
  REQUIRE(eventually([&] {
    int unread = 0;
    full = ioctl(reader, FIONREAD, &unread) == 0 && unread > room - 3 ? full + 1 : 0;
    return full == 3;
  }));
  command.send(SIGINT);
  CHECK_THAT(command.read_err_until("\n"),
             Catch::Equals("lintel: ending; a second signal ends it at once\n"));
  command.send(SIGINT);
  CHECK(command.wait() == 128 + SIGINT);
  close(reader);
}

TEST_CASE("the server says at the first signal that a second one ends it") {
  ServerProcess server({TinyModel::kTokens});
  CHECK(server.stop() == 0);
  CHECK_THAT(server.err(), Catch::Contains("draining for at most") &&
                               Catch::Contains("a second signal ends it at once"));
}

TEST_CASE("a signal that is ignored, as nohup has it, stays so") {
  const EndlessServer server;
  std::string words;
  for (const std::string& word : server.endless({"generate", "--time-limit", "1"})) {
    words += " '" + word + "'";
  }
  Process command({"/bin/sh", "-c", "trap '' HUP; exec" + words});
  command.read_out_until(",");
  command.send(SIGHUP);
  CHECK(command.wait() == 0);
}

TEST_CASE("a closed standard output ends the command quietly and frees the server") {
  const EndlessServer server;
  const std::string id = server.new_session();
  Process command(server.endless({"session", "continue", id}));
  command.read_out_until(",");
  command.close_out();
  CHECK(command.wait() == 0);
  CHECK(command.err().empty());
  server.check_freed(id);
}

TEST_CASE("a deadline fails the call, a time limit only ends it") {
  const EndlessServer server;
  Process late(server.endless({"generate", "--deadline", "0.2"}));
  CHECK(late.wait() == 1);
  CHECK_THAT(late.err(), Catch::Contains("DEADLINE_EXCEEDED"));
  CHECK_FALSE(late.out().empty());  // output from before it is kept

  const Result cut =
      server.lintel({"generate", "--prompt-tokens", "3", "--max-new-tokens", "1000000000",
                     "--deadline", "1", "--samples", "2", "--format", "jsonl"});
  CHECK(cut.code == 1);
  CHECK_THAT(cut.err, Catch::Contains("DEADLINE_EXCEEDED"));
  REQUIRE_FALSE(cut.lines().empty());
  CHECK(cut.lines()[0]["finish_reason"] == "deadline");
  CHECK_FALSE(cut.lines()[0]["tokens"].empty());

  const Result limited = server.lintel({"generate", "--prompt-tokens", "3", "--max-new-tokens",
                                        "1000000000", "--time-limit", "0.1", "--format", "jsonl"});
  INFO(limited.err);
  REQUIRE(limited.code == 0);
  REQUIRE(limited.lines().size() == 1);
  CHECK(limited.lines()[0]["finish_reason"] == "deadline");
  CHECK_THAT(limited.err, Catch::Contains("lintel: the time limit of 0.1 s ended it after "));
}

TEST_CASE("where several models are loaded, commands without --model name the flag") {
  const ServerProcess server({TinyModel::kImage, TinyModel::kTokens});
  for (const std::vector<std::string>& line : std::vector<std::vector<std::string>>{
           {"generate"}, {"generate", "--format", "jsonl"}, {"session", "create"}}) {
    const Result result = server.lintel(line);
    CHECK(result.code == 1);
    CHECK_THAT(result.err,
               Catch::Contains(" --model: several models are loaded, name one: image, tokens"));
  }
}

TEST_CASE("usage errors exit with 2 and refused calls with 1") {
  const ServerProcess server({TinyModel::kImage});
  CHECK(server.lintel({"generate", "--seed", "-1"}).code == 2);
  CHECK(server.lintel({"complete"}).code == 2);
  const Result refused =
      server.lintel({"generate", "--prompt-tokens", "0", "--top-k", "3", "--format", "jsonl"});
  CHECK(refused.code == 1);
  CHECK(refused.out.empty());
  CHECK_THAT(refused.err, Catch::Contains("--top-k"));
}

}  // namespace lintel::testing
