// SPDX-License-Identifier: Apache-2.0
#include "server/openai/http/responses_socket.h"

#include <atomic>
#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "lintel/v1/response.pb.h"
#include "server/http/encoding/json_bodies.h"
#include "server/http/transport/websocket.h"
#include "server/openai/http/connection_turns.h"
#include "server/openai/http/errors.h"
#include "server/openai/response_request.h"

namespace lintel {
namespace {

using Turns = std::shared_ptr<ConnectionTurns>;

// An error of HTTP as an event: {"type": "error", "status", "error"}, with a code in any case.
HttpAnswer as_event(const HttpAnswer& refused) {
  nlohmann::ordered_json error = nlohmann::ordered_json::parse(refused.body)["error"];
  if (error["code"].is_null()) error["code"] = error["type"];
  const nlohmann::ordered_json event = {
      {"type", "error"}, {"status", refused.status}, {"error", std::move(error)}};
  return {refused.status, {}, websocket_text(dumped(event))};
}

HttpAnswer error_event(const grpc::Status& status) {
  return as_event(openai_answer(status, kNamesAsSent));
}

class TurnAnswer final : public StreamAnswer {
 public:
  TurnAnswer(Turns turns, std::string previous)
      : turns_(std::move(turns)), previous_(std::move(previous)) {}

  HttpAnswer head() override { return {.heartbeat = websocket_ping()}; }
  grpc::Status piece(const google::protobuf::Message& message, std::string& out) override {
    const auto& events = static_cast<const v1::ResponseEvents&>(message);
    for (const v1::ResponseEvent& event : events.events()) out += websocket_text(event.body());
    if (events.has_kept()) {
      is_kept_ = true;
      turns_->add(events.kept().response_id(), previous_, events.kept().items());
    }
    return grpc::Status::OK;
  }
  std::optional<std::string> tail(const grpc::Status& status) override {
    // The continuation failed; a stored turn never continues a kept one.
    if (!is_kept_) turns_->forget(previous_);
    return status.ok() ? std::string() : error_event(status).body;
  }
  HttpAnswer refusal(const grpc::Status& status) override {
    turns_->forget(previous_);
    return error_event(status);
  }

 private:
  const Turns turns_;
  const std::string previous_;  // the id of the continued response; empty: none
  bool is_kept_ = false;
};

grpc::Status create(const SharedExchange& exchange, const std::string& body, JsonBudget& budget,
                    HttpCalls& calls, const Turns& turns) {
  auto received = std::make_unique<ReceivedResponse>();
  received->charge = calls.charge_of(*exchange);
  received->is_turn = true;
  const JsonFailure failure = read_response_request(
      body, ResponseUse::kTurn, calls.caller_of(*exchange),
      [&budget] { return budget.cancelled(); }, *received);
  if (grpc::Status refused = body_refusal(failure); !refused.ok()) return refused;
  std::string previous = received->request.previous_response_id;
  received->continue_turn(turns->find(previous), calls.caller_of(*exchange));
  calls.stream(exchange, "lintel.v1.ResponseService/Create", RequestMessage(std::move(received)),
               std::make_unique<TurnAnswer>(turns, std::move(previous)));
  return grpc::Status::OK;
}

}  // namespace

void add_responses_socket(HttpRoutes& routes, HttpCalls& calls, BodyWork& bodies) {
  const auto all_bytes = std::make_shared<std::atomic<std::size_t>>(0);
  const auto open = [&calls, &bodies, all_bytes](const HttpRequest&) -> HttpHandler {
    return [&calls, &bodies,
            turns = std::make_shared<ConnectionTurns>(all_bytes)](const SharedExchange& exchange) {
      bodies.read(
          exchange,
          [exchange, &calls, turns](const std::string& body, JsonBudget& budget) {
            return create(exchange, body, budget, calls, turns);
          },
          [exchange](const grpc::Status& status) { exchange->answer(error_event(status)); });
    };
  };
  const auto refuse_get = [](const SharedExchange& exchange) {
    HttpAnswer answer = openai_refusal(
        exchange->request(), 426,
        grpc::Status(
            grpc::INVALID_ARGUMENT,
            "GET of /v1/responses is for WebSockets: it has the header upgrade: websocket"));
    answer.headers.emplace_back("upgrade", "websocket");
    exchange->answer(std::move(answer));
  };
  routes.add({"GET", "/v1/responses", refuse_get, /*refuse=*/{}, /*is_open=*/false, open,
              [](const HttpRequest& request, int http_status, const grpc::Status& status) {
                return as_event(openai_refusal(request, http_status, status));
              }});
}

}  // namespace lintel
