// SPDX-License-Identifier: Apache-2.0
// Calls of services for HTTP: their ends, cancellation, timeouts, and answers without memory.
#include "server/http/transport/http_calls.h"

#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <new>
#include <string>
#include <thread>

#include "inference/grpc_service.pb.h"
#include "lintel/v1/model.pb.h"
#include "server/http/kserve/routes.h"
#include "server/http/transport/body_work.h"
#include "server/http/transport/http_routes.h"
#include "server/rpc/rpc.h"
#include "tests/support/catch.h"
#include "tests/support/eventually.h"

namespace lintel::testing {
namespace {

// Notes how it ends; its client goes when the test says so.
class NotedExchange final : public HttpExchange {
 public:
  const HttpRequest& request() const override { return request_; }
  std::string take_body() override { return {}; }
  void answer(lintel::HttpAnswer answer) override {
    body = answer.body;
    ++answered;
  }
  void begin(lintel::HttpAnswer) override {}
  void write(std::string piece, std::function<void(bool)> taken) override {
    body += piece;
    taken(true);
  }
  void end(std::string last) override {
    body += last;
    ++answered;
  }
  void abort() override { ++aborted; }
  void when_gone(std::function<void()> gone) override { go = std::move(gone); }

  std::atomic<int> answered{0}, aborted{0};
  std::string body;  // read when it is answered
  std::function<void()> go;

 private:
  const HttpRequest request_{.method = "POST", .request_id = "one"};
};

// Writes a model per message, as many as the request's name says, and ends; without a number it
// waits for its cancellation.
class ModelStream final : public RpcReactor {
 public:
  ModelStream(std::atomic<int>& alive, const std::string& count)
      : alive_(alive), left_(count.empty() ? -1 : std::stoi(count)) {
    ++alive_;
    next();
  }
  void OnWriteDone(bool ok) override { ok ? next() : Finish(grpc::Status::CANCELLED); }
  void OnCancel() override {
    if (left_ < 0) Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override {
    --alive_;
    delete this;
  }

 private:
  void next() {
    if (left_ < 0) return;
    if (left_-- == 0) return Finish(grpc::Status::OK);
    message_.set_name(std::to_string(left_) + " ");
    StartWrite(&message_);
  }

  std::atomic<int>& alive_;
  int left_;
  v1::Model message_;
};

class TestService final : public RpcService {
 public:
  TestService() {
    serve("test/Get", this, &TestService::Get);
    serve_stream<v1::Model>("test/Stream", this, &TestService::Stream);
  }
  std::atomic<int> alive{0};

 private:
  RpcReactor* Get(RpcCall* call, const LazyMessage<v1::GetModelRequest>* request,
                  v1::Model* response) {
    v1::GetModelRequest wire;
    grpc::Status read = request->read(kOpenMessage, wire);
    response->set_name(wire.name() + " of " + std::string(call->header("x-request-id")));
    call->default_reactor()->Finish(std::move(read));
    return call->default_reactor();
  }
  RpcReactor* Stream(RpcCall*, const LazyMessage<v1::GetModelRequest>* request) {
    v1::GetModelRequest wire;
    request->read(kOpenMessage, wire);
    return new ModelStream(alive, wire.name());
  }
};

// Names of models, one after the other; a status at the end.
class Names final : public StreamAnswer {
 public:
  lintel::HttpAnswer head() override { return {}; }
  grpc::Status piece(const google::protobuf::Message& message, std::string& out) override {
    out = static_cast<const v1::Model&>(message).name();
    if (out == "7 ") out.clear();  // nothing is written for it
    return grpc::Status::OK;
  }
  std::optional<std::string> tail(const grpc::Status& status) override {
    return "end " + std::to_string(status.error_code());
  }
  lintel::HttpAnswer refusal(const grpc::Status& status) override {
    return {500, {}, "refused " + std::to_string(status.error_code())};
  }
};

RequestMessage request_for(const std::string& name) {
  v1::GetModelRequest request;
  request.set_name(name);
  return RequestMessage::of(std::move(request));
}

}  // namespace

TEST_CASE("HTTP calls: a unary call has the request's bytes and headers, and its response") {
  TestService service;
  HttpCalls calls(std::array<const RpcService*, 1>{&service});
  const auto exchange = std::make_shared<NotedExchange>();
  calls.unary(exchange, "test/Get", request_for("digits"),
              [exchange](const grpc::Status& status, const google::protobuf::Message& response) {
                if (!status.ok()) return exchange->abort();
                exchange->answer({200, {}, static_cast<const v1::Model&>(response).name()});
              });
  REQUIRE(calls.stop(std::chrono::seconds(60)));
  CHECK(exchange->answered == 1);
  CHECK(exchange->body == "digits of one");
}

TEST_CASE("HTTP calls: an answer without memory ends its connection alone") {
  TestService service;
  HttpCalls calls(std::array<const RpcService*, 1>{&service});
  const auto lost = std::make_shared<NotedExchange>();
  calls.unary(lost, "test/Get", request_for("digits"),
              [](const auto&, const auto&) { throw std::bad_alloc(); });
  REQUIRE(eventually([&] { return lost->aborted > 0; }));
  CHECK(lost->answered == 0);
  // The thread that ran it serves the next.
  const auto next = std::make_shared<NotedExchange>();
  calls.unary(next, "test/Get", request_for("digits"),
              [next](const grpc::Status& status, const auto&) {
                if (status.ok()) next->answer({});
              });
  REQUIRE(calls.stop(std::chrono::seconds(60)));
  CHECK(lost->aborted == 1);
  CHECK(next->answered == 1);
  CHECK(next->aborted == 0);
}

TEST_CASE("HTTP calls: a stream's messages are written in order, then its end") {
  TestService service;
  HttpCalls calls(std::array<const RpcService*, 1>{&service});
  const auto exchange = std::make_shared<NotedExchange>();
  calls.stream(exchange, "test/Stream", request_for("10"), std::make_unique<Names>());
  REQUIRE(calls.stop(std::chrono::seconds(60)));
  CHECK(exchange->body == "9 8 6 5 4 3 2 1 0 end 0");
  CHECK(service.alive == 0);
}

TEST_CASE("HTTP calls: a unary call as a stream is one of its response") {
  TestService service;
  HttpCalls calls(std::array<const RpcService*, 1>{&service});
  const auto exchange = std::make_shared<NotedExchange>();
  calls.stream(exchange, "test/Get", request_for("digits"), std::make_unique<Names>());
  REQUIRE(calls.stop(std::chrono::seconds(60)));
  CHECK(exchange->body == "digits of oneend 0");
}

TEST_CASE("HTTP calls: a client that goes cancels its call") {
  TestService service;
  HttpCalls calls(std::array<const RpcService*, 1>{&service});
  const auto exchange = std::make_shared<NotedExchange>();
  calls.stream(exchange, "test/Stream", request_for(""), std::make_unique<Names>());
  const bool before_it_runs = GENERATE(false, true);
  if (!before_it_runs) REQUIRE(eventually([&] { return service.alive == 1; }));
  exchange->go();
  REQUIRE(calls.stop(std::chrono::seconds(60)));
  CHECK(service.alive == 0);
  CHECK(exchange->body == "refused 1");
}

TEST_CASE("HTTP calls: a call that outlasts its timeout ends with DEADLINE_EXCEEDED") {
  TestService service;
  HttpCalls calls(std::array<const RpcService*, 1>{&service});
  const auto patient = std::make_shared<NotedExchange>();
  calls.stream(patient, "test/Stream", request_for("3"), std::make_unique<Names>(),
               std::chrono::hours(1));
  const auto late = std::make_shared<NotedExchange>();
  calls.stream(late, "test/Stream", request_for(""), std::make_unique<Names>(),
               std::chrono::milliseconds(1));
  // The call that has ended in time is not kept until its hour is over.
  CHECK(eventually([&] { return calls.num_deadlines() == 0; }));
  REQUIRE(calls.stop(std::chrono::seconds(60)));
  CHECK(late->body == "refused 4");
  CHECK(patient->body == "2 1 0 end 0");
  CHECK(service.alive == 0);
}

TEST_CASE("HTTP calls: a status for a message ends a call whose answer is gathered") {
  TestService service;
  HttpCalls calls(std::array<const RpcService*, 1>{&service});
  const auto exchange = std::make_shared<NotedExchange>();
  std::atomic<int> messages{0};
  grpc::Status ended;
  calls.gather(
      exchange, "test/Stream", request_for("100"),
      [&](const google::protobuf::Message&) {
        return ++messages == 3 ? grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "too much")
                               : grpc::Status::OK;
      },
      [&, exchange](const grpc::Status& status) {
        ended = status;
        exchange->answer({});
        return HttpCalls::NextPiece();
      },
      /*kept=*/nullptr);
  REQUIRE(calls.stop(std::chrono::seconds(60)));
  CHECK(messages == 3);
  CHECK(ended.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(service.alive == 0);
}

namespace {

// Methods that occupy their threads until the test ends them, and health.
class BusyService final : public RpcService {
 public:
  BusyService() {
    serve("test/Work", this, &BusyService::Work);
    serve("inference.GRPCInferenceService/ServerLive", this, &BusyService::ServerLive);
  }
  ~BusyService() { end(); }
  void end() {
    if (!std::exchange(has_ended_, true)) end_.set_value();
  }
  std::atomic<int> working{0};
  std::thread::id health;  // the thread that answered it

 private:
  RpcReactor* Work(RpcCall* call, const LazyMessage<v1::GetModelRequest>*, v1::Model*) {
    ++working;
    ended_.wait();
    call->default_reactor()->Finish(grpc::Status::OK);
    return call->default_reactor();
  }
  RpcReactor* ServerLive(RpcCall* call, const LazyMessage<inference::ServerLiveRequest>*,
                         inference::ServerLiveResponse* response) {
    health = std::this_thread::get_id();
    response->set_live(true);
    call->default_reactor()->Finish(grpc::Status::OK);
    return call->default_reactor();
  }

  std::promise<void> end_;
  const std::shared_future<void> ended_ = end_.get_future().share();
  bool has_ended_ = false;
};

HttpCalls::UnaryDone answer_of(const std::shared_ptr<NotedExchange>& exchange) {
  return [exchange](const grpc::Status& status, const google::protobuf::Message&) {
    exchange->answer({200, {}, std::to_string(status.error_code())});
  };
}

}  // namespace

TEST_CASE("HTTP calls: health is answered by the connection's thread while all others are busy",
          "[threat-32]") {
  BusyService service;
  HttpCounters counters;
  HttpCalls calls(std::array<const RpcService*, 1>{&service});
  BodyWork bodies(1 << 20, counters);
  HttpRoutes routes;
  add_kserve_routes(routes, calls, bodies);
  const auto busy = std::make_shared<NotedExchange>();
  for (int i = 0; i < 4; ++i) calls.unary(busy, "test/Work", request_for(""), answer_of(busy));
  REQUIRE(eventually([&] { return service.working == 2; }));
  const auto asked = std::make_shared<NotedExchange>();
  routes.find("GET", "/v2/health/live").route->handle(asked);
  CHECK(asked->body == R"({"live":true})");
  CHECK(service.health == std::this_thread::get_id());
  service.end();
  REQUIRE(calls.stop(std::chrono::seconds(60)));
  CHECK(busy->answered == 4);
}

TEST_CASE("HTTP calls: long requests begin in turns, and short ones do not wait for them",
          "[threat-32]") {
  BusyService service;
  TestService others;
  HttpCounters counters;
  const std::string name(BodyWork::kShortBytes, 'n');
  const auto busy = std::make_shared<NotedExchange>();
  const auto gone = std::make_shared<NotedExchange>();
  {
    BodyWork bodies(1 << 20, counters);
    HttpCalls in_turns(std::array<const RpcService*, 2>{&service, &others}, &bodies);
    for (int i = 0; i < 4; ++i) {
      in_turns.unary(busy, "test/Work", request_for(name), answer_of(busy));
    }
    in_turns.unary(gone, "test/Get", request_for(name), answer_of(gone));
    REQUIRE(eventually([&] { return service.working == 2; }));
    CHECK(counters.body_bytes > 4 * static_cast<std::int64_t>(BodyWork::kShortBytes));
    const auto quick = std::make_shared<NotedExchange>();
    in_turns.unary(quick, "test/Get", request_for("quick"), answer_of(quick));
    CHECK(eventually([&] { return quick->answered == 1; }));
    CHECK(busy->answered == 0);
    gone->go();  // before its turn: it does not begin
    service.end();
    REQUIRE(eventually([&] { return busy->answered == 4 && gone->answered == 1; }));
    CHECK(gone->body == "1");
    REQUIRE(bodies.stop(std::chrono::seconds(60)));
    REQUIRE(in_turns.stop(std::chrono::seconds(60)));
  }
  CHECK(counters.body_bytes == 0);
}

TEST_CASE("HTTP calls: a drain refuses long requests that wait for their turn", "[threat-32]") {
  BusyService service;
  HttpCounters counters;
  BodyWork bodies(1 << 20, counters);
  HttpCalls calls(std::array<const RpcService*, 1>{&service}, &bodies);
  const std::string name(BodyWork::kShortBytes, 'n');
  const auto running = std::make_shared<NotedExchange>();
  for (int i = 0; i < 2; ++i) {
    calls.unary(running, "test/Work", request_for(name), answer_of(running));
  }
  REQUIRE(eventually([&] { return service.working == 2; }));
  const auto waiting = std::make_shared<NotedExchange>();
  calls.unary(waiting, "test/Work", request_for(name), answer_of(waiting));
  bodies.begin_drain();
  service.end();
  REQUIRE(eventually([&] { return waiting->answered == 1; }));
  CHECK(waiting->body == "14");  // UNAVAILABLE
  CHECK(service.working == 2);
  REQUIRE(bodies.stop(std::chrono::seconds(60)));
  REQUIRE(calls.stop(std::chrono::seconds(60)));
}

}  // namespace lintel::testing
