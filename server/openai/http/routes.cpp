// SPDX-License-Identifier: Apache-2.0
#include "server/openai/http/routes.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "lintel/v1/model.pb.h"
#include "server/http/encoding/bounded_json.h"
#include "server/openai/http/chat.h"
#include "server/openai/http/completion.h"
#include "server/openai/http/completion_request.h"
#include "server/openai/http/errors.h"
#include "server/openai/http/responses.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

// When the server started, in seconds since 1970. Checkpoints have no date, and clients show this
// one: 0 would be 1970.
std::int64_t created_time() {
  static const std::int64_t time = unix_seconds();
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

const char* state_of(const v1::Model& model) {
  if (model.state() == v1::MODEL_STATE_READY) return "loaded";
  if (model.state() == v1::MODEL_STATE_LOADING) return "loading";
  return model.load_failed() ? "failed" : "unloaded";
}

nlohmann::ordered_json model_object(const v1::Model& model) {
  nlohmann::ordered_json object = {{"id", model.name()},
                                   {"object", "model"},
                                   {"created", created_time()},
                                   {"owned_by", "lintel"}};
  if (!model.modality().empty()) object["modality"] = model.modality();
  object["lintel"] = {{"state", state_of(model)}};
  if (!model.reason().empty()) object["lintel"]["reason"] = model.reason();
  // Of models with a chat template.
  if (model.has_sampling_defaults()) {
    object["lintel"]["defaults"] = defaults_object(model.sampling_defaults());
  }
  return object;
}

// What requests may name, each once: of several versions the highest that is ready.
std::map<std::string, const v1::Model*> named_models(const v1::ListModelsResponse& list) {
  std::map<std::string, const v1::Model*> models;
  for (const v1::Model& model : list.models()) {
    const bool is_ready = model.state() == v1::MODEL_STATE_READY;
    if (!is_ready && !model.loads_on_request()) continue;
    const v1::Model*& named = models[model.name()];
    if (named == nullptr || is_ready || named->state() != v1::MODEL_STATE_READY) named = &model;
  }
  return models;
}

// Calls answer(models) with named_models().
template <typename Answer>
void with_models(HttpCalls& calls, const SharedExchange& exchange, Answer answer) {
  v1::ListModelsRequest all;
  all.set_all(true);
  calls.unary(
      exchange, "lintel.v1.ModelService/List", RequestMessage::of(std::move(all)),
      [exchange, answer](const grpc::Status& status, const google::protobuf::Message& response) {
        if (!status.ok()) return exchange->answer(openai_answer(status));
        answer(named_models(static_cast<const v1::ListModelsResponse&>(response)));
      });
}

void list_models(HttpCalls& calls, const SharedExchange& exchange) {
  with_models(calls, exchange, [exchange](const std::map<std::string, const v1::Model*>& models) {
    auto data = nlohmann::ordered_json::array();
    for (const auto& [name, model] : models) data.push_back(model_object(*model));
    const nlohmann::ordered_json json = {{"object", "list"}, {"data", data}};
    exchange->answer(json_answer(200, dumped(json)));
  });
}

grpc::Status unknown_model(const std::string& name,
                           const std::map<std::string, const v1::Model*>& models) {
  constexpr std::size_t kMost = 10;
  std::string there;
  for (auto model = models.begin();
       model != models.end() && std::cmp_less(std::distance(models.begin(), model), kMost);
       ++model) {
    there += (there.empty() ? ": there are " : ", ") + clip(model->first);
  }
  if (models.size() > kMost) there += " and " + std::to_string(models.size() - kMost) + " more";
  return not_found("model", name, "no model is named " + clip(name) + there);
}

void get_model(HttpCalls& calls, const SharedExchange& exchange) {
  with_models(calls, exchange, [exchange](const std::map<std::string, const v1::Model*>& models) {
    const std::string& name = exchange->request().parameters.at(0);
    const auto found = models.find(name);
    if (found == models.end()) {
      return exchange->answer(openai_answer(unknown_model(name, models)));
    }
    exchange->answer(json_answer(200, dumped(model_object(*found->second))));
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

}  // namespace

void add_openai_routes(HttpRoutes& routes, HttpCalls& calls, BodyWork& bodies,
                       ChatReasoningField reasoning) {
  created_time();
  const auto add = [&](const char* method, const char* path, HttpHandler handle) {
    routes.add({method, path, std::move(handle)});
  };
  routes.add(openai_protocol());
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
          return complete_chat(exchange, body, budget, calls, reasoning);
        },
        [exchange](const grpc::Status& status) { exchange->answer(openai_answer(status)); });
  });
  add_response_routes(routes, calls, bodies);
}

}  // namespace lintel
