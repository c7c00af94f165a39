// SPDX-License-Identifier: Apache-2.0
// A client of several servers: which it calls, and what it does when that one is gone.
#include "client/lib/channel.h"
#include "client/lib/repeat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "tests/client/support/fake_server.h"
#include "tests/client/support/run_lintel.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A refusal that another server may not repeat.
grpc::Status reasoned(grpc::StatusCode code, const char* reason,
                      std::optional<milliseconds> retry = std::nullopt) {
  google::rpc::Status rich;
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  rich.add_details()->PackFrom(info);
  if (retry) {
    google::rpc::RetryInfo wait;
    wait.mutable_retry_delay()->set_seconds(retry->count() / 1000);
    wait.mutable_retry_delay()->set_nanos(static_cast<int>(retry->count() % 1000 * 1'000'000));
    rich.add_details()->PackFrom(wait);
  }
  return {code, reason, rich.SerializeAsString()};
}

const grpc::Status kEnding(grpc::StatusCode::UNAVAILABLE, "the server is shutting down");
// The status of a server that ends while the call waits for its store.
const grpc::Status kCancelled(grpc::StatusCode::CANCELLED, "");

struct TwoServers {
  TwoServers() {
    for (FakeServer* const server : {&a, &b}) server->session.set_durability(v1::DURABILITY_INPUT);
  }
  Client client(milliseconds retry = seconds(20)) const {
    return Client(
        {.address = a.address() + "," + b.address(), .deadline = seconds(60), .retry = retry});
  }
  FakeServer a, b;
};

v1::GenerateRequest call_in_session() {
  v1::GenerateRequest request;
  request.set_session_id("session-0");
  *request.mutable_prompt() = token_values(std::vector<std::int32_t>{0, 7});
  request.set_max_new_tokens(6);
  return request;
}

// The positions that come, each of which `on_value` receives; pauses are counted.
std::vector<std::int64_t> positions_of(const Client& client, int* pauses = nullptr,
                                       const std::function<void(std::size_t)>& on_value = nullptr) {
  std::vector<std::int64_t> positions;
  int finishes = 0;
  client.generate(
      call_in_session(),
      [&](const v1::Chunk& chunk) {
        for (int i = 0; i < chunk.tokens_size(); ++i) {
          positions.push_back(chunk.first_position() + i);
          if (on_value) on_value(positions.size());
        }
      },
      [&](const v1::SampleFinish&) { ++finishes; },
      Client::Repeat{.on_pause = [&](const Client::Pause&) {
        if (pauses != nullptr) ++*pauses;
      }});
  CHECK(finishes == 1);
  return positions;
}

const std::vector<std::int64_t> kAll = {2, 3, 4, 5, 6, 7};

TEST_CASE("several addresses are split at commas, and each is judged") {
  CHECK(full_addresses("a,b:7") == std::vector<std::string>{"a:50051", "b:7"});
  CHECK(full_addresses("ipv4:///1.2.3.4:5,1.2.3.5:5").size() == 1);  // gRPC's own
  CHECK_THROWS_WITH(full_addresses("a,"), Catch::Contains("expected HOST:PORT"));
  CHECK_THROWS_WITH(full_addresses("a,a:50051"), Catch::Contains("given twice"));
  const CommandResult result = run_lintel({"health", "--address", "127.0.0.1:1,http://a"});
  CHECK(result.code == 2);
  CHECK_THAT(result.err, Catch::Contains("--address"));
}

TEST_CASE("names are resolved, addresses are not") {
  CHECK_FALSE(addresses_of("localhost:7").empty());
  for (const std::string& address : addresses_of("localhost:7")) CHECK(is_local_address(address));
  for (const char* const none : {"127.0.0.1:7", "[::1]:7", "unix:/x", "dns:///a:1"}) {
    CHECK(addresses_of(none).empty());
  }
}

TEST_CASE("a session's key is the one that the server says", "[threat-15]") {
  // SHA-256("abc") = ba7816bf 8f01cfea ...
  CHECK(affinity_key("abc") == "ba7816bf8f01cfea");
}

TEST_CASE("a call that is killed at any token resumes at the other server, without a pause") {
  const auto killed_at = GENERATE(range<std::size_t>(1, 7));
  TwoServers two;
  two.a.hang = true;
  two.a.values_before_hanging = static_cast<int>(killed_at);
  int pauses = 0;
  const Client client = two.client();
  CHECK(positions_of(client, &pauses, [&](std::size_t had) {
          if (had == killed_at) two.a.stop();
        }) == kAll);
  CHECK(pauses == 0);
  REQUIRE(two.b.generate_requests().size() == 1);
  const auto sent = two.b.generate_requests()[0];
  CHECK(sent.from_position() == static_cast<std::int64_t>(2 + killed_at));
  CHECK(sent.call_id() == two.a.generate_requests().at(0).call_id());
  CHECK(sent.sampling().seed() == two.a.generate_requests().at(0).sampling().seed());
  // And there it stays.
  two.a.restart();
  CHECK(positions_of(client) == kAll);
  CHECK(two.a.generate_requests().size() == 1);
}

TEST_CASE(
    "a server that hands a call over, ends, or finds the session held is left for the other") {
  const int why = GENERATE(0, 1, 2, 3);
  const grpc::Status refusal =
      why == 0   ? kEnding
      : why == 1 ? reasoned(grpc::StatusCode::UNAVAILABLE, "CALL_MOVED")
      : why == 2 ? kCancelled
                 : reasoned(grpc::StatusCode::ABORTED, "SESSION_HELD", seconds(600));
  TwoServers two;
  two.a.refusals = {refusal};
  int pauses = 0;
  CHECK(positions_of(two.client(), &pauses) == kAll);
  CHECK(pauses == 0);
  CHECK(two.b.generate_requests().size() == 1);
}

TEST_CASE("a session that is held everywhere is waited for, as long as the servers say") {
  TwoServers two;
  const auto held = reasoned(grpc::StatusCode::ABORTED, "SESSION_HELD", milliseconds(300));
  two.a.refusals = two.b.refusals = {held};
  int pauses = 0;
  const auto start = std::chrono::steady_clock::now();
  CHECK(positions_of(two.client(), &pauses) == kAll);
  CHECK(pauses == 1);
  CHECK(std::chrono::steady_clock::now() - start >= milliseconds(300));
}

TEST_CASE(
    "no server answers: the call ends after its patience with an error that names all of them") {
  TwoServers two;
  two.a.hang = true;
  try {
    positions_of(two.client(milliseconds(300)), nullptr, [&](std::size_t) {
      two.a.stop();
      two.b.stop();
    });
    FAIL("it went through");
  } catch (const CallError& error) {
    CHECK(error.code() == grpc::StatusCode::UNAVAILABLE);
    CHECK(error.unreached() == two.a.address() + ", " + two.b.address());
  }
}

TEST_CASE("an unreachable first server is no failure") {
  TwoServers two;
  two.a.stop();
  const Client client = two.client();
  CHECK(client.get_model().name() == "tiny");
  CHECK(client.create_session("").id() == "session-0");
  v1::GenerateRequest request;
  request.set_max_new_tokens(3);
  CHECK(client.generate(request).at(0).tokens.size() == 3);
  CHECK(positions_of(client) == kAll);
}

TEST_CASE("a call that an ending server refused moves to the other one where that is safe") {
  const bool is_cancelled = GENERATE(false, true);
  const grpc::Status ending = is_cancelled ? kCancelled : kEnding;
  TwoServers two;
  v1::GenerateRequest request;
  request.set_max_new_tokens(3);
  SECTION("a one-shot call, of which nothing came") {
    two.a.refusals = {ending};
    CHECK(two.client().generate(request).at(0).tokens.size() == 3);
  }
  SECTION("a call on a session that a repeat would run twice") {
    for (FakeServer* const server : {&two.a, &two.b}) {
      server->session.set_durability(v1::DURABILITY_NONE);
    }
    two.a.refusals = {ending};
    CHECK_THROWS_AS(two.client().generate(call_in_session()), CallError);
    CHECK(two.b.generate_requests().empty());
  }
  SECTION("creating and reading a session, but not changing one") {
    two.a.failure = ending;
    CHECK(two.client().create_session("").id() == "session-0");
    CHECK(two.client().get_session("session-0").id() == "session-0");
    v1::SaveStateRequest save;
    save.set_session_id("session-0");
    CHECK_THROWS_AS(two.client().save_state(save), CallError);
  }
}

TEST_CASE("a server's error is thrown rather than that the next was unreachable") {
  TwoServers two;
  two.b.stop();
  two.a.failure = kEnding;
  try {
    two.client().get_model("");
    two.client().create_session("");
    FAIL("it went through");
  } catch (const CallError& error) {
    CHECK(error.message() == kEnding.error_message());
  }
}

TEST_CASE("calls that name a session send its key, for balancers", "[threat-15]") {
  FakeServer server;
  const Client client = server.client();
  client.get_session("abc");
  CHECK(server.last_seen().affinity == affinity_key("abc"));
  client.delete_session("abc");
  CHECK(server.last_seen().affinity == affinity_key("abc"));
  v1::GenerateRequest request = call_in_session();
  client.generate(request);
  CHECK(server.last_seen().affinity == affinity_key("session-0"));
  client.get_model();
  CHECK(server.last_seen().affinity.empty());
}

struct Named {
  std::string address;
};
using NamedServers = Servers<Named>;

NamedServers::Shared named(const std::string& address) {
  return std::make_shared<Named>(Named{address});
}

TEST_CASE("a name is replaced by all its addresses once it failed, and tried again after them") {
  int looked_up = 0;
  NamedServers servers({named("lintel:1"), named("other:1")},
                       [&](const Named& server, const std::string& peer) {
                         ++looked_up;
                         CHECK(peer == "ipv4:10.0.0.1:1");
                         std::vector<NamedServers::Shared> found;
                         if (server.address != "lintel:1") return found;
                         return std::vector{named("10.0.0.2:1"), named("10.0.0.1:1")};
                       });
  const auto leave = [&] { return servers.leave(servers.current(), "ipv4:10.0.0.1:1"); };
  CHECK(servers.current()->address == "lintel:1");
  CHECK(servers.leave(servers.current(), ""));  // not reached: gRPC has tried all that it has
  CHECK(looked_up == 0);
  CHECK(servers.current()->address == "other:1");
  CHECK(leave());
  CHECK(servers.current()->address == "lintel:1");
  CHECK(leave());
  CHECK(servers.count() == 3);
  CHECK(servers.current()->address == "10.0.0.2:1");
  CHECK(leave());
  CHECK(servers.current()->address == "10.0.0.1:1");
  CHECK(leave());
  CHECK(servers.current()->address == "other:1");
  CHECK(leave());
  CHECK(servers.current()->address == "lintel:1");
  CHECK(servers.count() == 2);
}

TEST_CASE("calls that fail together leave their server once") {
  NamedServers servers({named("a:1"), named("b:1"), named("c:1")});
  const auto failed = servers.current();
  CHECK(servers.leave(failed, ""));
  CHECK(servers.leave(failed, ""));
  CHECK(servers.current()->address == "b:1");
  NamedServers alone({named("a:1")});
  CHECK_FALSE(alone.leave(alone.current(), ""));
}

}  // namespace
}  // namespace lintel::testing
