// SPDX-License-Identifier: Apache-2.0
#include "server/ollama/routes.h"

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lintel/v1/chat.pb.h"
#include "lintel/v1/generation.pb.h"
#include "lintel/v1/model.pb.h"
#include "server/api/params/generate_params.h"
#include "server/core/threads.h"
#include "server/http/encoding/json_bodies.h"
#include "server/ollama/answer.h"
#include "server/ollama/models.h"
#include "server/ollama/protocol.h"
#include "server/ollama/request.h"
#include "server/openai/http/errors.h"
#include "server/rpc/ignored_members.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

constexpr const char* kCompleteChat = "lintel.v1.ChatService/Complete";
constexpr const char* kGenerateText = "lintel.v1.GenerationService/Generate";
constexpr const char* kRenderChat = "lintel.v1.ChatService/Render";
constexpr const char* kGetOneModel = "lintel.v1.ModelService/Get";
constexpr const char* kListAllModels = "lintel.v1.ModelService/List";

// Message: the call's, v1::ChatResponse or v1::GenerateResponse.
template <typename Message>
class OllamaLines final : public StreamAnswer {
 public:
  explicit OllamaLines(std::shared_ptr<OllamaAnswer> answer) : answer_(std::move(answer)) {}

  HttpAnswer head() override {
    return {200,
            {{"content-type", "application/x-ndjson"}, {"cache-control", "no-cache"}},
            "",
            /*heartbeat=*/answer_->empty_line()};
  }
  grpc::Status piece(const google::protobuf::Message& message, std::string& out) override {
    out += answer_->lines(static_cast<const Message&>(message));
    return grpc::Status::OK;
  }
  std::optional<std::string> tail(const grpc::Status& status) override {
    return status.ok() ? answer_->last_line() : ollama_error(status, answer_->route()) + "\n";
  }
  HttpAnswer refusal(const grpc::Status& status) override {
    return ollama_answer(status, answer_->route());
  }

 private:
  const std::shared_ptr<OllamaAnswer> answer_;
};

// Runs a call whose messages `answer` writes.
template <typename Message>
void run_ollama_call(HttpCalls& calls, const SharedExchange& exchange, const char* method,
                     RequestMessage message, bool streams,
                     const std::shared_ptr<OllamaAnswer>& answer) {
  if (streams) {
    calls.stream(exchange, method, std::move(message),
                 std::make_unique<OllamaLines<Message>>(answer));
    return;
  }
  const auto kept = std::make_shared<KeptAnswer>();
  calls.gather(
      exchange, method, std::move(message),
      [answer](const google::protobuf::Message& response) {
        return answer->gather(static_cast<const Message&>(response));
      },
      [answer, exchange, kept](const grpc::Status& status) -> HttpCalls::NextPiece {
        if (status.ok()) return answer_with(*exchange, answer->body(), kept);
        exchange->answer(ollama_answer(status, answer->route()));
        return nullptr;
      },
      kept);
}

// Calls use(model) with the model that the request names, once it is loaded; `as_it_is`: does not
// load it.
template <typename Use>
void with_ollama_model(HttpCalls& calls, const SharedExchange& exchange, const std::string& name,
                       bool as_it_is, Use use) {
  v1::GetModelRequest get;
  get.set_name(without_latest(name));
  get.set_all(as_it_is);
  calls.unary(exchange, kGetOneModel, RequestMessage::of(std::move(get)),
              [exchange, use = std::move(use)](const grpc::Status& status,
                                               const google::protobuf::Message& model) mutable {
                if (!status.ok())
                  return exchange->answer(ollama_answer(status, OllamaRoute::kChat));
                use(static_cast<const v1::Model&>(model));
              });
}

void run_ollama_chat(HttpCalls& calls, const SharedExchange& exchange, OllamaRoute route,
                     OllamaRequest& request) {
  const auto answer =
      std::make_shared<OllamaAnswer>(route, request.model, request.chat->params.logprobs);
  run_ollama_call<v1::ChatResponse>(calls, exchange, kCompleteChat,
                                    RequestMessage(std::move(request.chat)), request.streams,
                                    answer);
}

// Makes the request for the prompt of /api/generate as it is; the checkpoint's recommendations
// replace missing options. Not OK: `model` cannot read it.
grpc::Status make_text_request(const v1::Model& model, const OllamaRequest& request,
                               v1::GenerateRequest& generate) {
  const api::ChatParams& chat = request.chat->params;
  const bool is_bytes = model.modality() == "bytes";
  if (!is_bytes && model.tokenizer().empty()) {
    return invalid_argument({{"model", "'" + clip(model.name()) +
                                           "' has no tokenizer: lintel.v1.GenerationService takes "
                                           "its ids"}});
  }
  const std::string without =
      "is not served: model '" + clip(model.name()) + "' has no chat template (--chat-template)";
  if (request.has_system) return invalid_argument({{"system", without}});
  if (chat.format != api::ChatParams::Format::kText) return invalid_argument({{"format", without}});
  api::GenerateParams params = chat.base;
  params.model = model.name();
  params.prompt = api::text_values(chat.messages.back()["content"].get<std::string>());
  params.max_new_tokens = chat.max_tokens;
  params.log2_probs = chat.logprobs;
  params.top_log2_probs = chat.top_logprobs;
  params.token_bytes = !is_bytes;
  // A raw prompt is rendered already: its control tokens are written as text.
  params.parse_special = request.raw && !is_bytes;
  api::write_params(params, generate);
  api::write_values(params.prompt, *generate.mutable_prompt());
  v1::Sampling sampling = model.sampling_defaults();
  sampling.MergeFrom(generate.sampling());
  *generate.mutable_sampling() = std::move(sampling);
  return grpc::Status::OK;
}

// Runs the prompt as a conversation. A long one, which takes time to render, waits for its caller's
// turn.
void run_prompt_as_chat(HttpCalls& calls, BodyWork& bodies, const SharedExchange& exchange,
                        const std::shared_ptr<OllamaRequest>& request) {
  const std::size_t bytes = request->chat->bytes;
  const auto run = [&calls, exchange, request](const grpc::Status& status) {
    const auto begin = [&] {
      if (!status.ok()) return exchange->answer(ollama_answer(status, OllamaRoute::kGenerate));
      run_ollama_chat(calls, exchange, OllamaRoute::kGenerate, *request);
    };
    catch_exceptions(begin, [] {});  // the exchange ends unanswered, which is a 500
  };
  if (bytes <= BodyWork::kShortBytes) return run(grpc::Status::OK);
  if (!bodies.run_in_turn(exchange->request(), bytes, run)) run(shutting_down());
}

// Runs /api/generate with a prompt: through the model's chat template, if it has one and `raw` is
// false.
void run_ollama_generate(HttpCalls& calls, BodyWork& bodies, const SharedExchange& exchange,
                         OllamaRequest request) {
  const auto held = std::make_shared<OllamaRequest>(std::move(request));
  with_ollama_model(calls, exchange, held->model, /*as_it_is=*/false,
                    [&calls, &bodies, exchange, held](const v1::Model& model) {
                      if (!held->raw && model.has_sampling_defaults()) {
                        return run_prompt_as_chat(calls, bodies, exchange, held);
                      }
                      v1::GenerateRequest generate;
                      const grpc::Status made = make_text_request(model, *held, generate);
                      if (!made.ok())
                        return exchange->answer(ollama_answer(made, OllamaRoute::kGenerate));
                      const auto answer = std::make_shared<OllamaAnswer>(
                          OllamaRoute::kGenerate, held->model.empty() ? model.name() : held->model,
                          held->chat->params.logprobs, /*bytes=*/model.modality() == "bytes");
                      const bool streams = held->streams;
                      held->chat = nullptr;  // the call has copied its parts
                      run_ollama_call<v1::GenerateResponse>(calls, exchange, kGenerateText,
                                                            RequestMessage::of(std::move(generate)),
                                                            streams, answer);
                    });
}

// Answers a request without messages or a prompt, which clients send to load a model ahead of its
// use. Models stay loaded: a request to unload one has no effect.
void answer_empty_request(HttpCalls& calls, const SharedExchange& exchange, OllamaRoute route,
                          const OllamaRequest& request) {
  const auto answer = std::make_shared<OllamaAnswer>(route, request.model, /*logprobs=*/false);
  if (!request.keep_alive) return exchange->answer(json_answer(200, answer->loaded("unload")));
  with_ollama_model(calls, exchange, request.model, /*as_it_is=*/false,
                    [exchange, answer](const v1::Model&) {
                      exchange->answer(json_answer(200, answer->loaded("load")));
                    });
}

grpc::Status read_and_run(const SharedExchange& exchange, const std::string& body,
                          JsonBudget& budget, HttpCalls& calls, BodyWork& bodies, OllamaRoute route,
                          bool refuses_unknown_members) {
  OllamaRequest request;
  request.chat->charge = calls.charge_of(*exchange);
  const JsonFailure failure = read_ollama_request(
      route, body, calls.caller_of(*exchange), [&budget] { return budget.cancelled(); }, request);
  if (grpc::Status refused = body_refusal(failure); !refused.ok()) return refused;
  // The service of chats reports errors, with the call's log line, and ignored members.
  if (!request.chat->status.ok() || (route == OllamaRoute::kChat && !request.is_empty)) {
    run_ollama_chat(calls, exchange, route, request);
    return grpc::Status::OK;
  }
  std::string ignored;
  grpc::Status known = request.chat->ignored.report(refuses_unknown_members, ignored);
  if (!known.ok()) return known;
  if (!ignored.empty()) exchange->add_header(kIgnoredHeader, ignored);
  request.chat->ignored = {};
  if (request.is_empty) {
    answer_empty_request(calls, exchange, route, request);
  } else {
    run_ollama_generate(calls, bodies, exchange, std::move(request));
  }
  return grpc::Status::OK;
}

// Calls answer(list) with all models.
template <typename Answer>
void with_all_models(HttpCalls& calls, const SharedExchange& exchange, Answer answer) {
  v1::ListModelsRequest all;
  all.set_all(true);
  calls.unary(
      exchange, kListAllModels, RequestMessage::of(std::move(all)),
      [exchange, answer](const grpc::Status& status, const google::protobuf::Message& response) {
        if (!status.ok()) return exchange->answer(ollama_answer(status, OllamaRoute::kChat));
        answer(static_cast<const v1::ListModelsResponse&>(response));
      });
}

// A conversation of one message as a chat request, with tools or with thinking on or off.
std::string probing_body(const std::string& model, bool tools, bool thinking) {
  nlohmann::ordered_json body = {
      {"model", model},
      {"messages", nlohmann::ordered_json::array({{{"role", "user"}, {"content", "a"}}})},
      {"chat_template_kwargs", {{"enable_thinking", thinking}, {"thinking", thinking}}}};
  if (!tools) return dumped(body);
  nlohmann::ordered_json parameters = {{"type", "object"}};
  parameters["properties"]["a"] = {{"type", "string"}, {"description", "a"}};
  nlohmann::ordered_json function = {{"name", "a"}, {"description", "a"}};
  function["parameters"] = std::move(parameters);
  body["tools"].push_back({{"type", "function"}, {"function", std::move(function)}});
  return dumped(body);
}

// /api/show: three renders determine the capabilities of a loaded model, so that the answer is what
// a request would find. Held by its calls.
class ShownModel : public std::enable_shared_from_this<ShownModel> {
 public:
  // `calls` outlives it.
  ShownModel(SharedExchange exchange, HttpCalls& calls, v1::Model model)
      : exchange_(std::move(exchange)), calls_(calls), model_(std::move(model)) {}

  void start() {
    if (!model_.has_sampling_defaults()) return answer();  // no template, or not loaded
    render(/*tools=*/true, /*thinking=*/true, [self = shared_from_this()](const std::string* text) {
      self->capabilities_.tools = text != nullptr;
      self->find_thinking();
    });
  }

 private:
  // done(text): null: the request is refused.
  template <typename Done>
  void render(bool tools, bool thinking, Done done) {
    v1::RenderChatRequest request;
    request.set_body(probing_body(model_.name(), tools, thinking));
    calls_.unary(exchange_, kRenderChat, RequestMessage::of(std::move(request)),
                 [done](const grpc::Status& status, const google::protobuf::Message& response) {
                   done(status.ok() ? &static_cast<const v1::RenderChatResponse&>(response).text()
                                    : nullptr);
                 });
  }

  void find_thinking() {
    render(false, true, [self = shared_from_this()](const std::string* on) {
      if (on == nullptr) return self->answer();
      self->render(false, false, [self, on = *on](const std::string* off) {
        const std::size_t end = on.find_last_not_of(" \n") + 1;
        const bool opens = std::string_view(on).substr(0, end).ends_with("<think>");
        self->capabilities_.thinking = opens || off == nullptr || on != *off;
        self->answer();
      });
    });
  }

  void answer() { exchange_->answer(json_answer(200, dumped(show_json(model_, capabilities_)))); }

  const SharedExchange exchange_;
  HttpCalls& calls_;
  const v1::Model model_;
  OllamaCapabilities capabilities_;
};

// {"model": NAME}, or "name" of older clients.
grpc::Status show_model(const SharedExchange& exchange, const std::string& body, JsonBudget& budget,
                        HttpCalls& calls) {
  nlohmann::json object;
  if (grpc::Status parsed = parse_object(body, &budget, object); !parsed.ok()) return parsed;
  std::string name;
  for (const char* const member : {"name", "model"}) {
    const auto found = object.find(member);
    if (found == object.end() || found->is_null()) continue;
    if (!found->is_string()) return invalid_argument({{member, "is not a text"}});
    if (!found->get_ref<const std::string&>().empty()) name = found->get<std::string>();
  }
  with_ollama_model(calls, exchange, name, /*as_it_is=*/true,
                    [&calls, exchange](const v1::Model& model) {
                      std::make_shared<ShownModel>(exchange, calls, model)->start();
                    });
  return grpc::Status::OK;
}

void answer_with_json(const SharedExchange& exchange, const nlohmann::ordered_json& json) {
  exchange->answer(json_answer(200, dumped(json)));
}

struct RefusedRoute {
  const char* method;
  const char* path;
  int status;
  const char* why;
};

constexpr const char* kNoEmbeddings =
    "embeddings are not served: models here continue text. An embedding server has to answer this";
constexpr const char* kModelsAreFiles =
    "is not served: models are the files that the server was started with; see `lintel pull "
    "--help` "
    "and `lintel-server --help`";

constexpr RefusedRoute kRefusedRoutes[] = {
    {"POST", "/api/embed", 404, kNoEmbeddings},
    {"POST", "/api/embeddings", 404, kNoEmbeddings},
    {"POST", "/api/pull", 501,
     "is not served: run `lintel pull ORG/NAME` on the server, then `lintel-server --model "
     "NAME=\"$(lintel pull ORG/NAME)\"`"},
    {"POST", "/api/push", 501, kModelsAreFiles},
    {"POST", "/api/create", 501, kModelsAreFiles},
    {"POST", "/api/copy", 501, kModelsAreFiles},
    {"DELETE", "/api/delete", 501, kModelsAreFiles},
};

}  // namespace

void add_ollama_routes(HttpRoutes& routes, HttpCalls& calls, BodyWork& bodies,
                       bool refuses_unknown_members) {
  const auto add = [&](const char* method, const char* path, HttpHandler handle) {
    routes.add({method, path, std::move(handle)});
  };
  // Reads the body; `read` answers as BodyWork::Read does.
  const auto add_reader = [&](const char* path, auto read) {
    add("POST", path, [&calls, &bodies, read](const SharedExchange& exchange) {
      bodies.read(
          exchange,
          [exchange, &calls, read](const std::string& body, JsonBudget& budget) {
            return read(exchange, body, budget, calls);
          },
          [exchange](const grpc::Status& status) {
            exchange->answer(ollama_answer(status, OllamaRoute::kChat));
          });
    });
  };
  routes.add(ollama_protocol());
  for (const auto& [path, route] : {std::pair("/api/chat", OllamaRoute::kChat),
                                    std::pair("/api/generate", OllamaRoute::kGenerate)}) {
    add_reader(path, [&bodies, refuses_unknown_members, route = route](
                         const SharedExchange& exchange, const std::string& body,
                         JsonBudget& budget, HttpCalls& all) {
      return read_and_run(exchange, body, budget, all, bodies, route, refuses_unknown_members);
    });
  }
  add_reader("/api/show", show_model);
  add("GET", "/api/tags", [&calls](const SharedExchange& exchange) {
    with_all_models(calls, exchange, [exchange](const v1::ListModelsResponse& list) {
      answer_with_json(exchange, tags_json(list));
    });
  });
  add("GET", "/api/ps", [&calls](const SharedExchange& exchange) {
    with_all_models(calls, exchange, [exchange](const v1::ListModelsResponse& list) {
      answer_with_json(exchange, running_json(list));
    });
  });
  add("GET", "/api/version", [](const SharedExchange& exchange) {
    answer_with_json(exchange, {{"version", kOllamaVersion}});
  });
  for (const RefusedRoute& refused : kRefusedRoutes) {
    add(refused.method, refused.path, [&refused](const SharedExchange& exchange) {
      const nlohmann::ordered_json error = {
          {"error", std::string(refused.path) + ": " + refused.why}};
      exchange->answer(json_answer(refused.status, dumped(error)));
    });
  }
}

}  // namespace lintel
