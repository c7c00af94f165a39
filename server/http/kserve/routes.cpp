// SPDX-License-Identifier: Apache-2.0
#include "server/http/kserve/routes.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "inference/grpc_service.pb.h"
#include "server/http/encoding/json_bodies.h"
#include "server/http/encoding/server_sent_events.h"
#include "server/http/kserve/infer_json.h"
#include "server/http/transport/response_head.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

using nlohmann::ordered_json;

std::string method_of(const char* name) {
  return std::string("inference.GRPCInferenceService/") + name;
}

// The protocol's shape: {"error": message}.
HttpAnswer kserve_refusal(const HttpRequest&, int http_status, const grpc::Status& status) {
  HttpAnswer answer =
      json_answer(http_status, dumped(ordered_json{{"error", status.error_message()}}));
  add_retry_header(read_status_details(status), answer.headers);
  return answer;
}

const HttpProtocol& kserve_protocol() {
  static const HttpProtocol protocol{
      .path = "/v2", .refuse = kserve_refusal, .keep_alive = std::string(kServerSentComment)};
  return protocol;
}

HttpAnswer error_answer(const grpc::Status& status) {
  return kserve_refusal({}, http_status_of(status.error_code()), status);
}

// The same of generate, for which the protocol has a status of its own for what is wrong with the
// request.
HttpAnswer generate_error(const grpc::Status& status) {
  HttpAnswer answer = error_answer(status);
  if (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT) answer.status = 422;
  return answer;
}

// A message with the names of its fields; 64-bit numbers are numbers, as Triton has them. Fields
// without presence are there with their default, too.
ordered_json json_of(const google::protobuf::Message& message);

// One value of a field; index: of a repeated one, else -1.
ordered_json value_json(const google::protobuf::Message& message,
                        const google::protobuf::FieldDescriptor& field, int index) {
  using Field = google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& values = *message.GetReflection();
  const auto get = [&](auto single, auto repeated) -> ordered_json {
    return index < 0 ? (values.*single)(message, &field)
                     : (values.*repeated)(message, &field, index);
  };
  using Values = google::protobuf::Reflection;
  switch (field.cpp_type()) {
    case Field::CPPTYPE_INT32:
      return get(&Values::GetInt32, &Values::GetRepeatedInt32);
    case Field::CPPTYPE_INT64:
      return get(&Values::GetInt64, &Values::GetRepeatedInt64);
    case Field::CPPTYPE_UINT32:
      return get(&Values::GetUInt32, &Values::GetRepeatedUInt32);
    case Field::CPPTYPE_UINT64:
      return get(&Values::GetUInt64, &Values::GetRepeatedUInt64);
    case Field::CPPTYPE_DOUBLE:
      return get(&Values::GetDouble, &Values::GetRepeatedDouble);
    case Field::CPPTYPE_FLOAT:
      return get(&Values::GetFloat, &Values::GetRepeatedFloat);
    case Field::CPPTYPE_BOOL:
      return get(&Values::GetBool, &Values::GetRepeatedBool);
    case Field::CPPTYPE_STRING:
      return get(&Values::GetString, &Values::GetRepeatedString);
    case Field::CPPTYPE_ENUM:
      return (index < 0 ? values.GetEnum(message, &field)
                        : values.GetRepeatedEnum(message, &field, index))
          ->name();
    case Field::CPPTYPE_MESSAGE:
      return json_of(index < 0 ? values.GetMessage(message, &field)
                               : values.GetRepeatedMessage(message, &field, index));
  }
  return nullptr;
}

ordered_json json_of(const google::protobuf::Message& message) {
  ordered_json json = ordered_json::object();
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  const google::protobuf::Reflection& values = *message.GetReflection();
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *type.field(i);
    if (!field.is_repeated()) {
      if (field.has_presence() && !values.HasField(message, &field)) continue;
      json[field.name()] = value_json(message, field, -1);
      continue;
    }
    ordered_json& list = json[field.name()] =
        field.is_map() ? ordered_json::object() : ordered_json::array();
    for (int k = 0; k < values.FieldSize(message, &field); ++k) {
      ordered_json value = value_json(message, field, k);
      if (field.is_map()) {
        list[value["key"].get<std::string>()] = std::move(value["value"]);
      } else {
        list.push_back(std::move(value));
      }
    }
  }
  return json;
}

// Answers with what `shown` makes of a method's response.
template <typename Response, typename Shown>
HttpCalls::UnaryDone answer_with(const SharedExchange& exchange, Shown shown) {
  return [exchange, shown = std::move(shown)](const grpc::Status& status,
                                              const google::protobuf::Message& response) {
    exchange->answer(status.ok() ? shown(static_cast<const Response&>(response))
                                 : error_answer(status));
  };
}

// Asks a method of the service, and answers so.
template <typename Response, typename Request, typename Shown>
void ask(HttpCalls& calls, const SharedExchange& exchange, const char* method, Request request,
         Shown shown) {
  calls.unary(exchange, method_of(method), RequestMessage::of(std::move(request)),
              answer_with<Response>(exchange, std::move(shown)));
}

// The same of a method about health: on this thread, for others may be busy for long.
template <typename Response, typename Request, typename Shown>
void ask_health(HttpCalls& calls, const SharedExchange& exchange, const char* method,
                Request request, Shown shown) {
  calls.unary_here(exchange, method_of(method), RequestMessage::of(std::move(request)),
                   answer_with<Response>(exchange, std::move(shown)));
}

// The model of a path, whose version may be a part of it.
template <typename Request>
Request model_request(const HttpRequest& http) {
  Request request;
  request.set_name(http.parameters.at(0));
  if (http.parameters.size() > 1) request.set_version(http.parameters[1]);
  return request;
}

HttpAnswer readiness(bool is_ready, const ordered_json& body) {
  return with_retry_if_unavailable(json_answer(is_ready ? 200 : 503, dumped(body)));
}

void is_live(HttpCalls& calls, const SharedExchange& exchange) {
  ask_health<inference::ServerLiveResponse>(
      calls, exchange, "ServerLive", inference::ServerLiveRequest(), [](const auto& response) {
        return readiness(response.live(), ordered_json{{"live", response.live()}});
      });
}

void is_ready(HttpCalls& calls, const SharedExchange& exchange) {
  ask_health<inference::ServerReadyResponse>(
      calls, exchange, "ServerReady", inference::ServerReadyRequest(), [](const auto& response) {
        return readiness(response.ready(), ordered_json{{"ready", response.ready()}});
      });
}

void is_model_ready(HttpCalls& calls, const SharedExchange& exchange) {
  const auto request = model_request<inference::ModelReadyRequest>(exchange->request());
  ask_health<inference::ModelReadyResponse>(
      calls, exchange, "ModelReady", request, [name = request.name()](const auto& response) {
        return readiness(response.ready(),
                         ordered_json{{"name", name}, {"ready", response.ready()}});
      });
}

void describe_server(HttpCalls& calls, const SharedExchange& exchange) {
  ask<inference::ServerMetadataResponse>(
      calls, exchange, "ServerMetadata", inference::ServerMetadataRequest(),
      [](const auto& response) {
        auto extensions = ordered_json::array({"generate"});
        for (const std::string& name : response.extensions()) extensions.push_back(name);
        return json_answer(200, dumped(ordered_json{{"name", response.name()},
                                                    {"version", response.version()},
                                                    {"extensions", std::move(extensions)}}));
      });
}

template <typename Tensors>
ordered_json described(const Tensors& tensors) {
  auto list = ordered_json::array();
  for (const auto& tensor : tensors) {
    const std::vector<std::int64_t> shape(tensor.shape().begin(), tensor.shape().end());
    list.push_back({{"name", tensor.name()}, {"datatype", tensor.datatype()}, {"shape", shape}});
  }
  return list;
}

void describe_model(HttpCalls& calls, const SharedExchange& exchange) {
  ask<inference::ModelMetadataResponse>(
      calls, exchange, "ModelMetadata",
      model_request<inference::ModelMetadataRequest>(exchange->request()),
      [](const auto& response) {
        const std::vector<std::string> versions(response.versions().begin(),
                                                response.versions().end());
        return json_answer(200,
                           dumped(ordered_json{{"name", response.name()},
                                               {"versions", versions},
                                               {"platform", response.platform()},
                                               {"inputs", described(response.inputs())},
                                               {"outputs", described(response.outputs())},
                                               {"properties", json_of(response)["properties"]}}));
      });
}

void show_statistics(HttpCalls& calls, const SharedExchange& exchange) {
  inference::ModelStatisticsRequest request;
  if (!exchange->request().parameters.empty()) {
    request = model_request<inference::ModelStatisticsRequest>(exchange->request());
  }
  ask<inference::ModelStatisticsResponse>(
      calls, exchange, "ModelStatistics", std::move(request),
      [](const auto& response) { return json_answer(200, dumped(json_of(response))); });
}

void show_config(HttpCalls& calls, const SharedExchange& exchange) {
  ask<inference::ModelConfigResponse>(
      calls, exchange, "ModelConfig",
      model_request<inference::ModelConfigRequest>(exchange->request()),
      [](const auto& response) { return json_answer(200, dumped(json_of(response.config()))); });
}

// Reads a body of the repository, which may be empty, and begins the call for it.
using RepositoryCall = std::string (*)(HttpCalls&, const SharedExchange&, const nlohmann::json&);
HttpHandler repository_handler(HttpCalls& calls, BodyWork& bodies, RepositoryCall begin) {
  return [&calls, &bodies, begin](const SharedExchange& exchange) {
    bodies.read(
        exchange,
        [exchange, &calls, begin](const std::string& body, JsonBudget& budget) {
          nlohmann::json object = nlohmann::json::object();
          if (!body.empty()) {
            grpc::Status parsed = parse_object(body, &budget, object);
            if (!parsed.ok()) return parsed;
          }
          const std::string wrong = begin(calls, exchange, object);
          return wrong.empty() ? grpc::Status::OK
                               : grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, wrong);
        },
        [exchange](const grpc::Status& status) { exchange->answer(error_answer(status)); });
  };
}

// Names a member that is not `known`; empty: there is none.
std::string find_unknown(const nlohmann::json& object, const char* known) {
  for (const auto& [name, value] : object.items()) {
    if (name != known) return clip(name) + " is not a member of this request";
  }
  return "";
}

std::string show_index(HttpCalls& calls, const SharedExchange& exchange,
                       const nlohmann::json& body) {
  inference::RepositoryIndexRequest request;
  std::string wrong = find_unknown(body, "ready");
  if (wrong.empty() && body.contains("ready")) {
    if (!body["ready"].is_boolean()) return "ready is not true or false";
    request.set_ready(body["ready"].get<bool>());
  }
  if (!wrong.empty()) return wrong;
  ask<inference::RepositoryIndexResponse>(
      calls, exchange, "RepositoryIndex", std::move(request),
      [](const auto& response) { return json_answer(200, dumped(json_of(response)["models"])); });
  return "";
}

// Returns what is wrong with the parameters; empty: nothing.
std::string read_repository_parameters(
    const nlohmann::json& parameters,
    google::protobuf::Map<std::string, inference::ModelRepositoryParameter>& wire) {
  if (!parameters.is_object()) return "parameters is not an object";
  for (const auto& [name, value] : parameters.items()) {
    inference::ModelRepositoryParameter& parameter = wire[name];
    if (value.is_boolean()) {
      parameter.set_bool_param(value.get<bool>());
    } else if (value.is_number_integer()) {
      parameter.set_int64_param(value.get<std::int64_t>());
    } else if (value.is_string()) {
      parameter.set_string_param(value.get<std::string>());
    } else {
      return "parameters[" + clip(name) + "] is not a text, a whole number, true or false";
    }
  }
  return "";
}

// A request to load or unload the model in the path.
template <typename Request, typename Response>
std::string change_repository(HttpCalls& calls, const SharedExchange& exchange,
                              const nlohmann::json& body, const char* method) {
  Request request;
  request.set_model_name(exchange->request().parameters.at(0));
  std::string wrong = find_unknown(body, "parameters");
  if (wrong.empty() && body.contains("parameters")) {
    wrong = read_repository_parameters(body["parameters"], *request.mutable_parameters());
  }
  if (!wrong.empty()) return wrong;
  ask<Response>(calls, exchange, method, std::move(request),
                [](const Response&) { return json_answer(200, "{}"); });
  return "";
}

std::string load(HttpCalls& calls, const SharedExchange& exchange, const nlohmann::json& body) {
  return change_repository<inference::RepositoryModelLoadRequest,
                           inference::RepositoryModelLoadResponse>(calls, exchange, body,
                                                                   "RepositoryModelLoad");
}
std::string unload(HttpCalls& calls, const SharedExchange& exchange, const nlohmann::json& body) {
  return change_repository<inference::RepositoryModelUnloadRequest,
                           inference::RepositoryModelUnloadResponse>(calls, exchange, body,
                                                                     "RepositoryModelUnload");
}

// Reads an inference request of the model in the path; `infer` begins its call.
using ReadBody = std::string (*)(nlohmann::json, inference::ModelInferRequest&);
using Infer = void (*)(HttpCalls&, const SharedExchange&, inference::ModelInferRequest);
grpc::Status read_inference(const SharedExchange& exchange, const std::string& body,
                            JsonBudget& budget, ReadBody read,
                            inference::ModelInferRequest& request) {
  const HttpRequest& http = exchange->request();
  nlohmann::json object;
  grpc::Status parsed = parse_object(body, &budget, object);
  if (!parsed.ok()) return parsed;
  const std::string wrong = read(std::move(object), request);
  if (!wrong.empty()) return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, wrong);
  request.set_model_name(http.parameters.at(0));
  if (http.parameters.size() > 1) request.set_model_version(http.parameters[1]);
  return grpc::Status::OK;
}

using ErrorAnswer = HttpAnswer (*)(const grpc::Status&);
HttpHandler inference_handler(HttpCalls& calls, BodyWork& bodies, ReadBody read, Infer infer,
                              ErrorAnswer refused) {
  return [&calls, &bodies, read, infer, refused](const SharedExchange& exchange) {
    if (!exchange->request().header("inference-header-content-length").empty()) {
      return exchange->answer(refused(
          {grpc::StatusCode::INVALID_ARGUMENT,
           "inference-header-content-length: the binary tensor data extension is not served: "
           "tensors are JSON here, or of gRPC"}));
    }
    bodies.read(
        exchange,
        [exchange, &calls, read, infer](const std::string& body, JsonBudget& budget) {
          inference::ModelInferRequest request;
          grpc::Status status = read_inference(exchange, body, budget, read, request);
          if (status.ok()) infer(calls, exchange, std::move(request));
          return status;
        },
        [exchange, refused](const grpc::Status& status) { exchange->answer(refused(status)); });
  };
}

// Answers in pieces of the response, which its call keeps until they are out, and charges.
void infer_in_pieces(HttpCalls& calls, const SharedExchange& exchange,
                     inference::ModelInferRequest request, ErrorAnswer refused,
                     JsonPieces (*pieces)(const inference::ModelInferResponse&)) {
  const auto response = std::make_shared<const inference::ModelInferResponse*>(nullptr);
  calls.gather(
      exchange, method_of("ModelInfer"), RequestMessage::of(std::move(request)),
      [response](const google::protobuf::Message& message) {
        *response = &static_cast<const inference::ModelInferResponse&>(message);
        return grpc::Status::OK;
      },
      [response, exchange, refused, pieces](const grpc::Status& status) -> HttpCalls::NextPiece {
        if (status.ok()) return answer_with(*exchange, pieces(**response), /*kept=*/nullptr);
        exchange->answer(refused(status));
        return nullptr;
      },
      /*kept=*/nullptr);
}

void infer(HttpCalls& calls, const SharedExchange& exchange, inference::ModelInferRequest request) {
  infer_in_pieces(calls, exchange, std::move(request), error_answer, infer_response_pieces);
}

void generate(HttpCalls& calls, const SharedExchange& exchange,
              inference::ModelInferRequest request) {
  infer_in_pieces(calls, exchange, std::move(request), generate_error,
                  [](const inference::ModelInferResponse& response) {
                    return GenerateJson(/*streams=*/false).pieces(response, /*is_last=*/true);
                  });
}

// The responses of ModelStreamInfer as events, of a stream that reports errors by its status.
class GenerateEvents final : public StreamAnswer {
 public:
  HttpAnswer head() override { return server_sent_head(kserve_protocol()); }
  grpc::Status piece(const google::protobuf::Message& message, std::string& out) override {
    const inference::ModelInferResponse& response =
        static_cast<const inference::ModelStreamInferResponse&>(message).infer_response();
    const auto marked = response.parameters().find("triton_final_response");
    const bool is_last = marked == response.parameters().end() || marked->second.bool_param();
    out = server_sent_event(json_.pieces(response, is_last).whole());
    return grpc::Status::OK;
  }
  std::optional<std::string> tail(const grpc::Status& status) override {
    return status.ok() ? "" : server_sent_event(error_answer(status).body);
  }
  HttpAnswer refusal(const grpc::Status& status) override { return generate_error(status); }

 private:
  GenerateJson json_{/*streams=*/true};
};

void generate_stream(HttpCalls& calls, const SharedExchange& exchange,
                     inference::ModelInferRequest request) {
  auto& parameters = *request.mutable_parameters();
  if (!parameters.contains("stream")) parameters["stream"].set_bool_param(true);
  calls.stream(exchange, method_of("ModelStreamInfer"), RequestMessage::of(std::move(request)),
               // An error ends the stream with its status.
               std::make_unique<GenerateEvents>(), /*timeout=*/{}, {{"triton_grpc_error", "true"}});
}

}  // namespace

void add_kserve_routes(HttpRoutes& routes, HttpCalls& calls, BodyWork& bodies) {
  routes.add(kserve_protocol());
  using Answer = void (*)(HttpCalls&, const SharedExchange&);
  const auto add = [&](const std::string& path, Answer answer, bool is_open = false) {
    routes.add({"GET", path,
                [&calls, answer](const SharedExchange& exchange) { answer(calls, exchange); },
                /*refuse=*/{}, is_open});
  };
  const auto add_post = [&](const std::string& path, ReadBody read, Infer infer,
                            ErrorAnswer refused) {
    routes.add({"POST", path, inference_handler(calls, bodies, read, infer, refused)});
  };
  const auto add_repository = [&](const char* path, RepositoryCall begin) {
    routes.add({"POST", path, repository_handler(calls, bodies, begin)});
  };
  add("/v2/health/live", is_live, /*is_open=*/true);
  add("/v2/health/ready", is_ready, /*is_open=*/true);
  for (const char* const path : {"/v2", "/v2/"}) add(path, describe_server);
  for (const std::string model : {"/v2/models/{}", "/v2/models/{}/versions/{}"}) {
    add(model, describe_model);
    add(model + "/ready", is_model_ready, /*is_open=*/true);
    add_post(model + "/infer", read_infer_request, infer, error_answer);
    add_post(model + "/generate", read_generate_request, generate, generate_error);
    add_post(model + "/generate_stream", read_generate_request, generate_stream, generate_error);
    add(model + "/stats", show_statistics);
    add(model + "/config", show_config);
  }
  add("/v2/models/stats", show_statistics);
  add_repository("/v2/repository/index", show_index);
  add_repository("/v2/repository/models/{}/load", load);
  add_repository("/v2/repository/models/{}/unload", unload);
}

}  // namespace lintel
