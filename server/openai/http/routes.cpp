// SPDX-License-Identifier: Apache-2.0
#include "server/openai/http/routes.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "lintel/v1/model.pb.h"
#include "server/core/clock.h"
#include "server/http/encoding/json_bodies.h"
#include "server/openai/http/chat.h"
#include "server/openai/http/completion.h"
#include "server/openai/http/completion_request.h"
#include "server/openai/http/errors.h"
#include "server/openai/http/responses.h"
#include "server/openai/named_models.h"
#include "server/rpc/ignored_members.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

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

// A model as an object. `id`: its name, or an alias.
nlohmann::ordered_json model_object(const v1::Model& model, const std::string& id) {
  nlohmann::ordered_json object = {
      {"id", id}, {"object", "model"}, {"created", kStartSeconds}, {"owned_by", "lintel"}};
  if (!model.modality().empty()) object["modality"] = model.modality();
  object["lintel"] = {{"state", state_of(model)}};
  if (id != model.name()) object["lintel"]["alias_of"] = model.name();
  if (!model.reason().empty()) object["lintel"]["reason"] = model.reason();
  // Present for models with a chat template.
  if (model.has_sampling_defaults()) {
    object["lintel"]["defaults"] = defaults_object(model.sampling_defaults());
  }
  return object;
}

void list_models(HttpCalls& calls, const SharedExchange& exchange) {
  v1::ListModelsRequest all;
  all.set_all(true);
  calls.unary(exchange, "lintel.v1.ModelService/List", RequestMessage::of(std::move(all)),
              [exchange](const grpc::Status& status, const google::protobuf::Message& response) {
                if (!status.ok()) return exchange->answer(openai_answer(status));
                auto data = nlohmann::ordered_json::array();
                for (const auto& [name, model] :
                     named_models(static_cast<const v1::ListModelsResponse&>(response))) {
                  data.push_back(model_object(*model, name));
                }
                const nlohmann::ordered_json json = {{"object", "list"}, {"data", data}};
                exchange->answer(json_answer(200, dumped(json)));
              });
}

void get_model(HttpCalls& calls, const SharedExchange& exchange) {
  v1::GetModelRequest wanted;
  wanted.set_name(exchange->request().parameters.at(0));
  wanted.set_all(true);
  calls.unary(exchange, "lintel.v1.ModelService/Get", RequestMessage::of(std::move(wanted)),
              [exchange](const grpc::Status& status, const google::protobuf::Message& response) {
                if (!status.ok()) return exchange->answer(openai_answer(status));
                const auto& model = static_cast<const v1::Model&>(response);
                const std::string& id = exchange->request().parameters.at(0);
                exchange->answer(json_answer(200, dumped(model_object(model, id))));
              });
}

grpc::Status read_completion(const SharedExchange& exchange, const std::string& body,
                             JsonBudget& budget, HttpCalls& calls, bool refuses_unknown_members) {
  std::optional<CompletionRequest> request;
  OpenAiError error;
  {
    nlohmann::json object;
    grpc::Status parsed = parse_object(body, &budget, object);
    if (!parsed.ok()) return parsed;
    request = read_completion_request(object, error);
  }
  if (request) {
    std::string ignored;
    const grpc::Status passed = request->ignored.report(refuses_unknown_members, ignored);
    if (!passed.ok()) {
      exchange->answer(openai_answer(passed));
      return grpc::Status::OK;
    }
    if (!ignored.empty()) exchange->add_header(kIgnoredHeader, std::move(ignored));
    complete(exchange, calls, *std::move(request));
  } else {
    exchange->answer(openai_answer(error));
  }
  return grpc::Status::OK;
}

}  // namespace

void add_openai_routes(HttpRoutes& routes, HttpCalls& calls, BodyWork& bodies,
                       OpenAiOptions options) {
  const auto add = [&](const char* method, const char* path, HttpHandler handle) {
    routes.add({method, path, std::move(handle)});
  };
  routes.add(openai_protocol());
  add("GET", "/v1/models",
      [&calls](const SharedExchange& exchange) { list_models(calls, exchange); });
  // A name may have a slash, as it is or percent-encoded.
  add("GET", "/v1/models/{*}",
      [&calls](const SharedExchange& exchange) { get_model(calls, exchange); });
  add("POST", "/v1/completions", [&calls, &bodies, options](const SharedExchange& exchange) {
    bodies.read(
        exchange,
        [exchange, &calls, options](const std::string& body, JsonBudget& budget) {
          return read_completion(exchange, body, budget, calls, options.refuses_unknown_members);
        },
        [exchange](const grpc::Status& status) { exchange->answer(openai_answer(status)); });
  });
  add("POST", "/v1/chat/completions", [&calls, &bodies, options](const SharedExchange& exchange) {
    bodies.read(
        exchange,
        [exchange, &calls, options](const std::string& body, JsonBudget& budget) {
          return complete_chat(exchange, body, budget, calls, options.reasoning);
        },
        [exchange](const grpc::Status& status) { exchange->answer(openai_answer(status)); });
  });
  add_response_routes(routes, calls, bodies);
  add_prompt_routes(routes, calls, bodies);
}

}  // namespace lintel
