// SPDX-License-Identifier: Apache-2.0
#include "server/openai/http/responses.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lintel/v1/response.pb.h"
#include "server/http/encoding/json_bodies.h"
#include "server/http/encoding/server_sent_events.h"
#include "server/openai/http/errors.h"
#include "server/openai/http/responses_socket.h"
#include "server/openai/response_request.h"

namespace lintel {
namespace {

// The service names the members of a response itself.
HttpAnswer answer_of(const grpc::Status& status) { return openai_answer(status, kNamesAsSent); }

class EventsAnswer final : public StreamAnswer {
 public:
  HttpAnswer head() override { return server_sent_head(openai_protocol()); }
  grpc::Status piece(const google::protobuf::Message& message, std::string& out) override {
    for (const v1::ResponseEvent& event :
         static_cast<const v1::ResponseEvents&>(message).events()) {
      out += "event: " + event.type() + "\n" + server_sent_event(event.body());
    }
    return grpc::Status::OK;
  }
  std::optional<std::string> tail(const grpc::Status& status) override {
    if (status.ok()) return server_sent_event("[DONE]");
    return "event: error\n" + server_sent_event(answer_of(status).body);
  }
  HttpAnswer refusal(const grpc::Status& status) override { return answer_of(status); }
};

// Answers with the text of JSON in the call's last message, in pieces: the call keeps the message
// until they are sent, and charges it.
template <typename Message>
void answer_json(const SharedExchange& exchange, HttpCalls& calls, const char* method,
                 RequestMessage request, const std::string& (Message::*text)() const) {
  const auto found = std::make_shared<const std::string*>(nullptr);
  calls.gather(
      exchange, method, std::move(request),
      [found, text](const google::protobuf::Message& message) {
        *found = &(static_cast<const Message&>(message).*text)();
        return grpc::Status::OK;
      },
      [found, exchange](const grpc::Status& status) -> HttpCalls::NextPiece {
        if (!status.ok()) {
          exchange->answer(answer_of(status));
          return nullptr;
        }
        JsonPieces pieces;
        pieces.refer(**found);
        return answer_with(*exchange, std::move(pieces), /*kept=*/nullptr);
      },
      /*kept=*/nullptr);
}

void write_pieces(const SharedExchange& exchange, const std::shared_ptr<JsonPieces>& pieces) {
  if (pieces->is_over()) return exchange->end();
  exchange->write(pieces->next(), [exchange, pieces](bool more) {
    if (more) write_pieces(exchange, pieces);
  });
}

// Answers with a response in the background as it begins; the response continues.
void answer_begun(const SharedExchange& exchange, HttpCalls& calls, const char* method,
                  RequestMessage request) {
  const auto is_answered = std::make_shared<bool>(false);
  calls.gather(
      exchange, method, std::move(request),
      [is_answered, exchange](const google::protobuf::Message& message) {
        const std::string& response = static_cast<const v1::ResponseEvents&>(message).response();
        if (response.empty() || std::exchange(*is_answered, true)) return grpc::Status::OK;
        const auto pieces = std::make_shared<JsonPieces>();
        pieces->raw(response);
        std::string first = pieces->next();
        if (pieces->is_over()) {
          exchange->answer(json_answer(200, std::move(first)));
        } else {
          exchange->begin(json_answer(200, std::move(first)));
          write_pieces(exchange, pieces);
        }
        return grpc::Status::OK;
      },
      [is_answered, exchange](const grpc::Status& status) {
        if (!*is_answered) exchange->answer(answer_of(status));
        return HttpCalls::NextPiece();
      },
      /*kept=*/nullptr);
}

// Reads a body into `received`. Refuses one that is not JSON.
grpc::Status read_received(const SharedExchange& exchange, const std::string& body, ResponseUse use,
                           JsonBudget& budget, HttpCalls& calls, ReceivedResponse& received) {
  received.charge = calls.charge_of(*exchange);
  return body_refusal(read_response_request(
      body, use, calls.caller_of(*exchange), [&budget] { return budget.cancelled(); }, received));
}

grpc::Status create(const SharedExchange& exchange, const std::string& body, JsonBudget& budget,
                    HttpCalls& calls) {
  constexpr const char* kMethod = "lintel.v1.ResponseService/Create";
  auto received = std::make_unique<ReceivedResponse>();
  received->idempotency_key = exchange->request().header("idempotency-key");
  grpc::Status refused =
      read_received(exchange, body, ResponseUse::kCreate, budget, calls, *received);
  if (!refused.ok()) return refused;
  const bool streams = received->request.streams;
  const bool is_background = received->request.is_background;
  RequestMessage request(std::move(received));
  if (streams) {
    calls.stream(exchange, kMethod, std::move(request), std::make_unique<EventsAnswer>());
  } else if (is_background) {
    answer_begun(exchange, calls, kMethod, std::move(request));
  } else {
    answer_json(exchange, calls, kMethod, std::move(request), &v1::ResponseEvents::response);
  }
  return grpc::Status::OK;
}

grpc::Status count(const SharedExchange& exchange, const std::string& body, JsonBudget& budget,
                   HttpCalls& calls) {
  auto received = std::make_unique<ReceivedResponse>();
  grpc::Status refused =
      read_received(exchange, body, ResponseUse::kCount, budget, calls, *received);
  if (!refused.ok()) return refused;
  calls.unary(exchange, "lintel.v1.ResponseService/CountInputTokens",
              RequestMessage(std::move(received)),
              [exchange](const grpc::Status& status, const google::protobuf::Message& message) {
                if (!status.ok()) return exchange->answer(answer_of(status));
                const auto& counted = static_cast<const v1::CountInputTokensResponse&>(message);
                const nlohmann::ordered_json json = {{"object", "response.input_tokens"},
                                                     {"input_tokens", counted.input_tokens()}};
                exchange->answer(json_answer(200, dumped(json)));
              });
  return grpc::Status::OK;
}

// The members of a query, percent-decoded.
std::map<std::string, std::string> members_of_query(std::string_view query) {
  std::map<std::string, std::string> members;
  while (!query.empty()) {
    const std::string_view member = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(member.size() + 1, query.size()));
    const std::size_t equals = std::min(member.find('='), member.size());
    members[percent_decoded(member.substr(0, equals))] =
        percent_decoded(member.substr(std::min(equals + 1, member.size())));
  }
  return members;
}

// Reads a whole number from 0 to `most`; false for other texts.
bool read_number(const std::string& text, std::int64_t most, std::int64_t& number) {
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && rest == text.data() + text.size() && number >= 0 && number <= most;
}

void get(HttpCalls& calls, const SharedExchange& exchange) {
  const std::string& id = exchange->request().parameters.at(0);
  const auto members = members_of_query(exchange->request().query);
  const auto stream = members.find("stream");
  if (stream == members.end() || stream->second != "true") {
    v1::GetResponseRequest request;
    request.set_id(id);
    return answer_json(exchange, calls, "lintel.v1.ResponseService/Get",
                       RequestMessage::of(std::move(request)), &v1::ResponseJson::body);
  }
  v1::ReplayResponseRequest request;
  request.set_id(id);
  if (const auto after = members.find("starting_after"); after != members.end()) {
    std::int64_t number = 0;
    if (!read_number(after->second, INT32_MAX, number)) {
      return exchange->answer(openai_answer(
          OpenAiError{"starting_after: is no number of an event", "starting_after", ""}));
    }
    request.set_starting_after(number);
  }
  calls.stream(exchange, "lintel.v1.ResponseService/Replay", RequestMessage::of(std::move(request)),
               std::make_unique<EventsAnswer>());
}

void remove(HttpCalls& calls, const SharedExchange& exchange) {
  v1::DeleteResponseRequest request;
  request.set_id(exchange->request().parameters.at(0));
  calls.unary(
      exchange, "lintel.v1.ResponseService/Delete", RequestMessage::of(std::move(request)),
      [exchange, id = request.id()](const grpc::Status& status, const google::protobuf::Message&) {
        if (!status.ok()) return exchange->answer(answer_of(status));
        const nlohmann::ordered_json json = {{"id", id}, {"object", "response"}, {"deleted", true}};
        exchange->answer(json_answer(200, dumped(json)));
      });
}

void cancel(HttpCalls& calls, const SharedExchange& exchange) {
  v1::CancelResponseRequest request;
  request.set_id(exchange->request().parameters.at(0));
  answer_json(exchange, calls, "lintel.v1.ResponseService/Cancel",
              RequestMessage::of(std::move(request)), &v1::ResponseJson::body);
}

void list_input(HttpCalls& calls, const SharedExchange& exchange) {
  v1::ListInputItemsRequest request;
  request.set_id(exchange->request().parameters.at(0));
  for (const auto& [name, value] : members_of_query(exchange->request().query)) {
    std::int64_t number = 0;
    const bool is_right = name == "limit"   ? read_number(value, INT32_MAX, number) && number > 0
                          : name == "order" ? value == "asc" || value == "desc"
                                            : true;
    if (!is_right) {
      const char* const what =
          name == "limit" ? "limit: is no number from 1 to 100" : "order: is not asc or desc";
      return exchange->answer(openai_answer(OpenAiError{what, name, ""}));
    }
    if (name == "limit") request.set_limit(static_cast<std::uint32_t>(number));
    if (name == "order") request.set_ascending(value == "asc");
    if (name == "after") request.set_after_id(value);
  }
  answer_json(exchange, calls, "lintel.v1.ResponseService/ListInputItems",
              RequestMessage::of(std::move(request)), &v1::ResponseJson::body);
}

grpc::Status compact(const SharedExchange& exchange, const std::string& body, JsonBudget& budget,
                     HttpCalls& calls) {
  auto received = std::make_unique<ReceivedResponse>();
  grpc::Status refused =
      read_received(exchange, body, ResponseUse::kCompact, budget, calls, *received);
  if (!refused.ok()) return refused;
  answer_json(exchange, calls, "lintel.v1.ResponseService/Compact",
              RequestMessage(std::move(received)), &v1::ResponseJson::body);
  return grpc::Status::OK;
}

}  // namespace

void add_response_routes(HttpRoutes& routes, HttpCalls& calls, BodyWork& bodies) {
  // Adds a route with the body of the request.
  const auto add_post = [&](const char* path, auto handle) {
    routes.add(
        {"POST", path, [&bodies, &calls, handle](const SharedExchange& exchange) {
           bodies.read(
               exchange,
               [exchange, &calls, handle](const std::string& body, JsonBudget& budget) {
                 return handle(exchange, body, budget, calls);
               },
               [exchange](const grpc::Status& status) { exchange->answer(answer_of(status)); });
         }});
  };
  const auto add = [&](const char* method, const char* path, auto handle) {
    routes.add({method, path,
                [&calls, handle](const SharedExchange& exchange) { handle(calls, exchange); }});
  };
  add("GET", "/v1/responses/{}", get);
  add("DELETE", "/v1/responses/{}", remove);
  add("POST", "/v1/responses/{}/cancel", cancel);
  add("GET", "/v1/responses/{}/input_items", list_input);
  add_post("/v1/responses", create);
  add_responses_socket(routes, calls, bodies);
  add_post("/v1/responses/compact", compact);
  add_post("/v1/responses/input_tokens", count);
}

}  // namespace lintel
