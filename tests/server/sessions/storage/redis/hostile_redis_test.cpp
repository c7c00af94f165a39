// SPDX-License-Identifier: Apache-2.0
// A client of Redis with invalid replies, name lookups that hang, and keys of a wrong type.
#include <sys/resource.h>

#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <stdexcept>
#include <string>

#include "server/core/threads.h"
#include "server/sessions/storage/redis/redis_servers.h"
#include "tests/server/redis_lab/fake_redis.h"
#include "tests/server/sessions/storage/redis/redis_storages.h"
#include "tests/support/catch.h"
#include "tests/support/eventually.h"

namespace lintel::testing {
namespace {

using Outcome = SessionError;
using std::chrono::milliseconds;

RedisOptions client_options(const Endpoint& server) {
  RedisOptions options;
  options.url.servers = {{server.address, server.port}};
  options.timeout = milliseconds(1500);
  options.silence = milliseconds(500);
  return options;
}

std::int64_t peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

TEST_CASE("reply of a hostile server: rejected at the bound of its request, within 32 MiB",
          "[threat-62]") {
  struct Flood {
    const char* what;
    std::string begin, more;
  };
  const std::string kilobyte(1024, 'x');
  std::string numbers, lists;
  for (int i = 0; i < 256; ++i) {
    numbers += ":1\r\n";
    lists += "*1\r\n";
  }
  const Flood flood =
      GENERATE_COPY(Flood{"a text of 600 MB", "$600000000\r\n", kilobyte},
                    Flood{"a list of two thousand millions", "*2000000000\r\n", numbers},
                    Flood{"a short list of long texts", "*2\r\n$400000000\r\n", kilobyte},
                    Flood{"lists within lists", "*1000\r\n*1000\r\n*1000\r\n*1000\r\n", numbers},
                    Flood{"an error without end", "-ERR ", kilobyte},
                    Flood{"replies without a request", "$1\r\nx\r\n", "+OK\r\n"},
                    Flood{"lists of one list each", "", lists},
                    Flood{"a number of protocol 3", ",1.5\r\n", kilobyte},
                    Flood{"a truth of protocol 3", "#t\r\n", kilobyte},
                    Flood{"a map of protocol 3", "%1\r\n+key\r\n", numbers},
                    Flood{"a text of protocol 3", "=8\r\ntxt:text\r\n", kilobyte},
                    Flood{"no protocol at all", "HTTP/1.1 400 Bad Request\r\n", kilobyte});
  CAPTURE(flood.what);
  std::atomic<std::int64_t> sent{0};
  FakeRedis server([&](const FakeRedis::Command& command, const FakeRedis::Send& send) {
    if (command.front() == "INFO") {
      send(FakeRedis::good_info());
      return;
    }
    if (command.back() == "well") {
      send(FakeRedis::bulk("well"));
      return;
    }
    // Much at once, for as long as it is taken, but not more than half a gigabyte.
    std::string much;
    while (much.size() < 128 << 10) much += flood.more;
    if (!send(flood.begin)) return;
    for (std::int64_t bytes = 0; bytes < 512 << 20 && send(much);) {
      bytes += static_cast<std::int64_t>(much.size());
      sent += static_cast<std::int64_t>(much.size());
    }
  });
  lintel::RedisClient client(client_options(server.endpoint()));
  REQUIRE(client.ask_and_wait({.words = {"GET", "well"}}).arrived);
  const std::int64_t before = peak_bytes();
  const RedisAnswer answer = client.ask_and_wait({.words = {"GET", "flood"}});
  const std::int64_t grown = peak_bytes() - before;
  WARN(flood.what << ": " << grown / 1024 << " KiB more at most, " << sent / 1024 << " KiB sent");
  CHECK(grown < 32 << 20);
  // The one reply that was right before the flood is taken.
  CHECK(answer.arrived == (flood.begin == "$1\r\nx\r\n"));
  CHECK(eventually([&] { return client.state().reconnects > 0; }));
  // The client continues over a new connection.
  CHECK(eventually([&] { return client.ask_and_wait({.words = {"GET", "well"}}).arrived; }));
}

TEST_CASE("reply that is too long: the error names its length", "[threat-62]") {
  FakeRedis server([](const FakeRedis::Command& command, const FakeRedis::Send& send) {
    send(command.front() == "INFO" ? FakeRedis::bulk(std::string(4 << 20, 'i'))
                                   : std::string("-ERR\r\n"));
  });
  try {
    lintel::RedisClient client(client_options(server.endpoint()));
    FAIL("the client opened");
  } catch (const RedisError& error) {
    CHECK_THAT(error.what(), Catch::Contains(server.endpoint().text()) &&
                                 Catch::Contains("longer than 1048576 bytes"));
  }
}

TEST_CASE("reply as long as its request allows: taken whole") {
  const std::string text(300'000, 't');
  FakeRedis server([&](const FakeRedis::Command& command, const FakeRedis::Send& send) {
    send(command.front() == "INFO" ? FakeRedis::good_info() : FakeRedis::bulk(text));
  });
  lintel::RedisClient client(client_options(server.endpoint()));
  CHECK_FALSE(client.ask_and_wait({.words = {"GET", "x"}}).arrived);
  const RedisAnswer answer =
      client.ask_and_wait({.words = {"GET", "x"}, .most = {.bytes = text.size() + 100}});
  REQUIRE(answer.arrived);
  CHECK(answer.reply.text == text);
}

// Names that are looked up when the test says so.
class HeldNames {
 public:
  LookUpName look_up() {
    return [this](const RedisAddress&) {
      std::unique_lock lock(mutex_);
      ++waiting_;
      changed_.notify_all();
      changed_.wait(lock, [this] { return is_free_; });
      return LookedUp{.why = "there is no such name"};
    };
  }
  int waiting() {
    const std::lock_guard lock(mutex_);
    return waiting_;
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    is_free_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;
  bool is_free_ = false;
};

TEST_CASE("name lookup that hangs: other servers are asked meanwhile, and the client ends",
          "[threat-63]") {
  const auto names = std::make_shared<HeldNames>();
  FakeRedis server([](const FakeRedis::Command& command, const FakeRedis::Send& send) {
    if (command.front() == "INFO") {
      send(FakeRedis::good_info());
    } else if (command.back() == "moved") {
      send("-MOVED 5 hangs.test:6379\r\n");
    } else {
      send(FakeRedis::bulk("here"));
    }
  });
  RedisOptions options = client_options(server.endpoint());
  options.url.servers.insert(options.url.servers.begin(), {"first.test", 6379});
  options.look_up_name = [names](const RedisAddress& name) { return names->look_up()(name); };
  {
    lintel::RedisClient client(options);  // although the first of its servers is not looked up
    CHECK(names->waiting() > 0);
    std::promise<RedisAnswer> moved;
    client.ask({.words = {"GET", "moved"}, .slot = 5, .done = [&](RedisAnswer answer) {
                  moved.set_value(std::move(answer));
                }});
    std::future<RedisAnswer> result = moved.get_future();
    int answered = 0;
    while (result.wait_for(milliseconds(0)) != std::future_status::ready) {
      const auto began = std::chrono::steady_clock::now();
      REQUIRE(client.ask_and_wait({.words = {"GET", "x"}, .slot = 6}).arrived);
      CHECK(std::chrono::steady_clock::now() - began < milliseconds(400));
      ++answered;
    }
    CHECK_FALSE(result.get().arrived);
    CHECK(answered > 10);
    CHECK(names->waiting() == 2);  // one thread for each name, however often it is needed
  }
  names->let_go();
}

TEST_CASE("exception in a request's callback: counted, and the client continues", "[threat-66]") {
  FakeRedis server([](const FakeRedis::Command& command, const FakeRedis::Send& send) {
    send(command.front() == "INFO" ? FakeRedis::good_info() : FakeRedis::bulk("x"));
  });
  lintel::RedisClient client(client_options(server.endpoint()));
  ThreadFailures& failures = ThreadFailures::of_process();
  const std::uint64_t before = failures.count(ServerThread::kRedis);
  client.ask({.words = {"GET", "x"},
              .done = [](const RedisAnswer&) { throw std::runtime_error("of the test"); }});
  CHECK(client.ask_and_wait({.words = {"GET", "x"}}).arrived);
  CHECK(failures.count(ServerThread::kRedis) == before + 1);
}

TEST_CASE("key of a wrong type: its session is damaged, and the store is not away", "[threat-64]") {
  RedisServer server;
  ManualClock clock;
  RedisStorage storage(storage_options("a", server.endpoint()), clock);
  Client session("s");
  const RedisKeys keys(redis_bucket("s"));
  const auto replace = [&](const std::string& key) {
    server.client().ask({"DEL", key});
    server.client().ask({"LPUSH", key, "something", "else"});
  };
  REQUIRE(commit_one(storage, [&](Writes& to) { session.create(to); }) == Outcome::kNone);
  REQUIRE(session.open(storage) == Outcome::kNone);
  REQUIRE(commit_one(storage, [&](Writes& to) { session.append(to, counted_from(0, 5)); }) ==
          Outcome::kNone);
  const std::vector<std::byte> bytes(100, std::byte{7});
  SessionStorage::StateRef ref{.position = 5};
  REQUIRE(storage.put_state("s", bytes, &ref) == Outcome::kNone);
  std::vector<std::int32_t> tokens(5);
  std::vector<std::byte> state(bytes.size());
  SECTION("its tokens") {
    replace(keys.tokens("s"));
    CHECK(storage.read_tokens("s", 0, tokens) == Outcome::kDamaged);
    CHECK(commit_one(storage, [&](Writes& to) { session.append(to, counted_from(5, 5)); }) ==
          Outcome::kDamaged);
  }
  SECTION("itself") {
    // Another session of its bucket, which stays in the list.
    std::string id;
    for (int i = 0; id.empty() || redis_bucket(id) != redis_bucket("s"); ++i) {
      id = "t" + std::to_string(i);
    }
    Client neighbour(id);
    REQUIRE(commit_one(storage, [&](Writes& to) { neighbour.create(to); }) == Outcome::kNone);
    CHECK(storage.list("", "", 10, std::nullopt).size() == 2);
    replace(keys.session("s"));
    const std::vector<SessionStorage::Row> listed = storage.list("", "", 10, std::nullopt);
    REQUIRE(listed.size() == 1);
    CHECK(listed[0].id == id);
    CHECK(storage.find("s", "alice").outcome == Outcome::kDamaged);
    CHECK(storage.read_tokens("s", 0, tokens) == Outcome::kDamaged);
    CHECK(commit_one(storage, [&](Writes& to) { session.release(to); }) == Outcome::kDamaged);
    RedisStorage other(storage_options("b", server.endpoint()), clock);
    CHECK(other.open("s", "alice", nullptr).outcome == Outcome::kDamaged);
  }
  SECTION("a state") {
    replace(RedisStateKeys(ref.where).bytes);
    CHECK(storage.read_state(ref, state) == Outcome::kDamaged);
    CHECK(storage.health().states_lost == 1);
  }
  SECTION("the ids of its bucket") {
    replace(keys.ids);
    Client another("s2");
    REQUIRE(redis_bucket("s2") == redis_bucket("s"));
    CHECK(commit_one(storage, [&](Writes& to) { another.create(to); }) == Outcome::kDamaged);
  }
  CHECK(storage.health().state == SessionStorage::Health::State::kOk);
  Client sound("0f");
  CHECK(commit_one(storage, [&](Writes& to) { sound.create(to); }) == Outcome::kNone);
}

}  // namespace
}  // namespace lintel::testing
