// SPDX-License-Identifier: Apache-2.0
// Bodies that are read off HTTP's threads: who reads them, when that ends, what it holds.
#include "server/http/transport/body_work.h"

#include <chrono>
#include <future>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>

#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;

class FakeExchange final : public HttpExchange {
 public:
  explicit FakeExchange(std::string body, std::string peer = "") : body_(std::move(body)) {
    request_.peer = std::move(peer);
  }

  const HttpRequest& request() const override { return request_; }
  std::string take_body() override { return std::move(body_); }
  void answer(lintel::HttpAnswer) override {}
  void begin(lintel::HttpAnswer) override {}
  void write(std::string, std::function<void(bool)>) override {}
  void end(std::string) override {}
  void abort() override {}
  void when_gone(std::function<void()> gone) override { gone_ = std::move(gone); }
  void go() { gone_(); }

 private:
  HttpRequest request_;
  std::string body_;
  std::function<void()> gone_;
};

const std::string kLong(BodyWork::kShortBytes + 1, ' ');

// A body reader that runs until it is cancelled.
struct Endless {
  BodyWork::Read read() {
    return [this](const std::string&, JsonBudget& budget) {
      started.set_value();
      while (!budget.cancelled()) std::this_thread::yield();
      return grpc::Status(grpc::StatusCode::CANCELLED, "cancelled");
    };
  }
  BodyWork::Refuse refuse() {
    return [this](const grpc::Status& status) { refused.set_value(status); };
  }

  std::promise<void> started;
  std::promise<grpc::Status> refused;
};

constexpr std::int64_t kMemory = 1 << 20;

}  // namespace

TEST_CASE("a short body is read by its own thread while long ones are read by others",
          "[threat-32]") {
  HttpCounters counters;
  BodyWork work(kMemory, counters);
  Endless first, second;
  const auto one = std::make_shared<FakeExchange>(kLong);
  const auto two = std::make_shared<FakeExchange>(kLong);
  work.read(one, first.read(), first.refuse());
  work.read(two, second.read(), second.refuse());
  first.started.get_future().wait();
  second.started.get_future().wait();
  // All threads of the object are busy, and the caller is not kept.
  std::optional<std::thread::id> reader;
  work.read(
      std::make_shared<FakeExchange>("{}"),
      [&](const std::string& body, JsonBudget&) {
        CHECK(body == "{}");
        reader = std::this_thread::get_id();
        return grpc::Status::OK;
      },
      [](const grpc::Status&) { FAIL("refused"); });
  CHECK(reader == std::this_thread::get_id());
  one->go();
  two->go();
  CHECK(first.refused.get_future().get().error_message() == "cancelled");
  CHECK(second.refused.get_future().get().error_message() == "cancelled");
}

TEST_CASE("long bodies: callers take turns, however many bodies each has") {
  HttpCounters counters;
  Endless first, second;  // on both threads
  std::mutex mutex;
  std::string order;
  std::promise<void> all;
  BodyWork work(kMemory, counters);
  const auto one = std::make_shared<FakeExchange>(kLong, "ipv4:10.0.0.1:1");
  const auto two = std::make_shared<FakeExchange>(kLong, "ipv4:10.0.0.1:2");
  work.read(one, first.read(), first.refuse());
  work.read(two, second.read(), second.refuse());
  first.started.get_future().wait();
  second.started.get_future().wait();
  const auto note = [&](char name) {
    return [&, name](const std::string&, JsonBudget&) {
      const std::lock_guard lock(mutex);
      order += name;
      if (order.size() == 5) all.set_value();
      return grpc::Status(grpc::Status::OK);
    };
  };
  const BodyWork::Refuse refuse = [](const grpc::Status&) {};
  for (int i = 0; i < 4; ++i) {  // four connections of one host
    work.read(std::make_shared<FakeExchange>(kLong, "ipv4:10.0.0.1:" + std::to_string(10 + i)),
              note('a'), refuse);
  }
  work.read(std::make_shared<FakeExchange>(kLong, "ipv4:10.0.0.2:1"), note('b'), refuse);
  one->go();  // one thread reads all of them
  all.get_future().wait();
  CHECK(order == "abaaa");
  two->go();
}

TEST_CASE("a drain ends the bodies that are read and those that wait, and takes no more",
          "[threat-32]") {
  HttpCounters counters;
  BodyWork work(kMemory, counters);
  Endless read[2];
  for (Endless& each : read) {
    work.read(std::make_shared<FakeExchange>(kLong), each.read(), each.refuse());
  }
  for (Endless& each : read) each.started.get_future().wait();
  const auto never = [](const std::string&, JsonBudget&) -> grpc::Status {
    throw std::logic_error("read after the drain began");
  };
  std::promise<grpc::Status> waiting, later;
  work.read(std::make_shared<FakeExchange>(kLong), never,
            [&](const grpc::Status& status) { waiting.set_value(status); });
  work.begin_drain();
  for (Endless& each : read) CHECK_FALSE(each.refused.get_future().get().ok());
  work.read(std::make_shared<FakeExchange>("{}"), never,
            [&](const grpc::Status& status) { later.set_value(status); });
  for (auto* const ended : {&waiting, &later}) {
    const grpc::Status status = ended->get_future().get();
    CHECK(status.error_code() == grpc::StatusCode::UNAVAILABLE);
    CHECK_THAT(status.error_message(), Contains("shutting down"));
  }
  CHECK(work.stop(std::chrono::seconds(60)));
  CHECK(counters.body_bytes == 0);
}

TEST_CASE("memory of bodies and their trees is counted with all others, and released") {
  HttpCounters counters;
  BodyWork work(kMemory, counters);
  counters.body_bytes = 1000;  // being received
  work.read(
      std::make_shared<FakeExchange>(std::string(500, ' ')),
      [&](const std::string&, JsonBudget& budget) {
        CHECK(counters.body_bytes == 1500);
        CHECK(budget.charge(kMemory - 1500));
        CHECK_FALSE(budget.charge(1));
        CHECK(budget.charge(-100));
        CHECK(budget.charge(100));
        CHECK(counters.body_bytes == kMemory);
        return grpc::Status::OK;
      },
      [](const grpc::Status&) { FAIL("refused"); });
  CHECK(counters.body_bytes == 1000);
}

TEST_CASE("an exception while a body is read refuses that body") {
  HttpCounters counters;
  BodyWork work(kMemory, counters);
  for (const std::string& body : {std::string("{}"), kLong}) {
    std::promise<grpc::Status> refusal;
    work.read(
        std::make_shared<FakeExchange>(body),
        [](const std::string&, JsonBudget&) -> grpc::Status { throw std::bad_alloc(); },
        [&](const grpc::Status& status) { refusal.set_value(status); });
    CHECK(refusal.get_future().get().error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
}

TEST_CASE("long bodies: what they ask for begins in the turn of its caller, and counts till then",
          "[threat-32]") {
  HttpCounters counters;
  Endless first, second;  // on both threads
  BodyWork work(kMemory, counters);
  const auto one = std::make_shared<FakeExchange>(kLong, "ipv4:10.0.0.1:1");
  const auto two = std::make_shared<FakeExchange>(kLong, "ipv4:10.0.0.1:2");
  work.read(one, first.read(), first.refuse());
  work.read(two, second.read(), second.refuse());
  first.started.get_future().wait();
  second.started.get_future().wait();
  const std::int64_t held = counters.body_bytes;
  std::mutex mutex;
  std::string order;
  std::promise<void> all;
  HttpRequest mine, other;
  mine.peer = "ipv4:10.0.0.1:9";
  other.peer = "ipv4:10.0.0.2:9";
  const auto note = [&](char name) {
    return [&, name](const grpc::Status& status) {
      CHECK(status.ok());
      const std::lock_guard lock(mutex);
      order += name;
      if (order.size() == 4) all.set_value();
    };
  };
  for (int i = 0; i < 3; ++i) CHECK(work.run_in_turn(mine, 1000, note('a')));
  CHECK(work.run_in_turn(other, 1000, note('b')));
  CHECK(counters.body_bytes == held + 4000);
  one->go();  // one thread runs all of them
  all.get_future().wait();
  CHECK(order == "abaa");
  two->go();
  CHECK(work.stop(std::chrono::seconds(60)));
  CHECK(counters.body_bytes == 0);
  CHECK_FALSE(work.run_in_turn(mine, 1000, [](const grpc::Status&) { FAIL("it has stopped"); }));
}

TEST_CASE(
    "long bodies: a stop waits for what runs no longer than its timeout, and refuses the rest",
    "[threat-32]") {
  HttpCounters counters;
  std::promise<void> running, end;
  std::promise<grpc::Status> waited;
  BodyWork work(kMemory, counters);
  const HttpRequest request;
  const auto ended = end.get_future().share();
  // The free one of both threads takes the last.
  work.run_in_turn(request, 1, [&, ended](const grpc::Status&) {
    running.set_value();
    ended.wait();
  });
  running.get_future().wait();
  work.begin_drain();
  work.run_in_turn(request, 1, [&](const grpc::Status& status) { waited.set_value(status); });
  CHECK(waited.get_future().get().error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK_FALSE(work.stop(std::chrono::milliseconds(1)));
  end.set_value();
  CHECK(work.stop(std::chrono::seconds(60)));
}

}  // namespace lintel::testing
