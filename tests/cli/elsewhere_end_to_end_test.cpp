// A client of two lintel-servers, one after the other on one store: what it prints does not tell.
#include <signal.h>

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "tests/cli/processes.h"

namespace lintel::testing {
namespace {

class TwoAddresses {
 public:
  TwoAddresses() {
    write_random_model(path("tokens"), tiny_config(TinyModel::kTokens), /*seed=*/7);
  }

  std::unique_ptr<Process> serve(const std::string& socket) const {
    auto process = std::make_unique<Process>(std::vector<std::string>{
        LINTEL_SERVER, "--listen", "unix:" + path(socket), "--model", path("tokens"),
        "--session-store", path("store"), "--max-new-tokens", "1000000", "--outbox-tokens", "40",
        "--drain-handover", "0", "--replica-id", socket, "--log-level", "error"});
    REQUIRE(process->read_out_until("\n").rfind("lintel-server ready on ", 0) == 0);
    return process;
  }
  std::vector<std::string> command(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), LINTEL_CLI);
    arguments.insert(arguments.end(),
                     {"--address", "unix:" + path("one") + ",unix:" + path("two")});
    return arguments;
  }
  // What it prints, without the newline.
  std::string lintel(const std::vector<std::string>& arguments) const {
    Process process(command(arguments));
    const int code = process.wait();
    INFO(process.err());
    REQUIRE(code == 0);
    return process.out().substr(0, process.out().find_last_not_of('\n') + 1);
  }

 private:
  std::string path(const std::string& name) const { return (directory_.path() / name).string(); }
  const TemporaryDirectory directory_;
};

std::vector<std::string> to_continue(const std::string& session) {
  return {"session", "continue", session, "--prompt-tokens", "1,2,3", "--max-new-tokens",
          "12000",   "--seed",   "9",     "--retry",         "100",   "--deadline",
          "200"};
}

}  // namespace

TEST_CASE("a session that is continued prints on while its server is killed, or told to end") {
  const int signal = GENERATE(SIGKILL, SIGTERM);
  const TwoAddresses addresses;
  auto server = addresses.serve("one");
  const std::string session = addresses.lintel({"session", "create"});
  const std::string twin = addresses.lintel({"session", "create"});
  Process continued(addresses.command(to_continue(session)));
  continued.read_out_until(",");  // it streams, and waits for us to read on
  server->send(signal);
  CHECK(server->wait() == (signal == SIGKILL ? 128 + SIGKILL : 0));
  CHECK(continued.out().size() < 12000);  // half of it at most
  server = addresses.serve("two");
  const int code = continued.wait();
  INFO(continued.err());
  REQUIRE(code == 0);
  const std::string printed = continued.out().substr(0, continued.out().find_last_not_of('\n') + 1);
  CHECK(printed == addresses.lintel(to_continue(twin)));
  server->send(SIGTERM);
  CHECK(server->wait() == 0);
}

}  // namespace lintel::testing
