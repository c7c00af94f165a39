#include "server/web/openai/routes.h"

#include <memory>
#include <utility>

#include "lintel/v1/model.pb.h"
#include "server/call/status.h"
#include "server/web/forms/bounded_json.h"
#include "server/web/openai/completion.h"
#include "server/web/openai/completion_request.h"
#include "server/web/openai/openai_error.h"

namespace lintel {
namespace {

nlohmann::ordered_json model_object(const v1::Model& model) {
  return {{"id", model.name()},
          {"object", "model"},
          {"created", 0},  // nobody has noted when
          {"owned_by", "lintel"},
          {"modality", model.modality()}};
}

void list_models(InnerCalls& calls, const SharedExchange& exchange) {
  calls.unary(exchange, "/lintel.v1.ModelService/List", bytes_of(v1::ListModelsRequest()),
              [exchange](const grpc::Status& status, grpc::ByteBuffer& response,
                         const grpc::ClientContext&) {
                v1::ListModelsResponse list;
                if (!status.ok() || !parse_from(response, list)) {
                  return exchange->answer(openai_answer(status));
                }
                auto data = nlohmann::ordered_json::array();
                for (const v1::Model& model : list.models()) data.push_back(model_object(model));
                const nlohmann::ordered_json json = {{"object", "list"}, {"data", data}};
                exchange->answer(json_answer(200, dumped(json)));
              });
}

void get_model(InnerCalls& calls, const SharedExchange& exchange) {
  v1::GetModelRequest get;
  get.set_name(exchange->request().parameters.at(0));
  calls.unary(exchange, "/lintel.v1.ModelService/Get", bytes_of(get),
              [exchange](const grpc::Status& status, grpc::ByteBuffer& response,
                         const grpc::ClientContext&) {
                v1::Model model;
                if (!status.ok() || !parse_from(response, model)) {
                  return exchange->answer(openai_answer(status));
                }
                exchange->answer(json_answer(200, dumped(model_object(model))));
              });
}

void complete(InnerCalls& calls, const SharedExchange& exchange) {
  OpenAiError error;
  auto request = read_completion_request(exchange->take_body(), error);
  if (!request) return exchange->answer(openai_answer(error));
  std::make_shared<Completion>(exchange, calls, std::move(*request))->start();
}

}  // namespace

void add_openai_routes(HttpRoutes& routes, InnerCalls& calls) {
  const auto add = [&](const char* method, const char* path,
                       void (*answer)(InnerCalls&, const SharedExchange&)) {
    routes.add({method, path,
                [&calls, answer](const SharedExchange& exchange) { answer(calls, exchange); },
                openai_refusal});
  };
  add("GET", "/v1/models", list_models);
  add("GET", "/v1/models/{}", get_model);
  add("POST", "/v1/completions", complete);
  add("POST", "/v1/chat/completions", [](InnerCalls&, const SharedExchange& exchange) {
    exchange->answer(openai_refusal(
        exchange->request(), 404,
        grpc::Status(grpc::StatusCode::UNIMPLEMENTED,
                     "chat is not served: models here go on from a text, see /v1/completions")));
  });
}

}  // namespace lintel
