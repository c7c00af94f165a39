// SPDX-License-Identifier: Apache-2.0
// Calls of services for HTTP: their ends, cancellation, timeouts, and answers without memory.
#include "server/http/transport/http_calls.h"

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <new>
#include <string>

#include "lintel/v1/model.pb.h"
#include "server/rpc/rpc.h"
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

grpc::ByteBuffer request_for(const std::string& name) {
  v1::GetModelRequest request;
  request.set_name(name);
  return bytes_of(request);
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
      });
  REQUIRE(calls.stop(std::chrono::seconds(60)));
  CHECK(messages == 3);
  CHECK(ended.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(service.alive == 0);
}

}  // namespace lintel::testing
