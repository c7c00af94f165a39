// SPDX-License-Identifier: Apache-2.0
#include "server/http/openai/responses.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lintel/v1/response.pb.h"
#include "server/http/encoding/bounded_json.h"
#include "server/http/encoding/server_sent_events.h"
#include "server/http/openai/completion_request.h"

namespace lintel {
namespace {

class EventsAnswer final : public StreamAnswer {
 public:
  HttpAnswer head() override { return server_sent_head(); }
  grpc::Status piece(const google::protobuf::Message& message, std::string& out) override {
    for (const v1::ResponseEvent& event :
         static_cast<const v1::ResponseEvents&>(message).events()) {
      out += "event: " + event.type() + "\n" + server_sent_event(event.body());
    }
    return grpc::Status::OK;
  }
  std::optional<std::string> tail(const grpc::Status& status) override {
    if (status.ok()) return server_sent_event("[DONE]");
    return "event: error\n" + server_sent_event(openai_answer(status).body);
  }
  HttpAnswer refusal(const grpc::Status& status) override { return openai_answer(status); }
};

// The one message with the response.
void gather(const SharedExchange& exchange, HttpCalls& calls, const char* method,
            grpc::ByteBuffer request) {
  const auto response = std::make_shared<std::string>();
  calls.gather(
      exchange, method, std::move(request),
      [response](const google::protobuf::Message& message) {
        const auto& events = static_cast<const v1::ResponseEvents&>(message);
        if (!events.response().empty()) *response = events.response();
        return grpc::Status::OK;
      },
      [response, exchange](const grpc::Status& status) {
        exchange->answer(status.ok() ? json_answer(200, *response) : openai_answer(status));
      });
}

grpc::Status create(const SharedExchange& exchange, const std::string& body, JsonBudget& budget,
                    HttpCalls& calls) {
  constexpr const char* kMethod = "lintel.v1.ResponseService/Create";
  bool streams = false;
  {
    // The service reads the rest.
    nlohmann::json object;
    grpc::Status parsed = parse_object(body, &budget, object);
    if (!parsed.ok()) return parsed;
    streams = object.contains("stream") && object["stream"] == true;
  }
  v1::CreateResponseRequest request;
  request.set_body(body);
  request.set_idempotency_key(std::string(exchange->request().header("idempotency-key")));
  if (!streams) {
    gather(exchange, calls, kMethod, bytes_of(request));
  } else {
    calls.stream(exchange, kMethod, bytes_of(request), std::make_unique<EventsAnswer>());
  }
  return grpc::Status::OK;
}

grpc::Status count(const SharedExchange& exchange, const std::string& body, HttpCalls& calls) {
  v1::CountInputTokensRequest request;
  request.set_body(body);
  calls.unary(exchange, "lintel.v1.ResponseService/CountInputTokens", bytes_of(request),
              [exchange](const grpc::Status& status, const google::protobuf::Message& message) {
                if (!status.ok()) return exchange->answer(openai_answer(status));
                const auto& counted = static_cast<const v1::CountInputTokensResponse&>(message);
                const nlohmann::ordered_json json = {{"object", "response.input_tokens"},
                                                     {"input_tokens", counted.input_tokens()}};
                exchange->answer(json_answer(200, dumped(json)));
              });
  return grpc::Status::OK;
}

}  // namespace

void add_response_routes(HttpRoutes& routes, HttpCalls& calls, BodyWork& bodies) {
  // With the body of the request.
  const auto add_post = [&](const char* path, auto handle) {
    routes.add(
        {"POST", path,
         [&bodies, &calls, handle](const SharedExchange& exchange) {
           bodies.read(
               exchange,
               [exchange, &calls, handle](const std::string& body, JsonBudget& budget) {
                 return handle(exchange, body, budget, calls);
               },
               [exchange](const grpc::Status& status) { exchange->answer(openai_answer(status)); });
         },
         openai_refusal});
  };
  add_post("/v1/responses", create);
  add_post("/v1/responses/input_tokens",
           [](const SharedExchange& exchange, const std::string& body, JsonBudget&,
              HttpCalls& all) { return count(exchange, body, all); });
}

}  // namespace lintel
