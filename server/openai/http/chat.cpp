// SPDX-License-Identifier: Apache-2.0
#include "server/openai/http/chat.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lintel/v1/chat.pb.h"
#include "server/chat/chat_output.h"
#include "server/core/clock.h"
#include "server/http/encoding/json_bodies.h"
#include "server/http/encoding/server_sent_events.h"
#include "server/openai/chat_request.h"
#include "server/openai/http/errors.h"
#include "server/openai/json.h"
#include "server/rpc/rpc.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* kCompleteMethod = "lintel.v1.ChatService/Complete";
constexpr const char* kChunk = "chat.completion.chunk";

OrderedJson token_json(const v1::ContentToken& token) {
  return lintel::token_json(token.text(), token.log2_prob());
}
OrderedJson token_json(const TokenRecord& tokens, const TokenRecord::Value& value) {
  return lintel::token_json(tokens.text_of(value.id), value.log2_prob);
}

void add_tokens(const v1::ChatDelta& delta, OrderedJson& list) {
  for (const v1::ContentToken& token : delta.tokens()) {
    OrderedJson json = token_json(token);
    json["top_logprobs"] = OrderedJson::array();
    for (const v1::ContentToken& top : token.top()) {
      json["top_logprobs"].push_back(token_json(top));
    }
    list.push_back(std::move(json));
  }
}

}  // namespace

void ChatJson::note(const v1::ChatResponse& message) {
  if (head_.model.empty()) head_.model = message.model();
  if (!message.fingerprint().empty()) head_.fingerprint = message.fingerprint();
  if (message.prompt_tokens() > 0) prompt_tokens_ = message.prompt_tokens();
  if (form_.token_ids && message.prompt_ids_size() > 0) {
    prompt_ids_.assign(message.prompt_ids().begin(), message.prompt_ids().end());
  }
  if (message.has_usage()) usage_ = message.usage();
  for (const v1::ChatFinish& finish : message.finished()) add_timings(finish.timings(), timings_);
}

std::string ChatJson::usage_of(std::uint32_t choice) const {
  const auto found = written_.find(choice);
  const std::int64_t written = found == written_.end() ? 0 : found->second;
  return dumped(OrderedJson{{"prompt_tokens", prompt_tokens_},
                            {"completion_tokens", written},
                            {"total_tokens", prompt_tokens_ + written}});
}

std::string ChatJson::timings() const {
  if (!form_.timings) return "";
  AnswerTimings timings = timings_;
  timings.cached = usage_.cached_tokens();
  timings.prompt = usage_.prompt_tokens() - usage_.cached_tokens();
  timings.predicted = usage_.completion_tokens();
  return ",\"timings\":" + dumped(timings_json(timings));
}

std::string ChatJson::take_prompt_ids() {
  if (prompt_ids_.empty()) return "";
  return ",\"prompt_token_ids\":" + dumped(OrderedJson(std::exchange(prompt_ids_, {})));
}

void ChatJson::begin(std::uint32_t choice, std::string& out) {
  if (!begun_.insert(choice).second) return;
  out += event(choice, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr);
}

std::string ChatJson::event(std::uint32_t choice, OrderedJson delta, OrderedJson logprobs,
                            OrderedJson finish_reason, const v1::ChatDelta* token_ids) {
  OrderedJson json = {{"index", choice},
                      {"delta", std::move(delta)},
                      {"logprobs", std::move(logprobs)},
                      {"finish_reason", std::move(finish_reason)}};
  if (form_.token_ids && token_ids != nullptr) {
    json["token_ids"] =
        std::vector<std::int32_t>(token_ids->token_ids().begin(), token_ids->token_ids().end());
  }
  const std::string usage = form_.continuous_usage ? usage_of(choice) : "null";
  return server_sent_event(text_before_choices(head_, kChunk) + dumped(json) +
                           text_after_choices(form_.include_usage ? usage : "", take_prompt_ids()));
}

void ChatJson::add_reasoning(const std::string& text, OrderedJson& json) const {
  if (text.empty()) return;
  if (form_.reasoning != ChatReasoningField::kReasoning) json["reasoning_content"] = text;
  if (form_.reasoning != ChatReasoningField::kReasoningContent) json["reasoning"] = text;
}

std::string ChatJson::events(const v1::ChatResponse& message) {
  std::string out;
  note(message);
  for (const v1::ChatDelta& delta : message.deltas()) {
    begin(delta.choice(), out);
    if (form_.continuous_usage) written_[delta.choice()] += delta.token_ids_size();
    OrderedJson json = OrderedJson::object();
    add_reasoning(delta.reasoning(), json);
    if (!delta.content().empty()) json["content"] = delta.content();
    if (delta.has_call()) {
      json["tool_calls"] = OrderedJson::array({call_json(delta.call(), /*is_delta=*/true)});
    }
    OrderedJson tokens = OrderedJson::array();
    add_tokens(delta, tokens);
    const bool has_tokens = form_.logprobs && !delta.content().empty();
    out += event(delta.choice(), std::move(json),
                 has_tokens ? OrderedJson{{"content", std::move(tokens)}} : OrderedJson(), nullptr,
                 &delta);
  }
  for (const v1::ChatFinish& finish : message.finished()) {
    begin(finish.choice(), out);
    out +=
        event(finish.choice(), OrderedJson::object(), nullptr, finish_reason_name(finish.reason()));
  }
  return out;
}

std::string ChatJson::last_events() const {
  std::string out;
  if (form_.include_usage || form_.timings) {
    out = server_sent_event(text_before_choices(head_, kChunk) +
                            text_after_choices(form_.include_usage ? usage() : "", timings()));
  }
  return out + server_sent_event("[DONE]");
}

std::string ChatJson::usage() const {
  return dumped(usage_json(usage_, UsageForm::kChatCompletion));
}

grpc::Status ChatJson::gather(const v1::ChatResponse& message) {
  note(message);
  for (const v1::ChatDelta& delta : message.deltas()) {
    Choice& choice = choices_[delta.choice()];
    if (form_.token_ids) {
      choice.ids.insert(choice.ids.end(), delta.token_ids().begin(), delta.token_ids().end());
    }
    choice.content += delta.content();
    choice.reasoning += delta.reasoning();
    gathered_ += delta.content().size() + delta.reasoning().size();
    if (form_.logprobs) {
      for (const v1::ContentToken& token : delta.tokens()) {
        choice.tokens.add(token.id(), token.text(), token.log2_prob());
        for (const v1::ContentToken& top : token.top()) {
          choice.tokens.add_top(top.id(), top.text(), top.log2_prob());
        }
      }
    }
    if (!delta.has_call()) continue;
    gathered_ +=
        delta.call().id().empty() ? delta.call().arguments().size() : delta.call().SpaceUsedLong();
    if (!delta.call().id().empty()) {
      choice.calls.push_back(delta.call());
    } else if (!choice.calls.empty()) {
      choice.calls.back().mutable_arguments()->append(delta.call().arguments());
    }
  }
  for (const v1::ChatFinish& finish : message.finished()) {
    choices_[finish.choice()].finish_reason = finish_reason_name(finish.reason());
  }
  std::size_t bytes = gathered_;
  for (const auto& [index, choice] : choices_) bytes += choice.tokens.bytes();
  if (bytes <= kMaxMessageBytes) return grpc::Status::OK;
  return invalid_argument(
      {{"max_new_tokens",
        "the answer is larger than " + std::to_string(kMaxMessageBytes) + " bytes: stream it"}});
}

void ChatJson::write_reasoning(Choice& choice, JsonPieces& out) const {
  if (choice.reasoning.empty()) return;
  const bool is_both = form_.reasoning == ChatReasoningField::kBoth;
  if (form_.reasoning != ChatReasoningField::kReasoning) {
    out.raw(",\"reasoning_content\":");
    out.quoted(is_both ? choice.reasoning : std::move(choice.reasoning));
  }
  if (form_.reasoning == ChatReasoningField::kReasoningContent) return;
  out.raw(",\"reasoning\":");
  out.quoted(std::move(choice.reasoning));
}

void ChatJson::write_choice(std::uint32_t index, Choice& choice, JsonPieces& out) const {
  // An incomplete call cannot be run. A stream has already shown its beginning.
  std::erase_if(choice.calls,
                [](const v1::ToolCallDelta& call) { return !is_whole_json(call.arguments()); });
  out.raw("{\"index\":" + std::to_string(index) + R"(,"message":{"role":"assistant","content":)");
  if (choice.content.empty() && !choice.calls.empty()) {
    out.raw("null");
  } else {
    out.quoted(std::move(choice.content));
  }
  write_reasoning(choice, out);
  const char* separator = ",\"tool_calls\":[";
  for (v1::ToolCallDelta& call : choice.calls) {
    out.raw(std::exchange(separator, ",") + ("{\"id\":" + dumped(OrderedJson(call.id()))) +
            R"(,"type":"function","function":{"name":)" + dumped(OrderedJson(call.name())) +
            ",\"arguments\":");
    out.quoted(std::move(*call.mutable_arguments()));
    out.raw("}}");
  }
  if (!choice.calls.empty()) out.raw("]");
  if (form_.logprobs) {
    out.raw("},\"logprobs\":{\"content\":[");
    const std::size_t bytes = choice.tokens.bytes();
    out.items(bytes, [tokens = std::make_shared<TokenRecord>(std::move(choice.tokens)),
                      at = TokenRecord::Cursor()](std::string& text) mutable {
      if (at.token == tokens->size()) return false;
      OrderedJson json = token_json(*tokens, tokens->token_at(at));
      OrderedJson& top = json["top_logprobs"] = OrderedJson::array();
      for (std::size_t i = 0; i < tokens->tops_at(at); ++i) {
        top.push_back(token_json(*tokens, tokens->top_at(at, i)));
      }
      tokens->advance(at);
      text += dumped(json);
      return true;
    });
    out.raw("]}");
  } else {
    out.raw("},\"logprobs\":null");
  }
  out.raw(",\"finish_reason\":" + dumped(choice.finish_reason));
  if (form_.token_ids) out.raw(",\"token_ids\":" + dumped(OrderedJson(choice.ids)));
  out.raw("}");
}

JsonPieces ChatJson::body() {
  JsonPieces out;
  out.raw(text_before_choices(head_, "chat.completion"));
  const char* separator = "";
  for (auto& [index, choice] : choices_) {
    out.raw(std::exchange(separator, ","));
    write_choice(index, choice, out);
  }
  out.raw(text_after_choices(usage(), timings() + take_prompt_ids()));
  choices_.clear();
  return out;
}

namespace {

class ChatAnswer final : public StreamAnswer {
 public:
  ChatAnswer(std::shared_ptr<ChatJson> chat, const MemberNames& names)
      : chat_(std::move(chat)), names_(names) {}

  HttpAnswer head() override { return server_sent_head(openai_protocol()); }
  grpc::Status piece(const google::protobuf::Message& message, std::string& out) override {
    out += chat_->events(static_cast<const v1::ChatResponse&>(message));
    return grpc::Status::OK;
  }
  std::optional<std::string> tail(const grpc::Status& status) override {
    if (!status.ok()) return server_sent_event(openai_answer(status, names_).body);
    return chat_->last_events();
  }
  HttpAnswer refusal(const grpc::Status& status) override { return openai_answer(status, names_); }

 private:
  const std::shared_ptr<ChatJson> chat_;
  const MemberNames names_;
};

}  // namespace

grpc::Status complete_chat(const SharedExchange& exchange, const std::string& body,
                           JsonBudget& budget, HttpCalls& calls, ChatReasoningField reasoning) {
  auto request = std::make_unique<ChatRequest>();
  request->charge = calls.charge_of(*exchange);
  const JsonFailure failure = read_chat_request(
      body, calls.caller_of(*exchange), [&budget] { return budget.cancelled(); }, *request);
  if (grpc::Status refused = body_refusal(failure); !refused.ok()) return refused;
  const bool streams = request->streams;
  const MemberNames names =
      request->status.ok()
          ? MemberNames{&RequestField::chat, "max_new_tokens", request->max_tokens_member}
          : kNamesAsSent;
  const bool token_ids = request->params.return_token_ids;
  // Deltas have their ids, for the number of their tokens.
  if (streams && request->continuous_usage) request->params.return_token_ids = true;
  const auto chat =
      std::make_shared<ChatJson>(AnswerHead{chat_completion_id(exchange->request().request_id),
                                            unix_seconds(), request->params.base.model},
                                 ChatForm{.include_usage = request->include_usage,
                                          .continuous_usage = request->continuous_usage,
                                          .logprobs = request->params.logprobs,
                                          .token_ids = token_ids,
                                          .timings = request->timings,
                                          .reasoning = reasoning});
  RequestMessage message(std::move(request));
  if (streams) {
    calls.stream(exchange, kCompleteMethod, std::move(message),
                 std::make_unique<ChatAnswer>(chat, names));
    return grpc::Status::OK;
  }
  const auto kept = std::make_shared<KeptAnswer>();
  calls.gather(
      exchange, kCompleteMethod, std::move(message),
      [chat](const google::protobuf::Message& response) {
        return chat->gather(static_cast<const v1::ChatResponse&>(response));
      },
      [chat, exchange, kept, names](const grpc::Status& status) -> HttpCalls::NextPiece {
        if (status.ok()) return answer_with(*exchange, chat->body(), kept);
        exchange->answer(openai_answer(status, names));
        return nullptr;
      },
      kept);
  return grpc::Status::OK;
}

}  // namespace lintel
