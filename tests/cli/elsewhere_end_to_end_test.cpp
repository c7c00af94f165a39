// SPDX-License-Identifier: Apache-2.0
// A client of two lintel-servers, one after the other on one store: what it prints does not tell.
#include <signal.h>

#include <string>
#include <vector>

#include "tests/cli/stored_servers.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

std::vector<std::string> to_continue(const std::string& session) {
  return {"session", "continue", session, "--prompt-tokens", "1,2,3", "--max-new-tokens",
          "12000",   "--seed",   "9",     "--retry",         "100",   "--deadline",
          "200"};
}

}  // namespace

TEST_CASE("a continued session keeps printing while its server is killed or shut down") {
  const int signal = GENERATE(SIGKILL, SIGTERM);
  const StoredServers addresses({"one", "two"}, {"--outbox-tokens", "40", "--drain-handover", "0"});
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
