// SPDX-License-Identifier: Apache-2.0
#include "server/anthropic/routes.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lintel/v1/chat.pb.h"
#include "lintel/v1/model.pb.h"
#include "model/core/errors.h"
#include "server/anthropic/errors.h"
#include "server/anthropic/message_output.h"
#include "server/anthropic/message_request.h"
#include "server/core/clock.h"
#include "server/http/encoding/json_bodies.h"
#include "server/http/encoding/server_sent_events.h"
#include "server/openai/chat_request.h"
#include "server/openai/http/errors.h"
#include "server/openai/named_models.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

using Json = nlohmann::ordered_json;

void refuse_call(HttpExchange& exchange, const grpc::Status& status, bool is_of_body = false) {
  exchange.answer(anthropic_answer(exchange.request(), status, is_of_body));
}

// Adds what the answer of a request has beside its own headers. Errors have their id themselves.
void add_request_id(HttpExchange& exchange) {
  exchange.add_header("request-id", exchange.request().request_id);
}

class MessageAnswer final : public StreamAnswer {
 public:
  // is_of_body: as of anthropic_answer().
  MessageAnswer(const HttpRequest& request, std::shared_ptr<MessageOutput> output, bool is_of_body)
      : request_(request), output_(std::move(output)), is_of_body_(is_of_body) {}

  HttpAnswer head() override {
    HttpAnswer head = server_sent_head(messages_protocol());
    head.headers.emplace_back("request-id", request_.request_id);
    return head;
  }
  grpc::Status piece(const google::protobuf::Message& message, std::string& out) override {
    out += output_->events(static_cast<const v1::ChatResponse&>(message));
    return grpc::Status::OK;
  }
  std::optional<std::string> tail(const grpc::Status& status) override {
    if (status.ok()) return output_->last_events();
    return "event: error\n" +
           server_sent_event(anthropic_answer(request_, status, is_of_body_).body);
  }
  HttpAnswer refusal(const grpc::Status& status) override {
    return anthropic_answer(request_, status, is_of_body_);
  }

 private:
  const HttpRequest& request_;  // of the exchange, which outlives its answer
  const std::shared_ptr<MessageOutput> output_;
  const bool is_of_body_;
};

// A request that was read, of any use.
struct ReceivedMessage {
  std::unique_ptr<ChatRequest> request = std::make_unique<ChatRequest>();
  MessageForm form;
};

grpc::Status read_received(HttpExchange& exchange, const std::string& body, JsonBudget& budget,
                           HttpCalls& calls, MessageUse use, const Sealer& sealer,
                           ReceivedMessage& received) {
  received.request->charge = calls.charge_of(exchange);
  const JsonFailure failure = read_message_request(
      body, use, sealer, calls.caller_of(exchange), [&budget] { return budget.cancelled(); },
      *received.request, received.form);
  return body_refusal(failure);
}

grpc::Status create_message(const SharedExchange& exchange, const std::string& body,
                            JsonBudget& budget, HttpCalls& calls, const Sealer::Secret& secret) {
  constexpr const char* kMethod = "lintel.v1.ChatService/Complete";
  const Sealer sealer(secret, calls.caller_of(*exchange));
  ReceivedMessage received;
  grpc::Status status =
      read_received(*exchange, body, budget, calls, MessageUse::kCreate, sealer, received);
  if (!status.ok()) return status;
  const bool streams = received.request->streams;
  const bool is_refused = !received.request->status.ok();
  const auto output = std::make_shared<MessageOutput>(MessageOutput::Options{
      .id = "msg_" + exchange->request().request_id,
      .model = received.request->params.base.model,
      .stop_sequences = received.request->params.base.stop.strings,
      .shows_thinking = received.form.shows_thinking,
      .seal = [sealer](const std::string& text) { return seal_thinking(sealer, text); },
      .charge = calls.charge_of(*exchange)});
  RequestMessage message(std::move(received.request));
  if (streams) {
    calls.stream(exchange, kMethod, std::move(message),
                 std::make_unique<MessageAnswer>(exchange->request(), output, is_refused));
    return grpc::Status::OK;
  }
  const auto kept = std::make_shared<KeptAnswer>();
  calls.gather(
      exchange, kMethod, std::move(message),
      [output](const google::protobuf::Message& response) {
        return output->gather(static_cast<const v1::ChatResponse&>(response));
      },
      [output, exchange, kept, is_refused](const grpc::Status& ended) -> HttpCalls::NextPiece {
        if (!ended.ok()) {
          refuse_call(*exchange, ended, is_refused);
          return nullptr;
        }
        add_request_id(*exchange);
        return answer_with(*exchange, output->body(), kept);
      },
      kept);
  return grpc::Status::OK;
}

grpc::Status count_tokens(const SharedExchange& exchange, const std::string& body,
                          JsonBudget& budget, HttpCalls& calls, const Sealer::Secret& secret) {
  const Sealer sealer(secret, calls.caller_of(*exchange));
  ReceivedMessage received;
  grpc::Status status =
      read_received(*exchange, body, budget, calls, MessageUse::kCount, sealer, received);
  if (!status.ok()) return status;
  const bool is_refused = !received.request->status.ok();
  calls.unary(
      exchange, "lintel.v1.ChatService/Render", RequestMessage(std::move(received.request)),
      [exchange, is_refused](const grpc::Status& ended, const google::protobuf::Message& message) {
        if (!ended.ok()) return refuse_call(*exchange, ended, is_refused);
        const auto& rendered = static_cast<const v1::RenderChatResponse&>(message);
        add_request_id(*exchange);
        const Json json = {{"input_tokens", rendered.ids_size()}};
        exchange->answer(json_answer(200, dumped(json)));
      });
  return grpc::Status::OK;
}

// "2026-11-23T02:43:46Z"
std::string rfc3339_time(std::int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  char text[32] = {};
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

// `id`: its name, or another that means it.
Json model_info(const v1::Model& model, const std::string& id) {
  Json json = {{"type", "model"},
               {"id", id},
               {"display_name", model.name()},
               {"created_at", rfc3339_time(kStartSeconds)}};
  json["max_input_tokens"] = model.max_length() > 0 ? Json(model.max_length()) : Json();
  return json;
}

// The value of a member of a query, percent-decoded; empty: it has none.
std::string query_member(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view member = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(member.size() + 1, query.size()));
    if (member.substr(0, member.find('=')) != name || member.size() == name.size()) continue;
    return percent_decoded(member.substr(name.size() + 1));
  }
  return "";
}

// A page of the list, as the query asks for it.
grpc::Status models_page(const std::map<std::string, const v1::Model*>& models,
                         std::string_view query, Json& page) {
  constexpr std::size_t kLimit = 20, kMostLimit = 1000;
  std::size_t limit = kLimit;
  if (const std::string text = query_member(query, "limit"); !text.empty()) {
    const auto read = std::from_chars(text.data(), text.data() + text.size(), limit);
    const bool is_number = read.ec == std::errc() && read.ptr == text.data() + text.size();
    if (!is_number || limit == 0 || limit > kMostLimit) {
      return invalid_argument({{"limit", "is not " + whole_number_text(1, kMostLimit)}});
    }
  }
  auto begin = models.begin(), end = models.end();
  const std::string after = query_member(query, "after_id");
  const std::string before = query_member(query, "before_id");
  if (!after.empty()) begin = models.upper_bound(after);
  if (!before.empty()) end = models.lower_bound(before);
  std::vector<std::pair<std::string, const v1::Model*>> among;
  if (after.empty() || before.empty() || after < before) {
    for (auto model = begin; model != end; ++model) among.emplace_back(*model);
  }
  const bool has_more = among.size() > limit;
  if (has_more && !before.empty() && after.empty()) {
    among.erase(among.begin(), among.end() - static_cast<std::ptrdiff_t>(limit));
  }
  if (among.size() > limit) among.resize(limit);
  Json data = Json::array();
  for (const auto& [name, model] : among) data.push_back(model_info(*model, name));
  page = {{"data", data},
          {"has_more", has_more},
          {"first_id", among.empty() ? Json() : Json(among.front().first)},
          {"last_id", among.empty() ? Json() : Json(among.back().first)}};
  return grpc::Status::OK;
}

void list_model_infos(HttpCalls& calls, const SharedExchange& exchange) {
  v1::ListModelsRequest all;
  all.set_all(true);
  calls.unary(exchange, "lintel.v1.ModelService/List", RequestMessage::of(std::move(all)),
              [exchange](const grpc::Status& listed, const google::protobuf::Message& response) {
                if (!listed.ok()) return refuse_call(*exchange, listed);
                Json page;
                const grpc::Status made =
                    models_page(named_models(static_cast<const v1::ListModelsResponse&>(response)),
                                exchange->request().query, page);
                if (!made.ok()) return refuse_call(*exchange, made);
                add_request_id(*exchange);
                exchange->answer(json_answer(200, dumped(page)));
              });
}

void get_model_info(HttpCalls& calls, const SharedExchange& exchange) {
  v1::GetModelRequest wanted;
  wanted.set_name(exchange->request().parameters.at(0));
  wanted.set_all(true);
  calls.unary(exchange, "lintel.v1.ModelService/Get", RequestMessage::of(std::move(wanted)),
              [exchange](const grpc::Status& found, const google::protobuf::Message& response) {
                if (!found.ok()) return refuse_call(*exchange, found);
                add_request_id(*exchange);
                const Json json = model_info(static_cast<const v1::Model&>(response),
                                             exchange->request().parameters.at(0));
                exchange->answer(json_answer(200, dumped(json)));
              });
}

// Puts `ours` in the place of OpenAI's route that answers this path, for requests of Anthropic's
// clients; those of others get what they got.
void share_route(HttpRoutes& routes, const char* path, HttpHandler ours) {
  HttpRoute shared = *routes.find("GET", path).route;
  shared.handle = [ours = std::move(ours),
                   theirs = std::move(shared.handle)](const SharedExchange& exchange) {
    is_of_anthropic_client(exchange->request()) ? ours(exchange) : theirs(exchange);
  };
  routes.add(std::move(shared));
}

}  // namespace

void add_anthropic_routes(HttpRoutes& routes, HttpCalls& calls, BodyWork& bodies,
                          const Sealer::Secret& secret) {
  routes.add(messages_protocol());
  routes.add(shared_models_protocol());
  const auto add_post = [&](const char* path, auto handle) {
    routes.add(
        {"POST", path, [&bodies, &calls, secret, handle](const SharedExchange& exchange) {
           bodies.read(
               exchange,
               [exchange, &calls, secret, handle](const std::string& body, JsonBudget& budget) {
                 return handle(exchange, body, budget, calls, secret);
               },
               [exchange](const grpc::Status& status) { refuse_call(*exchange, status); });
         }});
  };
  add_post("/v1/messages", create_message);
  add_post("/v1/messages/count_tokens", count_tokens);
  share_route(routes, "/v1/models",
              [&calls](const SharedExchange& exchange) { list_model_infos(calls, exchange); });
  share_route(routes, "/v1/models/any",
              [&calls](const SharedExchange& exchange) { get_model_info(calls, exchange); });
}

}  // namespace lintel
