// SPDX-License-Identifier: Apache-2.0
// Several servers that share one Redis server: sessions continue at every one of them.
#include <chrono>
#include <future>
#include <set>

#include "tests/server/sessions/shared_storage/shared_servers.h"
#include "tests/server/support/metrics_page.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Catch::Contains;
using Code = grpc::StatusCode;

std::int64_t get_position(Server& server, const std::string& id) {
  v1::GetSessionRequest request;
  request.set_id(id);
  v1::Session session;
  grpc::ClientContext context;
  server.sessions->Get(&context, request, &session);
  return session.position();
}

// Servers in this process, each with its own memory.
struct Fleet {
  TestServer& add(
      const std::string& replica,
      const std::function<void(ServerOptions&)>& change = [](ServerOptions&) {}) {
    ServerOptions options = test_options();
    options.durable.store = url_of(redis);
    options.replica_id = replica;
    change(options);
    servers.push_back(
        std::make_unique<TestServer>(std::vector<std::string>{"tokens"}, options, clock));
    return *servers.back();
  }

  RedisServer redis;
  SteadyClock clock;
  std::vector<std::unique_ptr<TestServer>> servers;
};

TEST_CASE("a session continues at every server, with the tokens of one server") {
  Fleet fleet;
  TestServer& a = fleet.add("a");
  TestServer& b = fleet.add("b");
  TestServer alone({"tokens"});
  const v1::Durability level =
      GENERATE(v1::DURABILITY_CALL, v1::DURABILITY_INPUT, v1::DURABILITY_TOKEN);
  const v1::Session twin = create_session(alone, "tokens");
  const v1::Session session = created(a, level);
  for (int i = 0; i < 6; ++i) {
    CAPTURE(level, i);
    TestServer& here = i % 3 == 0 ? a : b;  // also twice at the same one
    const Sample expected = go_on(alone, twin.id(), 7, {i, 3}, static_cast<std::uint64_t>(i));
    const Sample sample = go_on(here, session.id(), 7, {i, 3}, static_cast<std::uint64_t>(i));
    CHECK(sample.tokens == expected.tokens);
    CHECK(sample.log2_probs == expected.log2_probs);
    for (TestServer* server : {&a, &b}) {
      const v1::Session found = get_session(*server, session.id());
      CHECK(found.position() == get_session(alone, twin.id()).position());
      CHECK(found.digest() == get_session(alone, twin.id()).digest());
    }
  }
  // A session that one removes is gone for the other, too.
  v1::DeleteSessionRequest remove;
  remove.set_id(session.id());
  google::protobuf::Empty removed;
  grpc::ClientContext context;
  REQUIRE(b.sessions->Delete(&context, remove, &removed).ok());
  CHECK(generate(a, call_on(session.id(), "", {1}, 1)).status.error_code() == Code::NOT_FOUND);
}

TEST_CASE("Redis gone in mid-call: refused as a store that is away, not as a session in use") {
  Fleet fleet;
  TestServer& a = fleet.add(
      "a", [](ServerOptions& options) { options.shared.lease_ms = std::chrono::seconds(2); });
  const v1::Session session = created(a, v1::DURABILITY_TOKEN);
  const v1::GenerateRequest request = call_on(session.id(), "long", {1}, 100'000);
  grpc::ClientContext context;
  const auto reader = a.generation->Generate(&context, request);
  v1::GenerateResponse message;
  REQUIRE(reader->Read(&message));
  fleet.redis.kill();
  const auto began = std::chrono::steady_clock::now();
  std::set<std::string> errors;
  const auto ask = [&](const v1::GenerateRequest& each) {
    const grpc::Status status = generate(a, each).status;
    errors.insert(std::to_string(status.error_code()) + " " + status.error_message());
    CHECK(status.error_code() == Code::UNAVAILABLE);
    CHECK_THAT(status.error_message(), Contains("the session store is busy or away"));
  };
  while (reader->Read(&message)) {
  }
  const grpc::Status ended = reader->Finish();
  CHECK(ended.error_code() == Code::UNAVAILABLE);
  CHECK_THAT(ended.error_message(), Contains("the session store is busy or away"));
  // Its client repeats it at once, others ask for the session, too.
  while (std::chrono::steady_clock::now() - began < std::chrono::seconds(4)) {
    ask(request);
    ask(call_on(session.id(), "other", {1}, 1));
    v1::DeleteSessionRequest remove;
    remove.set_id(session.id());
    google::protobuf::Empty removed;
    grpc::ClientContext deleting;
    CHECK(a.sessions->Delete(&deleting, remove, &removed).error_code() == Code::UNAVAILABLE);
  }
  for (const std::string& each : errors) WARN(each);
  fleet.redis.start();
  CHECK(eventually([&] {
    return generate(a, call_on(session.id(), "", {1}, 1)).status.ok() ||
           generate(a, call_on(session.id(), "long", {1}, 10)).status.error_code() !=
               Code::UNAVAILABLE;
  }));
}

TEST_CASE(
    "a call on a session that another server runs is refused with the holder and the time left") {
  Fleet fleet;
  TestServer& a = fleet.add("a");
  TestServer& b = fleet.add(
      "b", [](ServerOptions& options) { options.monitoring = with_metrics().monitoring; });
  const v1::Session session = created(a, v1::DURABILITY_INPUT);
  grpc::ClientContext context;
  v1::GenerateRequest request = call_on(session.id(), "long", {1}, 100'000);
  request.set_max_tokens_per_message(1);
  const auto reader = a.generation->Generate(&context, request);
  v1::GenerateResponse message;
  REQUIRE(reader->Read(&message));
  const Generated refused = generate(b, call_on(session.id(), "other", {1}, 1));
  CHECK(refused.status.error_code() == Code::ABORTED);
  CHECK(reason_of(refused.status) == "SESSION_HELD");
  CHECK_THAT(refused.status.error_message(), Contains("held by server a for at most "));
  const auto info = detail_of<google::rpc::ErrorInfo>(refused.status);
  CHECK(info->metadata().at("holder") == "a");
  auto counted = values(b.server());
  CHECK(counted.at(R"(lintel_session_claims_total{outcome="granted"})") == 0);
  CHECK(counted.at("lintel_session_fenced_total") == 0);
  CHECK(counted.at("lintel_session_store_clocks_differ") == 0);
  const auto retry = detail_of<google::rpc::RetryInfo>(refused.status);
  REQUIRE(retry);
  CHECK(retry->retry_delay().seconds() <= 1);  // it may be released sooner than it must
  context.TryCancel();
  while (reader->Read(&message)) {
  }
  reader->Finish();
  // Its tokens are stored, and the claim is back: the call continues at the other.
  Generated repeated;
  REQUIRE(eventually([&] {
    v1::GenerateRequest rest = call_on(session.id(), "long", {1}, 100'000);
    rest.set_max_tokens_per_message(1);
    grpc::ClientContext again;
    const auto more = b.generation->Generate(&again, rest);
    const bool is_there = more->Read(&message);
    again.TryCancel();
    while (more->Read(&message)) {
    }
    more->Finish();
    return is_there;
  }));
  counted = values(b.server());
  CHECK(counted.at(R"(lintel_session_claims_total{outcome="granted"})") >= 1);
}

TEST_CASE("a server that is killed in a call is taken over, at once by its successor of its name") {
  const bool same_name = GENERATE(true, false);
  CAPTURE(same_name);
  RedisServer redis;
  Files files;
  const auto flags = [&](const std::string& replica) {
    return flags_with(files, url_of(redis),
                      {"--replica-id", replica, "--session-lease", "3s", "--log-level", "error"});
  };
  KilledCall killed;
  {
    Server server(flags("a"));
    killed = kill_in_call(server);
  }
  auto& [session, expected, seen] = killed;
  Server server(flags(same_name ? "a" : "b"));
  const auto at = 24 + static_cast<std::int64_t>(seen.size());
  v1::GenerateRequest rest = call_on(session.id(), "two", {4}, 3000);
  rest.set_from_position(at);
  Generated repeated = server.generate(rest);
  if (!same_name) {
    CHECK(reason_of(repeated.status) == "SESSION_HELD");
    REQUIRE(eventually([&] {
      repeated = server.generate(rest);
      return repeated.status.ok() || reason_of(repeated.status) != "SESSION_HELD";
    }));
  }
  REQUIRE(repeated.status.ok());
  CHECK(repeated.only().first_position == at);
  seen.insert(seen.end(), repeated.only().tokens.begin(), repeated.only().tokens.end());
  CHECK(seen == expected);
}

TEST_CASE("a server whose store is gone delivers no token past its lease, and resumes later") {
  RedisServer redis;
  Files files;
  Server server(flags_with(files, url_of(redis),
                           {"--session-lease", "2s", "--replica-id", "a", "--log-level", "error"}));
  v1::Session session;
  REQUIRE(server.create(v1::DURABILITY_INPUT, &session).ok());
  v1::GenerateRequest request = call_on(session.id(), "one", {4}, 900'000);
  request.set_max_tokens_per_message(1);
  grpc::ClientContext context;
  const auto reader = server.generation->Generate(&context, request);
  v1::GenerateResponse message;
  REQUIRE(reader->Read(&message));
  const auto began = std::chrono::steady_clock::now();
  redis.pause();
  auto last = began;
  while (reader->Read(&message)) last = std::chrono::steady_clock::now();
  const grpc::Status status = reader->Finish();
  const auto took = last - began;
  redis.resume();
  CHECK(status.error_code() == Code::UNAVAILABLE);
  CHECK(took < std::chrono::seconds(2));
  // And then it continues.
  Generated after;
  REQUIRE(eventually([&] {
    v1::GenerateRequest next = call_on(session.id(), "two", {1}, 1);
    next.set_expected_position(get_position(server, session.id()));
    after = server.generate(next);
    UNSCOPED_INFO(after.status.error_message());
    return after.status.ok();
  }));
}

TEST_CASE("a session is not reported as gone while its store is away") {
  Fleet fleet;
  TestServer& a = fleet.add("a");
  TestServer& b = fleet.add("b");
  const v1::Session session = created(a, v1::DURABILITY_INPUT);
  fleet.redis.pause();
  v1::GetSessionRequest request;
  request.set_id(session.id());
  // At once, as each waits for the store.
  const auto get = [&](TestServer& server) {
    return std::async(std::launch::async, [&] {
      v1::Session found;
      grpc::ClientContext context;
      return server.sessions->Get(&context, request, &found);
    });
  };
  std::future<grpc::Status> answers[] = {get(a), get(b)};
  for (std::future<grpc::Status>& answer : answers) {
    const grpc::Status status = answer.get();
    CAPTURE(&answer == &answers[0], status.error_message());
    CHECK((status.ok() || status.error_code() == Code::UNAVAILABLE));
  }
  fleet.redis.resume();
}

TEST_CASE("a store that cannot be used keeps the server from beginning, and says why",
          "[threat-68]") {
  Files files;
  const auto refusal = [&](const std::string& store, const std::vector<std::string>& more = {}) {
    Process server(flags_with(files, store, more));
    CHECK(server.wait() != 0);
    return server.err();
  };
  RedisServer::Options evicting;
  evicting.arguments = {"--maxmemory", "20mb", "--maxmemory-policy", "allkeys-lru"};
  const RedisServer redis(evicting);
  CHECK_THAT(refusal(url_of(redis)),
             Contains("maxmemory-policy is allkeys-lru") && Contains("noeviction is needed"));
  CHECK_THAT(refusal("redis://127.0.0.1:1"), Contains("127.0.0.1:1") && Contains("refused"));
  RedisServer::Options locked;
  locked.arguments = {"--requirepass", "secret"};
  locked.greeting = {"AUTH", "secret"};
  const RedisServer closed(locked);
  CHECK_THAT(refusal(url_of(closed)), Contains("NOAUTH"));
  CHECK_THAT(refusal(url_of(closed), {"--session-store-credentials", "/nowhere"}),
             Contains("/nowhere: cannot be read"));
}

}  // namespace
}  // namespace lintel::testing
