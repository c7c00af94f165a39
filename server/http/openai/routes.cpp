// SPDX-License-Identifier: Apache-2.0
#include "server/http/openai/routes.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "lintel/v1/model.pb.h"
#include "server/http/encoding/bounded_json.h"
#include "server/http/openai/chat.h"
#include "server/http/openai/completion.h"
#include "server/http/openai/completion_request.h"
#include "server/http/openai/responses.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

// When the server started, in seconds since 1970. Checkpoints have no date, and clients show this
// one: 0 would be 1970.
std::int64_t created_time() {
  static const std::int64_t time = std::chrono::duration_cast<std::chrono::seconds>(
                                       std::chrono::system_clock::now().time_since_epoch())
                                       .count();
  return time;
}

nlohmann::ordered_json defaults_object(const v1::Sampling& sampling) {
  auto json = nlohmann::ordered_json::object();
  if (sampling.has_temperature()) json["temperature"] = short_number(sampling.temperature());
  if (sampling.has_top_p()) json["top_p"] = short_number(sampling.top_p());
  if (sampling.has_top_k()) json["top_k"] = sampling.top_k();
  if (sampling.has_min_p()) json["min_p"] = short_number(sampling.min_p());
  if (sampling.has_repetition_penalty()) {
    json["repetition_penalty"] = short_number(sampling.repetition_penalty());
  }
  return json;
}

nlohmann::ordered_json model_object(const v1::Model& model) {
  nlohmann::ordered_json json = {{"id", model.name()},
                                 {"object", "model"},
                                 {"created", created_time()},
                                 {"owned_by", "lintel"},
                                 {"modality", model.modality()}};
  // Of models with a chat template.
  if (model.has_sampling_defaults()) {
    json["lintel"]["defaults"] = defaults_object(model.sampling_defaults());
  }
  return json;
}

void list_models(HttpCalls& calls, const SharedExchange& exchange) {
  calls.unary(exchange, "lintel.v1.ModelService/List", bytes_of(v1::ListModelsRequest()),
              [exchange](const grpc::Status& status, const google::protobuf::Message& response) {
                if (!status.ok()) return exchange->answer(openai_answer(status));
                const auto& list = static_cast<const v1::ListModelsResponse&>(response);
                auto data = nlohmann::ordered_json::array();
                for (const v1::Model& model : list.models()) data.push_back(model_object(model));
                const nlohmann::ordered_json json = {{"object", "list"}, {"data", data}};
                exchange->answer(json_answer(200, dumped(json)));
              });
}

void get_model(HttpCalls& calls, const SharedExchange& exchange) {
  v1::GetModelRequest get;
  get.set_name(exchange->request().parameters.at(0));
  calls.unary(exchange, "lintel.v1.ModelService/Get", bytes_of(get),
              [exchange](const grpc::Status& status, const google::protobuf::Message& response) {
                if (!status.ok()) return exchange->answer(openai_answer(status));
                const auto& model = static_cast<const v1::Model&>(response);
                exchange->answer(json_answer(200, dumped(model_object(model))));
              });
}

grpc::Status read_completion(const SharedExchange& exchange, const std::string& body,
                             JsonBudget& budget, HttpCalls& calls) {
  std::optional<CompletionRequest> request;
  OpenAiError error;
  {
    nlohmann::json object;
    grpc::Status parsed = parse_object(body, &budget, object);
    if (!parsed.ok()) return parsed;
    request = read_completion_request(object, error);
  }
  if (request) {
    complete(exchange, calls, *std::move(request));
  } else {
    exchange->answer(openai_answer(error));
  }
  return grpc::Status::OK;
}

// What the answer's form depends on; what is wrong with the rest of the body the service says.
grpc::Status read_chat(const SharedExchange& exchange, const std::string& body, JsonBudget& budget,
                       HttpCalls& calls, ChatReasoningField reasoning) {
  ChatForm form;
  form.reasoning = reasoning;
  {
    nlohmann::json object;
    grpc::Status parsed = parse_object(body, &budget, object);
    if (!parsed.ok()) return parsed;
    const auto is_true = [](const nlohmann::json& json, const char* name) {
      const auto found = json.find(name);
      return found != json.end() && found->is_boolean() && found->get<bool>();
    };
    if (object.contains("model") && object["model"].is_string()) form.model = object["model"];
    form.streams = is_true(object, "stream");
    form.logprobs = is_true(object, "logprobs");
    if (const auto options = object.find("stream_options");
        options != object.end() && options->is_object()) {
      form.include_usage = is_true(*options, "include_usage");
    }
  }
  complete_chat(exchange, calls, body, std::move(form));
  return grpc::Status::OK;
}

}  // namespace

void add_openai_routes(HttpRoutes& routes, HttpCalls& calls, BodyWork& bodies,
                       ChatReasoningField reasoning) {
  created_time();
  const auto add = [&](const char* method, const char* path, HttpHandler handle) {
    routes.add({method, path, std::move(handle), openai_refusal});
  };
  routes.shape_below("/v1", openai_refusal);
  add("GET", "/v1/models",
      [&calls](const SharedExchange& exchange) { list_models(calls, exchange); });
  add("GET", "/v1/models/{}",
      [&calls](const SharedExchange& exchange) { get_model(calls, exchange); });
  add("POST", "/v1/completions", [&calls, &bodies](const SharedExchange& exchange) {
    bodies.read(
        exchange,
        [exchange, &calls](const std::string& body, JsonBudget& budget) {
          return read_completion(exchange, body, budget, calls);
        },
        [exchange](const grpc::Status& status) { exchange->answer(openai_answer(status)); });
  });
  add("POST", "/v1/chat/completions", [&calls, &bodies, reasoning](const SharedExchange& exchange) {
    bodies.read(
        exchange,
        [exchange, &calls, reasoning](const std::string& body, JsonBudget& budget) {
          return read_chat(exchange, body, budget, calls, reasoning);
        },
        [exchange](const grpc::Status& status) { exchange->answer(openai_answer(status)); });
  });
  add_response_routes(routes, calls, bodies);
}

}  // namespace lintel
