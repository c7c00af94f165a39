// SPDX-License-Identifier: Apache-2.0
// Calls on sessions that outlive the server: repeated where they were cut off, each position once.
#include "client/lib/repeat.h"

#include <set>

#include "tests/client/support/detailed_status.h"
#include "tests/client/support/fake_server.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint32_t kValues = 6;

v1::GenerateRequest call_in_session() {
  v1::GenerateRequest request;
  request.set_session_id("session-0");
  *request.mutable_prompt() = token_values(std::vector<std::int32_t>{0, 7});
  request.set_max_new_tokens(kValues);
  request.set_log2_probs(true);
  request.set_top_log2_probs(1);
  return request;
}

struct DurableServer : FakeServer {
  DurableServer() { session.set_durability(v1::DURABILITY_INPUT); }
};

// The part of a call that its caller saw.
struct Seen {
  std::vector<std::int64_t> positions;
  std::vector<std::int32_t> tokens;
  std::vector<float> log2_probs;
  int tops = 0, finishes = 0, pauses = 0;
  std::uint64_t seed = 0;
  std::optional<CallError> error;
};

Seen generate(const Client& client, const v1::GenerateRequest& request,
              const std::function<void(const Seen&)>& on_value = nullptr,
              Client::Repeat repeat = {.patience = seconds(20)}) {
  Seen seen;
  repeat.on_pause = [&](const Client::Pause&) { ++seen.pauses; };
  try {
    client.generate(
        request,
        [&](const v1::Chunk& chunk) {
          for (int i = 0; i < chunk.tokens_size(); ++i) {
            seen.positions.push_back(chunk.first_position() + i);
            seen.tokens.push_back(chunk.tokens(i));
            seen.log2_probs.push_back(chunk.log2_probs(i));
          }
          seen.tops += chunk.top_size();
          if (on_value) on_value(seen);
        },
        [&](const v1::SampleFinish& finish) {
          ++seen.finishes;
          seen.seed = finish.seed();
        },
        repeat);
  } catch (const CallError& error) {
    seen.error = error;
  }
  return seen;
}

void check_whole(const Seen& seen) {
  INFO((seen.error ? seen.error->what() : "no error"));
  CHECK_FALSE(seen.error);
  CHECK(seen.finishes == 1);
  CHECK(seen.tops == kValues);
  REQUIRE(seen.positions.size() == kValues);
  for (std::uint32_t i = 0; i < kValues; ++i) {
    CHECK(seen.positions[i] == 2 + i);
    CHECK(seen.tokens[i] == fake_token(seen.seed, 2 + i));
    CHECK(seen.log2_probs[i] == fake_log2_prob(seen.seed, 2 + i));
  }
}

// All but from_position, which is the caller's progress.
std::set<std::string> distinct(const FakeServer& server) {
  std::set<std::string> requests;
  for (v1::GenerateRequest request : server.generate_requests()) {
    request.clear_from_position();
    requests.insert(request.ShortDebugString());
  }
  return requests;
}

TEST_CASE("a call that is killed at any token is repeated, and each position comes once") {
  const auto killed_at = GENERATE(range<std::size_t>(1, kValues + 1));
  DurableServer server;
  server.hang = true;
  server.values_before_hanging = static_cast<int>(killed_at);
  const Seen seen = generate(server.client(), call_in_session(), [&](const Seen& so_far) {
    if (so_far.positions.size() != killed_at || !server.hang) return;
    server.hang = false;
    server.restart();
  });
  check_whole(seen);
  const auto requests = server.generate_requests();
  REQUIRE(requests.size() == 2);
  CHECK(requests[0].from_position() == 0);
  CHECK(requests[1].from_position() == static_cast<std::int64_t>(2 + killed_at));
  CHECK(requests[0].call_id().size() == 32);
  CHECK(requests[0].sampling().has_seed());
  CHECK(distinct(server).size() == 1);
}

TEST_CASE("a call that its caller named keeps its name and its lack of a seed") {
  DurableServer server;
  v1::GenerateRequest request = call_in_session();
  request.set_call_id("mine");
  CHECK_FALSE(generate(server.client(), request).error);
  CHECK(server.generate_requests().at(0).call_id() == "mine");
  CHECK_FALSE(server.generate_requests().at(0).sampling().has_seed());
}

TEST_CASE("a call that is killed at every token is repeated for as long as tokens come") {
  DurableServer server;
  server.hang = true;
  const Seen seen = generate(server.client(), call_in_session(),
                             [&](const Seen& so_far) {
                               server.hang = so_far.positions.size() < kValues;
                               server.restart();
                             },
                             {.patience = seconds(20)});
  check_whole(seen);
  CHECK(server.generate_requests().size() == kValues + 1);
}

TEST_CASE("a call whose end was seen is over, even if the connection is lost") {
  DurableServer server;
  server.hang = true;
  server.end_before_hanging = true;
  server.values_before_hanging = -1;
  const Client client = server.client();
  int finishes = 0;
  client.generate(
      call_in_session(), nullptr,
      [&](const v1::SampleFinish&) {
        ++finishes;
        server.stop();
      },
      Client::Repeat{.patience = seconds(20)});
  CHECK(finishes == 1);
  CHECK(server.generate_requests().size() == 1);
}

TEST_CASE("tokens that were seen already are skipped") {
  SeenPositions seen(0);
  v1::Chunk chunk;
  chunk.set_first_position(4);
  for (const int token : {40, 50, 60}) {
    chunk.add_tokens(token);
    chunk.add_log2_probs(static_cast<float>(-token));
    chunk.add_top()->add_tokens(token);
    chunk.add_token_bytes(std::to_string(token));
  }
  CHECK(seen.new_part(chunk) == &chunk);
  CHECK(seen.new_part(chunk) == nullptr);
  chunk.set_first_position(5);
  const v1::Chunk* part = seen.new_part(chunk);
  REQUIRE(part != nullptr);
  CHECK(part->ShortDebugString() ==
        "first_position: 7 tokens: 60 log2_probs: -60 top { tokens: 60 } token_bytes: \"60\"");
  CHECK(seen.next() == 8);
  chunk.set_first_position(9);
  CHECK_THROWS_AS(seen.new_part(chunk), CallError);
}

TEST_CASE("a repeat waits out transient errors and ends with the reason of others") {
  DurableServer server;
  const grpc::Status lost(grpc::StatusCode::UNAVAILABLE, "store away");
  const grpc::Status held(grpc::StatusCode::ABORTED, "in use");
  const auto full =
      detailed_status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full", "", "", milliseconds(1));
  SECTION("the session is still held by the first try, then there is no room") {
    server.refusals = {lost, held, full};
    const Seen seen = generate(server.client(), call_in_session());
    check_whole(seen);
    CHECK(seen.pauses == 3);
  }
  SECTION("another call holds it at first") {
    server.refusals = {held};
    CHECK(generate(server.client(), call_in_session()).error->code() == held.error_code());
  }
  SECTION("there is no room at first") {
    server.refusals = {full};
    CHECK(generate(server.client(), call_in_session()).error->code() == full.error_code());
  }
  for (const auto code : {grpc::StatusCode::INVALID_ARGUMENT, grpc::StatusCode::DATA_LOSS,
                          grpc::StatusCode::FAILED_PRECONDITION, grpc::StatusCode::NOT_FOUND}) {
    server.refusals = {lost, grpc::Status(code, "no")};
    const Seen seen = generate(server.client(), call_in_session());
    REQUIRE(seen.error);
    CHECK(seen.error->code() == code);
    CHECK(seen.pauses == 1);
  }
}

TEST_CASE("a call that a server cancels on shutdown is repeated") {
  DurableServer server;
  const grpc::Status cancelled(grpc::StatusCode::CANCELLED, "");
  server.refusals = {cancelled, grpc::Status(grpc::StatusCode::ABORTED, "in use"), cancelled};
  const Seen seen = generate(server.client(), call_in_session());
  check_whole(seen);
  CHECK(seen.pauses == 3);
  CHECK(distinct(server).size() == 1);
}

TEST_CASE("a call that its client cancels is not repeated") {
  DurableServer server;
  server.hang = true;
  Cancellation cancellation;
  const Client::Repeat repeat{.patience = seconds(20),
                              .on_pause = [&](const Client::Pause&) { FAIL("it waits"); }};
  try {
    server.client().generate(
        call_in_session(), [&](const v1::Chunk&) { cancellation.cancel(); },
        [](const v1::SampleFinish&) {}, repeat, &cancellation);
    FAIL("it went through");
  } catch (const CallError& error) {
    CHECK(error.code() == grpc::StatusCode::CANCELLED);
  }
  CHECK(server.generate_requests().size() == 1);
}

TEST_CASE("sessions that end with the server and one-shot calls are never repeated") {
  FakeServer server;
  v1::GenerateRequest request = call_in_session();
  SECTION("a session") { server.session.set_durability(v1::DURABILITY_NONE); }
  SECTION("a one-shot call") {
    server.session.set_durability(v1::DURABILITY_TOKEN);
    request.clear_session_id();
  }
  const auto code = GENERATE(grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::CANCELLED);
  server.refusals = {grpc::Status(code, "gone")};
  const Seen seen = generate(server.client(), request);
  REQUIRE(seen.error);
  CHECK(seen.error->code() == code);
  REQUIRE(server.generate_requests().size() == 1);
  CHECK(server.generate_requests()[0].call_id().empty());
}

TEST_CASE("without patience nothing is repeated, and the session is not looked up") {
  DurableServer server;
  server.refusals = {grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone")};
  const Seen seen =
      generate(server.client(), call_in_session(), nullptr, {.patience = milliseconds(0)});
  CHECK(seen.error);
  CHECK(server.session_gets() == 0);
  CHECK(server.generate_requests()[0].call_id().empty());
}

TEST_CASE("the server is asked once whether a session outlives it, unless that is known") {
  DurableServer server;
  const Client client = server.client();
  SECTION("nothing is known") {
    generate(client, call_in_session());
    CHECK(server.session_gets() == 1);
    generate(client, call_in_session());
    CHECK(server.session_gets() == 1);
  }
  SECTION("it was made here") {
    client.create_session("tiny");
    check_whole(generate(client, call_in_session()));
    CHECK(server.session_gets() == 0);
  }
  SECTION("the caller says so") {
    check_whole(generate(client, call_in_session(), nullptr, {.durable = true}));
    v1::GenerateRequest named = call_in_session();
    named.set_call_id("mine");
    check_whole(generate(server.client(), named));
    CHECK(server.generate_requests()[1].call_id() == "mine");
    CHECK(server.session_gets() == 0);
  }
  CHECK(distinct(server).size() == server.generate_requests().size());
}

TEST_CASE("a server that does not come back ends the call with its own error") {
  DurableServer server;
  server.hang = true;
  const auto begin = std::chrono::steady_clock::now();
  const Seen seen = generate(server.client(), call_in_session(),
                             [&](const Seen&) { server.stop(); }, {.patience = milliseconds(500)});
  REQUIRE(seen.error);
  CHECK(seen.error->code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(seen.positions == std::vector<std::int64_t>{2});
  CHECK(seen.pauses >= 2);
  CHECK(std::chrono::steady_clock::now() - begin >= milliseconds(500));
}

TEST_CASE("the deadline and a cancellation end a repeat") {
  DurableServer server;
  server.session.set_id("session-0");
  server.refusals.assign(1000, grpc::Status(grpc::StatusCode::UNAVAILABLE, "away"));
  CHECK(generate(server.client(milliseconds(400)), call_in_session()).error->code() ==
        grpc::StatusCode::DEADLINE_EXCEEDED);
  Cancellation cancellation;
  const Client::Repeat repeat{.patience = seconds(20),
                              .on_pause = [&](const Client::Pause&) { cancellation.cancel(); }};
  try {
    server.client().generate(
        call_in_session(), nullptr, [](const v1::SampleFinish&) {}, repeat, &cancellation);
    FAIL("it went through");
  } catch (const CallError& error) {
    CHECK(error.code() == grpc::StatusCode::CANCELLED);
  }
}

TEST_CASE("an exception of the caller is never taken for a server error") {
  DurableServer server;
  server.hang = true;
  CHECK_THROWS_WITH(
      server.client().generate(
          call_in_session(),
          [](const v1::Chunk&) { throw CallError(grpc::StatusCode::UNAVAILABLE, "the caller's"); },
          [](const v1::SampleFinish&) {}, Client::Repeat{.patience = seconds(20)}),
      "UNAVAILABLE: the caller's");
  CHECK(server.generate_requests().size() == 1);
}

TEST_CASE("pauses double, differ from client to client, and end with patience") {
  const CallError away(grpc::StatusCode::UNAVAILABLE, "away");
  const CallError later(
      detailed_status(grpc::StatusCode::UNAVAILABLE, "away", "", "", milliseconds(900)));
  const auto start = RepeatPauses::Clock::now();
  RepeatPauses pauses(seconds(30));
  std::set<std::int64_t> firsts;
  for (int i = 0; i < 20; ++i) firsts.insert(RepeatPauses(seconds(30)).next(away)->count());
  CHECK(firsts.size() > 5);
  CHECK(*firsts.begin() >= 80);
  CHECK(*firsts.rbegin() <= 120);
  for (const int expected : {100, 200, 400, 800, 1600, 2000, 2000}) {
    const auto pause = pauses.next(away, start);
    CHECK(pause->count() >= expected * 8 / 10);
    CHECK(pause->count() <= expected * 12 / 10);
  }
  CHECK(pauses.left(start + seconds(3)) == seconds(27));
  CHECK(*pauses.next(away, start + milliseconds(29'990)) == milliseconds(10));
  CHECK_FALSE(pauses.next(away, start + seconds(30)));
  pauses.something_came();
  CHECK(*pauses.next(later, start + seconds(30)) == milliseconds(900));
  CHECK(pauses.left(start + seconds(30)) == seconds(30));
}

}  // namespace
}  // namespace lintel::testing
