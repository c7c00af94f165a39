// SPDX-License-Identifier: Apache-2.0
// The server's periodic duties, on a clock of the test's.
#include "server/app/maintenance.h"

#include <stdexcept>

#include "server/core/threads.h"
#include "tests/server/support/service_fixture.h"
#include "tests/server/support/token_file.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct Fixture {
  // Looks every interval until `time` has passed.
  void pass(milliseconds time) {
    for (; time > milliseconds(0); time -= Maintenance::kInterval) {
      clock.advance(Maintenance::kInterval);
      maintenance.look();
    }
  }

  ManualClock clock;
  SessionManager store{{.session_memory_bytes = 1u << 26, .idle_timeout = seconds(20)}, clock};
  ActiveCalls calls;
  RequestCounters counters;
  const TokenFile file;
  BearerTokens tokens{file.path};
  int released = 0;
  Maintenance maintenance{{.tokens = &tokens, .store = store, .calls = calls, .counters = counters},
                          clock,
                          [this] { ++released; }};
};

TEST_CASE("exception in a duty of maintenance: counted, and the others are done", "[threat-66]") {
  Fixture f;
  ThreadFailures& failures = ThreadFailures::of_process();
  const std::uint64_t before = failures.count(ServerThread::kMaintenance);
  int tries = 0;
  Maintenance maintenance({.store = f.store, .calls = f.calls, .counters = f.counters}, f.clock,
                          [&] {
                            ++tries;
                            throw std::runtime_error("of the test");
                          });
  f.store.create("tokens", tiny_models({"tokens"}).at("tokens"), 10, "");
  f.clock.advance(seconds(26));
  maintenance.look();
  CHECK(tries == 1);
  CHECK(failures.count(ServerThread::kMaintenance) == before + 1);
  CHECK(f.store.num_sessions() == 0);
}

TEST_CASE("idle sessions are evicted within a quarter of the idle timeout after it") {
  Fixture f;
  f.store.create("tokens", tiny_models({"tokens"}).at("tokens"), 10, "");
  REQUIRE(f.store.num_sessions() == 1);
  f.pass(seconds(20) - milliseconds(250));
  CHECK(f.store.num_sessions() == 1);
  f.pass(seconds(5) + milliseconds(250));
  CHECK(f.store.num_sessions() == 0);
}

TEST_CASE(
    "free memory is released a second after the last call, then every ten seconds without one") {
  Fixture f;
  f.pass(milliseconds(750));
  CHECK(f.released == 0);
  f.pass(milliseconds(250));
  CHECK(f.released == 1);
  f.pass(seconds(10) - milliseconds(250));
  CHECK(f.released == 1);
  f.pass(milliseconds(250));
  CHECK(f.released == 2);
  // A call that has ended meanwhile, and one that runs.
  f.counters.count(Method::kGenerate, 0);
  f.pass(seconds(1));
  CHECK(f.released == 2);
  f.pass(milliseconds(250));
  CHECK(f.released == 3);
  REQUIRE(f.calls.enter());
  f.pass(seconds(60));
  CHECK(f.released == 3);
  f.calls.leave();
  f.pass(seconds(1));
  CHECK(f.released == 4);
}

TEST_CASE("a changed token file is read at the next look") {
  Fixture f;
  REQUIRE(f.tokens.find("token-alice"));
  f.file.write(token_line("bob", "generate"));
  CHECK(f.tokens.find("token-alice"));
  f.maintenance.look();
  CHECK_FALSE(f.tokens.find("token-alice"));
  CHECK(f.tokens.find("token-bob"));
}

TEST_CASE("stop ends the maintenance thread in the middle of its wait") {
  Fixture f;
  f.maintenance.start();
  f.maintenance.stop();
  f.maintenance.stop();
}

}  // namespace
}  // namespace lintel::testing
