// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lintel/v1/chat.pb.h"
#include "lintel/v1/model.pb.h"
#include "model/core/utf8.h"
#include "server/chat/template/request_json.h"
#include "server/http/encoding/json_bodies.h"
#include "server/openai/chat_request.h"
#include "server/openai/http/errors.h"
#include "server/openai/http/routes.h"
#include "server/openai/members.h"
#include "server/rpc/ignored_members.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

using Body = nlohmann::ordered_json;

// Calls a unary method, and answers with write(response).
template <typename Response, typename Request, typename Write>
void answer_call(HttpCalls& calls, const SharedExchange& exchange, const char* method,
                 Request request, Write write) {
  const auto answered = std::make_shared<const Response*>(nullptr);
  calls.gather(
      exchange, method, RequestMessage::of(std::move(request)),
      [answered](const google::protobuf::Message& message) {
        *answered = &static_cast<const Response&>(message);
        return grpc::Status::OK;
      },
      [answered, exchange, write](const grpc::Status& status) -> HttpCalls::NextPiece {
        if (status.ok()) return answer_with(*exchange, write(**answered), /*kept=*/nullptr);
        exchange->answer(openai_answer(status));
        return nullptr;
      },
      /*kept=*/nullptr);
}

// Appends a list of JSON. The values outlive the pieces; write(value) is the text of one.
template <typename Values, typename Write>
void add_list(const Values& values, Write write, JsonPieces& out) {
  out.raw("[");
  out.items(0, [at = values.begin(), end = values.end(), write](std::string& text) mutable {
    if (at == end) return false;
    text += write(*at++);
    return true;
  });
  out.raw("]");
}

void add_ids(const google::protobuf::RepeatedField<std::int32_t>& ids, JsonPieces& out) {
  add_list(
      ids, [](std::int32_t id) { return std::to_string(id); }, out);
}

// A piece as text, or as the list of its bytes if it is not UTF-8 by itself.
std::string piece_json(const std::string& piece) {
  Utf8Stream characters;
  std::string text;
  characters.push(piece, text);
  characters.finish(text);
  if (text == piece) return dumped(Body(piece));
  Body bytes = Body::array();
  for (const char byte : piece) bytes.push_back(static_cast<unsigned char>(byte));
  return dumped(bytes);
}

// llama.cpp's answer: {"tokens": [ID or {"id", "piece"}]}.
JsonPieces llama_tokens(const v1::TokenizeResponse& response) {
  JsonPieces out;
  out.raw("{\"tokens\":");
  if (response.pieces_size() == 0) {
    add_ids(response.ids(), out);
  } else {
    add_list(
        response.ids(),
        [piece = response.pieces().begin()](std::int32_t id) mutable {
          return "{\"id\":" + std::to_string(id) + ",\"piece\":" + piece_json(*piece++) + "}";
        },
        out);
  }
  out.raw("}");
  return out;
}

// vLLM's answer: {"count", "max_model_len", "tokens", "token_strs"}. `pieces`: for token_strs;
// null: that is null.
JsonPieces vllm_tokens(const google::protobuf::RepeatedField<std::int32_t>& ids,
                       std::int64_t max_length,
                       const google::protobuf::RepeatedPtrField<std::string>* pieces) {
  JsonPieces out;
  out.raw("{\"count\":" + std::to_string(ids.size()) + ",\"max_model_len\":" +
          (max_length > 0 ? std::to_string(max_length) : "null") + ",\"tokens\":");
  add_ids(ids, out);
  out.raw(",\"token_strs\":");
  if (pieces == nullptr) {
    out.raw("null");
  } else {
    add_list(
        *pieces, [](const std::string& piece) { return dumped(Body(piece)); }, out);
  }
  out.raw("}");
  return out;
}

// Reads members of a body; functions return the error of a member, or OK.
class Members {
 public:
  explicit Members(Body& body) : body_(body) {}

  bool has(const char* name) const {
    const auto found = body_.find(name);
    return found != body_.end() && !found->is_null();
  }
  // Reads the member's value; without the member, `value` is unchanged.
  template <typename T>
  Members& read(const char* name, T& to) {
    if (!has(name) || !status.ok()) return *this;
    const std::string wrong = MemberReader<Body>{body_[name]}.read(to);
    if (!wrong.empty()) status = invalid_argument({{name, wrong}});
    return *this;
  }
  bool read_flag(const char* name, bool is_set) {
    read(name, is_set);
    return is_set;
  }

  grpc::Status status;

 private:
  Body& body_;
};

// Names the ignored members of a request in a header.
void name_ignored(const Body& body, std::initializer_list<std::string_view> known,
                  HttpExchange& exchange) {
  IgnoredMembers ignored;
  for (const auto& [name, value] : body.items()) {
    if (!value.is_null() && std::ranges::find(known, name) == known.end()) ignored.add(name);
  }
  std::string header;
  if (ignored.report(/*refuses=*/false, header).ok() && !header.empty()) {
    exchange.add_header(kIgnoredHeader, header);
  }
}

// Parses a body into its object. Not OK: it is not one, or beyond the bounds.
grpc::Status read_body(std::string_view text, JsonBudget& budget, Body& body) {
  JsonFailure failure;
  const grpc::Status read = read_json_body(text, {.budget = &budget}, body, failure);
  const grpc::Status refused = body_refusal(failure);
  return refused.ok() ? read : refused;
}

// Answers with the ids of a rendered prompt, in vLLM's form.
void answer_rendered(HttpCalls& calls, const SharedExchange& exchange,
                     const v1::RenderChatResponse& rendered, bool with_pieces) {
  v1::DetokenizeRequest request;
  request.set_model(rendered.model());
  *request.mutable_ids() = rendered.ids();
  request.set_with_pieces(with_pieces);
  const auto ids =
      std::make_shared<const google::protobuf::RepeatedField<std::int32_t>>(rendered.ids());
  answer_call<v1::DetokenizeResponse>(
      calls, exchange, "lintel.v1.ModelService/Detokenize", std::move(request),
      [ids, with_pieces](const v1::DetokenizeResponse& response) {
        JsonPieces out =
            vllm_tokens(*ids, response.max_length(), with_pieces ? &response.pieces() : nullptr);
        // Keeps the ids until they are written.
        out.items(0, [ids](std::string&) { return false; });
        return out;
      });
}

// Tokenizes the conversation of vLLM's body, whose members are those of a chat except two.
void tokenize_chat(HttpCalls& calls, const SharedExchange& exchange, Body body, bool with_pieces) {
  body.erase("return_token_strs");
  body.erase("add_special_tokens");  // templates add their own
  v1::RenderChatRequest request;
  request.set_body(json_text(body));
  body = nullptr;
  calls.unary(exchange, "lintel.v1.ChatService/Render", RequestMessage::of(std::move(request)),
              [&calls, exchange, with_pieces](const grpc::Status& status,
                                              const google::protobuf::Message& response) {
                if (!status.ok()) return exchange->answer(openai_answer(status));
                answer_rendered(calls, exchange,
                                static_cast<const v1::RenderChatResponse&>(response), with_pieces);
              });
}

grpc::Status tokenize(const SharedExchange& exchange, const std::string& text, JsonBudget& budget,
                      HttpCalls& calls) {
  Body body;
  grpc::Status status = read_body(text, budget, body);
  if (!status.ok()) return status;
  Members members(body);
  if (members.has("content") + members.has("prompt") + members.has("messages") != 1) {
    return invalid_argument({{"content", "one of content, prompt and messages is required"}});
  }
  const bool is_llama = members.has("content");
  const bool with_pieces = members.read_flag(is_llama ? "with_pieces" : "return_token_strs", false);
  if (members.has("messages")) {
    if (members.status.ok()) tokenize_chat(calls, exchange, std::move(body), with_pieces);
    return members.status;
  }
  v1::TokenizeRequest request;
  members.read("model", *request.mutable_model());
  members.read(is_llama ? "content" : "prompt", *request.mutable_text());
  request.set_add_special(is_llama ? members.read_flag("add_special", false)
                                   : members.read_flag("add_special_tokens", true));
  request.set_parse_special(!is_llama || members.read_flag("parse_special", true));
  request.set_with_pieces(with_pieces);
  if (!members.status.ok()) return members.status;
  if (is_llama) {
    name_ignored(body, {"model", "content", "add_special", "parse_special", "with_pieces"},
                 *exchange);
  } else {
    name_ignored(body, {"model", "prompt", "add_special_tokens", "return_token_strs"}, *exchange);
  }
  answer_call<v1::TokenizeResponse>(
      calls, exchange, "lintel.v1.ModelService/Tokenize", std::move(request),
      [is_llama, with_pieces](const v1::TokenizeResponse& response) {
        return is_llama ? llama_tokens(response)
                        : vllm_tokens(response.ids(), response.max_length(),
                                      with_pieces ? &response.pieces() : nullptr);
      });
  return grpc::Status::OK;
}

// Answers {"tokens": [ID]} of both servers with llama.cpp's {"content"} and vLLM's {"prompt"}.
grpc::Status detokenize(const SharedExchange& exchange, const std::string& text, JsonBudget& budget,
                        HttpCalls& calls) {
  Body body;
  grpc::Status status = read_body(text, budget, body);
  if (!status.ok()) return status;
  Members members(body);
  if (!members.has("tokens")) return invalid_argument({{"tokens", "is missing"}});
  v1::DetokenizeRequest request;
  std::vector<std::int32_t> ids;
  members.read("model", *request.mutable_model()).read("tokens", ids);
  if (!members.status.ok()) return members.status;
  request.mutable_ids()->Add(ids.begin(), ids.end());
  request.set_with_special(true);
  name_ignored(body, {"model", "tokens"}, *exchange);
  answer_call<v1::DetokenizeResponse>(calls, exchange, "lintel.v1.ModelService/Detokenize",
                                      std::move(request),
                                      [](const v1::DetokenizeResponse& response) {
                                        JsonPieces out;
                                        out.raw("{\"content\":");
                                        out.quoted(response.text());
                                        out.raw(",\"prompt\":");
                                        out.quoted(response.text());
                                        out.raw("}");
                                        return out;
                                      });
  return grpc::Status::OK;
}

// Renders the body of a chat completion as a prompt: the service reads it unchanged.
template <typename Write>
grpc::Status render(const SharedExchange& exchange, std::string text, HttpCalls& calls,
                    Write write) {
  v1::RenderChatRequest request;
  request.set_body(std::move(text));
  answer_call<v1::RenderChatResponse>(calls, exchange, "lintel.v1.ChatService/Render",
                                      std::move(request), write);
  return grpc::Status::OK;
}

JsonPieces prompt_json(const v1::RenderChatResponse& response) {
  JsonPieces out;
  out.raw("{\"prompt\":");
  out.quoted(response.text());
  out.raw("}");
  return out;
}

JsonPieces count_json(const v1::RenderChatResponse& response) {
  JsonPieces out;
  out.raw(R"({"object":"response.input_tokens","input_tokens":)" +
          std::to_string(response.ids_size()) + "}");
  return out;
}

// The value of a query's parameter; empty: it has none.
std::string query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    if (pair.size() > name.size() && pair.starts_with(name) && pair[name.size()] == '=') {
      return percent_decoded(pair.substr(name.size() + 1));
    }
  }
  return "";
}

// The properties of a model with llama.cpp's names. Any request may use any row, so there are as
// many slots as rows.
Body props_json(const v1::Model& model) {
  Body params = Body::object();
  const v1::Sampling& sampling = model.sampling_defaults();
  if (sampling.has_temperature()) params["temperature"] = short_number(sampling.temperature());
  if (sampling.has_top_k()) params["top_k"] = sampling.top_k();
  if (sampling.has_top_p()) params["top_p"] = short_number(sampling.top_p());
  if (sampling.has_min_p()) params["min_p"] = short_number(sampling.min_p());
  if (sampling.has_repetition_penalty()) {
    params["repeat_penalty"] = short_number(sampling.repetition_penalty());
  }
  const bool is_loaded = model.state() == v1::MODEL_STATE_READY;
  return {{"default_generation_settings",
           {{"n_ctx", model.max_length()}, {"params", std::move(params)}}},
          {"total_slots", model.workers() * model.max_batch_rows()},
          {"model_alias", model.name()},
          {"model_path", model.name()},
          {"chat_template", model.chat_template()},
          {"modalities", {{"vision", false}, {"audio", false}}},
          {"build_info", "lintel-" LINTEL_VERSION},
          {"is_sleeping", !is_loaded}};
}

void show_props(HttpCalls& calls, const SharedExchange& exchange) {
  const std::string& query = exchange->request().query;
  v1::GetModelRequest request;
  request.set_name(query_value(query, "model"));
  request.set_all(query_value(query, "autoload") == "false");
  calls.unary(
      exchange, "lintel.v1.ModelService/Get", RequestMessage::of(std::move(request)),
      [exchange](const grpc::Status& status, const google::protobuf::Message& response) {
        exchange->answer(
            status.ok()
                ? json_answer(200, dumped(props_json(static_cast<const v1::Model&>(response))))
                : openai_answer(status));
      });
}

}  // namespace

void add_prompt_routes(HttpRoutes& routes, HttpCalls& calls, BodyWork& bodies) {
  // Errors have OpenAI's shape, as those of both servers do.
  const auto add_post = [&](const char* path, auto read) {
    const HttpHandler handle = [&calls, &bodies, read](const SharedExchange& exchange) {
      bodies.read(
          exchange,
          [exchange, &calls, read](std::string body, JsonBudget& budget) {
            return read(exchange, std::move(body), budget, calls);
          },
          [exchange](const grpc::Status& status) { exchange->answer(openai_answer(status)); });
    };
    routes.add({"POST", path, handle, openai_refusal});
  };
  add_post("/tokenize", tokenize);
  add_post("/detokenize", detokenize);
  add_post("/apply-template",
           [](const SharedExchange& exchange, std::string body, JsonBudget&, HttpCalls& to) {
             return render(exchange, std::move(body), to, prompt_json);
           });
  add_post("/v1/chat/completions/input_tokens",
           [](const SharedExchange& exchange, std::string body, JsonBudget&, HttpCalls& to) {
             return render(exchange, std::move(body), to, count_json);
           });
  routes.add({"GET", "/props",
              [&calls](const SharedExchange& exchange) { show_props(calls, exchange); },
              openai_refusal});
}

}  // namespace lintel
