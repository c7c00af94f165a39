// SPDX-License-Identifier: Apache-2.0
// Servers of one store whose wall clocks are days apart.
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/server/redis_lab/tcp_proxy.h"
#include "tests/server/sessions/shared_storage/shared_servers.h"
#include "tests/server/support/metrics_page.h"
#include "tests/support/catch.h"
#include "tests/support/eventually.h"

namespace lintel::testing {
namespace {

using namespace std::chrono_literals;
using Code = grpc::StatusCode;

// A machine's clock that is set wrongly.
class WrongClock : public SteadyClock {
 public:
  explicit WrongClock(std::chrono::hours off) : off_(off) {}
  std::chrono::system_clock::time_point wall_time() const override {
    return std::chrono::system_clock::now() + off_;
  }

 private:
  const std::chrono::hours off_;
};

constexpr const char* kDiffer = "lintel_session_store_clocks_differ";

// Servers with the Redis server's clock, one a day behind, one a day ahead; the first one's way to
// the store can be cut.
struct WrongFleet {
  WrongFleet() : proxy(redis.endpoint()) {
    add("right", proxy.endpoint(), right);
    add("behind", redis.endpoint(), behind);
    add("ahead", redis.endpoint(), ahead);
  }
  void add(const std::string& name, const Endpoint& store, const Clock& clock) {
    ServerOptions options = with_metrics();
    options.durable.store = url_of(store);
    options.shared.lease_ms = 2s;
    options.replica_id = name;
    servers.push_back(
        std::make_unique<TestServer>(std::vector<std::string>{"tokens"}, options, clock));
  }
  TestServer& operator[](std::size_t i) { return *servers[i]; }

  RedisServer redis;
  TcpProxy proxy;
  WrongClock right{0h}, behind{-24h}, ahead{24h};
  std::vector<std::unique_ptr<TestServer>> servers;
};

std::optional<Code> failure_of_get(TestServer& server, const std::string& id) {
  v1::GetSessionRequest request;
  request.set_id(id);
  v1::Session session;
  grpc::ClientContext context;
  const grpc::Status status = server.sessions->Get(&context, request, &session);
  if (status.ok()) return std::nullopt;
  return status.error_code();
}

TEST_CASE(
    "a session continues across servers whose clocks are days apart, with the tokens of one "
    "server") {
  WrongFleet fleet;
  TestServer alone({"tokens"});
  const v1::Session twin = create_session(alone, "tokens");
  const v1::Session session = created(fleet[1], v1::DURABILITY_TOKEN);
  for (std::size_t i = 0; i < 6; ++i) {
    const Sample expected = go_on(alone, twin.id(), 9, {3}, i);
    CHECK(go_on(fleet[i % 3], session.id(), 9, {3}, i).tokens == expected.tokens);
  }
  for (const auto& server : fleet.servers) {
    CHECK(get_session(*server, session.id()).digest() == get_session(alone, twin.id()).digest());
  }
}

TEST_CASE("a lease ends by the store's clock alone, however wrong those of servers are",
          "[threat-69]") {
  WrongFleet fleet;
  const v1::Session session = created(fleet[0], v1::DURABILITY_INPUT);
  v1::GenerateRequest request = call_on(session.id(), "one", {4}, 900'000);
  grpc::ClientContext context;
  const auto reader = fleet[0].generation->Generate(&context, request);
  v1::GenerateResponse message;
  REQUIRE(reader->Read(&message));
  Generated first;
  take_message(message, first);
  for (const std::size_t other : {1U, 2U}) {
    const Generated refused = generate(fleet[other], call_on(session.id(), "other", {1}, 1));
    CHECK(reason_of(refused.status) == "SESSION_HELD");
    const auto retry = detail_of<google::rpc::RetryInfo>(refused.status);
    REQUIRE(retry);
    CHECK(retry->retry_delay().seconds() <= 2);
  }
  const std::size_t next = GENERATE(1U, 2U);
  CAPTURE(next);
  // The call's first tokens from the next server.
  const auto repeated = [&](std::size_t count) {
    Generated taken;
    grpc::ClientContext again;
    const auto more = fleet[next].generation->Generate(&again, request);
    while (more->Read(&message)) {
      take_message(message, taken);
      if (taken.only().tokens.size() >= count) again.TryCancel();
    }
    taken.status = more->Finish();
    return taken;
  };
  const auto cut = std::chrono::steady_clock::now();
  fleet.proxy.cut();
  REQUIRE(eventually([&] {
    const Generated tried = repeated(1);
    CHECK((!tried.samples.empty() || reason_of(tried.status) == "SESSION_HELD"));
    return !tried.samples.empty();
  }));
  // The lease was renewed a third of it before, or later.
  CHECK(std::chrono::steady_clock::now() - cut > 1s);
  while (reader->Read(&message)) take_message(message, first);
  CHECK(reader->Finish().error_code() == Code::UNAVAILABLE);
  fleet.proxy.heal();
  const std::vector<std::int32_t> shown = first.only().tokens;
  Generated taken;
  REQUIRE(eventually([&] {
    taken = repeated(shown.size());
    return !taken.samples.empty();
  }));
  REQUIRE(taken.only().tokens.size() >= shown.size());
  CHECK(std::equal(shown.begin(), shown.end(), taken.only().tokens.begin()));
}

TEST_CASE("a server with a wrong clock removes no session, and says so", "[threat-69]") {
  WrongFleet fleet;
  const auto make = [&](std::size_t at, int seconds) {
    v1::CreateSessionRequest request;
    request.set_model("tokens");
    request.set_durability(v1::DURABILITY_INPUT);
    if (seconds > 0) request.mutable_expire_after()->set_seconds(seconds);
    v1::Session session;
    grpc::ClientContext context;
    REQUIRE(fleet[at].sessions->Create(&context, request, &session).ok());
    return session.id();
  };
  const std::string plain = make(2, 0), hour = make(0, 3600), soon = make(0, 1);
  for (const std::size_t wrong : {1U, 2U}) {
    CHECK(comes_to(fleet[wrong], kDiffer, 1));  // it has looked for what is to be removed
  }
  for (const auto& server : fleet.servers) CHECK_FALSE(failure_of_get(*server, plain));
  CHECK(failure_of_get(fleet[2], hour) == Code::NOT_FOUND);  // for it the hour is over
  CHECK_FALSE(failure_of_get(fleet[1], hour));
  CHECK_FALSE(failure_of_get(fleet[0], hour));
  CHECK_NOTHROW(go_on(fleet[0], hour, 3, {1}));
  // A session that is over is gone where the clock is right; in the store it is until such a server
  // sweeps.
  REQUIRE(eventually([&] { return failure_of_get(fleet[0], soon) == Code::NOT_FOUND; }));
  CHECK_FALSE(failure_of_get(fleet[1], soon));
  CHECK(values(fleet[0].server()).at(kDiffer) == 0);
}

}  // namespace
}  // namespace lintel::testing
