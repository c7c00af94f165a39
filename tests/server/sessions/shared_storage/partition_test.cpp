// SPDX-License-Identifier: Apache-2.0
// A server that is cut off from its store while it runs a call, and comes back when another has the
// session.
#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/server/redis_lab/tcp_proxy.h"
#include "tests/server/sessions/shared_storage/shared_servers.h"
#include "tests/support/catch.h"
#include "tests/support/eventually.h"

namespace lintel::testing {
namespace {

using Code = grpc::StatusCode;
using SteadyTime = std::chrono::steady_clock::time_point;

constexpr int kPrompt = 3;
constexpr unsigned kPerMessage = 16;

v1::GenerateRequest endless(const std::string& session) {
  v1::GenerateRequest request = call_on(session, "one", std::vector<int>(kPrompt, 4), 900'000);
  request.set_max_tokens_per_message(kPerMessage);
  return request;
}

// A call that is read token by token.
class Reading {
 public:
  Reading(Server& server, const v1::GenerateRequest& request)
      : reader_(server.generation->Generate(&context_, request)) {}
  ~Reading() { end(); }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

  // False: it is over.
  bool read() {
    if (is_over_) return false;
    v1::GenerateResponse message;
    if (reader_->Read(&message)) {
      take_message(message, got_);
      came_.emplace_back(std::chrono::steady_clock::now(), tokens().size());
      return true;
    }
    is_over_ = true;
    got_.status = reader_->Finish();
    return false;
  }
  void read_to(std::size_t count) {
    while (tokens().size() < count) REQUIRE(read());
  }
  void end() {
    context_.TryCancel();
    while (read()) {
    }
  }
  const std::vector<std::int32_t>& tokens() const {
    static const std::vector<std::int32_t> kNone;
    return got_.samples.empty() ? kNone : got_.only().tokens;
  }
  const Generated& got() const { return got_; }
  // The number of tokens that had come by then.
  std::size_t told_by(SteadyTime time) const {
    const auto behind = std::ranges::upper_bound(came_, time, {}, &Came::first);
    return behind == came_.begin() ? 0 : std::prev(behind)->second;
  }

 private:
  grpc::ClientContext context_;
  Generated got_;
  bool is_over_ = false;
  using Came = std::pair<SteadyTime, std::size_t>;
  std::vector<Came> came_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader_;
};

v1::Session found(Server& server, const std::string& id) {
  v1::GetSessionRequest request;
  request.set_id(id);
  v1::Session session;
  grpc::ClientContext context;
  const grpc::Status status = server.sessions->Get(&context, request, &session);
  INFO(status.error_message());
  REQUIRE(status.ok());
  return session;
}

// Nothing: its server has no store now.
std::optional<std::vector<std::int32_t>> history(Server& server, const std::string& id) {
  v1::ReadHistoryRequest request;
  request.set_id(id);
  grpc::ClientContext context;
  const auto reader = server.sessions->ReadHistory(&context, request);
  std::vector<std::int32_t> tokens;
  v1::Chunk chunk;
  while (reader->Read(&chunk)) {
    tokens.insert(tokens.end(), chunk.tokens().begin(), chunk.tokens().end());
  }
  const grpc::Status status = reader->Finish();
  if (status.error_code() == Code::UNAVAILABLE) return std::nullopt;
  INFO(status.error_message());
  REQUIRE(status.ok());
  return tokens;
}

bool is_prefix(const std::vector<std::int32_t>& begin, const std::vector<std::int32_t>& all) {
  return begin.size() <= all.size() && std::equal(begin.begin(), begin.end(), all.begin());
}

TEST_CASE("a server that is cut off in a call delivers no token that its successor does not",
          "[threat-67]") {
  // Requests may arrive whose answers do not.
  const auto [level, hears_nothing] =
      GENERATE(table<v1::Durability, bool>({{v1::DURABILITY_CALL, false},
                                            {v1::DURABILITY_INPUT, false},
                                            {v1::DURABILITY_INPUT, true},
                                            {v1::DURABILITY_TOKEN, false}}));
  CAPTURE(level, hears_nothing);
  const Files files;
  RedisServer redis;
  TcpProxy proxy(redis.endpoint());
  const auto flags = [&](const std::string& name, const Endpoint& store) {
    return flags_with(files, url_of(store),
                      {"--replica-id", name, "--session-lease", "2s", "--log-level", "error",
                       "--session-history-tokens", "2000000", "--outbox-tokens", "64"});
  };
  Server a(flags("a", proxy.endpoint())), b(flags("b", redis.endpoint()));
  v1::Session session;
  REQUIRE(a.create(level, &session).ok());
  Reading at_a(a, endless(session.id()));
  at_a.read_to(200);
  if (hears_nothing) {
    proxy.cut_answers();
  } else {
    proxy.cut();
  }
  SteadyTime taken_over;
  std::unique_ptr<Reading> at_b;
  std::thread successor([&] {
    eventually([&] {
      at_b = std::make_unique<Reading>(b, endless(session.id()));
      taken_over = std::chrono::steady_clock::now();
      if (at_b->read()) return true;
      return reason_of(at_b->got().status) != "SESSION_HELD";
    });
  });
  while (at_a.read()) {
  }
  successor.join();
  CHECK(at_a.got().status.error_code() == Code::UNAVAILABLE);
  INFO(at_b->got().status.error_message());
  REQUIRE_FALSE(at_b->tokens().empty());
  const std::vector<std::int32_t> shown = at_a.tokens();
  // One message may have started before the lease was over.
  CHECK(shown.size() - at_a.told_by(taken_over) < kPerMessage);
  at_b->read_to(shown.size() + 100);
  CHECK(at_b->got().only().first_position == kPrompt);
  CHECK(is_prefix(shown, at_b->tokens()));
  // The first one is back, while the other continues: what it had sent, and what it sends, is late.
  proxy.heal();
  at_b->read_to(shown.size() + 2000);
  at_b->end();
  REQUIRE(eventually([&] { return !found(b, session.id()).busy(); }));
  const std::vector<std::int32_t> all = history(b, session.id()).value();
  CHECK(is_prefix(at_b->tokens(), {all.begin() + kPrompt, all.end()}));
  std::optional<std::vector<std::int32_t>> seen;
  REQUIRE(eventually([&] {
    seen = history(a, session.id());
    return seen.has_value();
  }));
  CHECK(*seen == all);
  // And it continues from what the other left.
  v1::GenerateRequest next = call_on(session.id(), "two", {1}, 1);
  next.set_expected_position(static_cast<std::int64_t>(all.size()));
  Generated after;
  REQUIRE(eventually([&] {
    after = a.generate(next);
    UNSCOPED_INFO(after.status.error_message());
    return after.status.ok();
  }));
  CHECK(found(b, session.id()).position() == static_cast<std::int64_t>(all.size()) + 2);
}

}  // namespace
}  // namespace lintel::testing
