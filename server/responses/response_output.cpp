// SPDX-License-Identifier: Apache-2.0
#include "server/responses/response_output.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numbers>
#include <utility>

#include "server/chat/chat_request.h"

namespace lintel {
namespace {

using Json = nlohmann::ordered_json;

// Reasoning comes once, a message before each call and after the last.
static_assert(1 + 2 * kMostCalls + 1 <= kMostOutputItems);

// A natural logarithm with the digits of a float; what has no probability at all is -9999.
Json natural_log(float log2_prob) {
  const auto value = static_cast<float>(log2_prob * std::numbers::ln2);
  return std::isfinite(value) ? decimal(value) : -9999.0;
}

Json token_json(const v1::ContentToken& token) {
  Json bytes = Json::array();
  for (const char byte : token.text()) bytes.push_back(static_cast<unsigned char>(byte));
  return {{"token", token.text()},
          {"logprob", natural_log(token.log2_prob())},
          {"bytes", std::move(bytes)}};
}

// Null: it has none.
Json tokens_json(const v1::ChatDelta& delta) {
  if (delta.tokens_size() == 0) return nullptr;
  Json tokens = Json::array();
  for (const v1::ContentToken& token : delta.tokens()) {
    Json json = token_json(token);
    json["top_logprobs"] = Json::array();
    for (const v1::ContentToken& top : token.top()) json["top_logprobs"].push_back(token_json(top));
    tokens.push_back(std::move(json));
  }
  return tokens;
}

}  // namespace

Json response_usage(const v1::ChatUsage& usage) {
  return {{"input_tokens", usage.prompt_tokens()},
          {"output_tokens", usage.completion_tokens()},
          {"total_tokens", usage.prompt_tokens() + usage.completion_tokens()},
          {"input_tokens_details", {{"cached_tokens", usage.cached_tokens()}}},
          {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens()}}}};
}

double decimal(float value) {
  std::array<char, 32> text{};
  const auto written = std::to_chars(text.data(), text.data() + text.size(), value);
  double read = value;
  std::from_chars(text.data(), written.ptr, read);
  return read;
}

std::string json_text(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

Json begun_response(Json response) {
  response["completed_at"] = nullptr;
  response["status"] = "in_progress";
  response["incomplete_details"] = nullptr;
  response["output"] = Json::array();
  response["error"] = nullptr;
  response["usage"] = nullptr;
  return response;
}

std::string ResponseOutput::item_id(const char* prefix) const {
  return prefix + suffix_ + std::to_string(response_["output"].size());
}

void ResponseOutput::emit(const char* type, Json members, v1::ResponseEvents* events) {
  const std::int64_t number = sequence_++;
  if (events == nullptr) return;
  Json json = {{"type", type}, {"sequence_number", number}};
  for (auto& [name, value] : members.items()) json[name] = std::move(value);
  v1::ResponseEvent& event = *events->add_events();
  event.set_type(type);
  event.set_body(json_text(json));
}

void ResponseOutput::emit_response(const char* type, v1::ResponseEvents* events) {
  if (events == nullptr) {
    ++sequence_;
    return;
  }
  emit(type, {{"response", response_}}, events);
}

void ResponseOutput::begin(v1::ResponseEvents* events) {
  has_begun_ = true;
  emit_response("response.created", events);
  emit_response("response.in_progress", events);
}

void ResponseOutput::open(Kind kind, Json item, v1::ResponseEvents* events) {
  kind_ = kind;
  item_ = std::move(item);
  text_.clear();
  logprobs_ = nullptr;
  pieces_.push_back(Json::array());
  const std::size_t index = response_["output"].size();
  emit("response.output_item.added", {{"output_index", index}, {"item", item_}}, events);
  if (kind == Kind::kCall) return;
  Json part = kind == Kind::kReasoning
                  ? Json{{"type", "reasoning_text"}, {"text", ""}}
                  : Json{{"type", "output_text"}, {"text", ""}, {"annotations", Json::array()}};
  emit("response.content_part.added",
       {{"item_id", item_["id"]}, {"output_index", index}, {"content_index", 0}, {"part", part}},
       events);
}

void ResponseOutput::add_text(Kind kind, const std::string& text, Json logprobs,
                              v1::ResponseEvents* events) {
  if (kind_ != kind) {
    close(/*is_cut=*/false, events);
    Json item;
    if (kind == Kind::kReasoning) {
      item = {{"type", "reasoning"},
              {"id", item_id("rs_")},
              {"summary", Json::array()},
              {"content", Json::array()}};
    } else {
      item = {{"type", "message"},
              {"id", item_id("msg_")},
              {"status", "in_progress"},
              {"role", "assistant"},
              {"content", Json::array()}};
    }
    open(kind, std::move(item), events);
  }
  if (text.empty()) return;
  text_ += text;
  Json members = {{"item_id", item_["id"]},
                  {"output_index", response_["output"].size()},
                  {"content_index", 0},
                  {"delta", text}};
  if (logprobs.is_null()) {
    pieces_.back().push_back(text.size());
  } else {
    pieces_.back().push_back({text.size(), logprobs.size()});
    if (logprobs_.is_null()) logprobs_ = Json::array();
    for (const Json& token : logprobs) logprobs_.push_back(token);
    members["logprobs"] = std::move(logprobs);
  }
  emit(kind == Kind::kReasoning ? "response.reasoning.delta" : "response.output_text.delta",
       std::move(members), events);
}

void ResponseOutput::add_call(const v1::ToolCallDelta& call, v1::ResponseEvents* events) {
  if (!call.id().empty()) {
    close(/*is_cut=*/false, events);
    open(Kind::kCall,
         {{"type", "function_call"},
          {"id", item_id("fc_")},
          {"call_id", call.id()},
          {"name", call.name()},
          {"arguments", ""},
          {"status", "in_progress"}},
         events);
  }
  if (call.arguments().empty()) return;
  text_ += call.arguments();
  pieces_.back().push_back(call.arguments().size());
  emit("response.function_call_arguments.delta",
       {{"item_id", item_["id"]},
        {"output_index", response_["output"].size()},
        {"delta", call.arguments()}},
       events);
}

void ResponseOutput::close(bool is_cut, v1::ResponseEvents* events) {
  if (kind_ == Kind::kNone) return;
  const std::size_t index = response_["output"].size();
  if (kind_ == Kind::kCall) {
    // A call that broke off never looks whole.
    const bool is_whole = Json::accept(text_);
    if (is_whole) {
      emit("response.function_call_arguments.done",
           {{"item_id", item_["id"]}, {"output_index", index}, {"arguments", text_}}, events);
    }
    item_["arguments"] = text_;
    item_["status"] = is_whole ? "completed" : "incomplete";
  } else {
    Json part;
    if (kind_ == Kind::kReasoning) {
      part = {{"type", "reasoning_text"}, {"text", text_}};
    } else {
      part = {{"type", "output_text"}, {"text", text_}, {"annotations", Json::array()}};
      if (!logprobs_.is_null()) part["logprobs"] = logprobs_;
      item_["status"] = is_cut ? "incomplete" : "completed";
    }
    Json done = {
        {"item_id", item_["id"]}, {"output_index", index}, {"content_index", 0}, {"text", text_}};
    if (!logprobs_.is_null()) done["logprobs"] = logprobs_;
    emit(kind_ == Kind::kReasoning ? "response.reasoning.done" : "response.output_text.done",
         std::move(done), events);
    emit("response.content_part.done",
         {{"item_id", item_["id"]}, {"output_index", index}, {"content_index", 0}, {"part", part}},
         events);
    item_["content"].push_back(std::move(part));
    if (kind_ == Kind::kReasoning && seal_) item_["encrypted_content"] = seal_(text_);
  }
  emit("response.output_item.done", {{"output_index", index}, {"item", item_}}, events);
  response_["output"].push_back(std::move(item_));
  kind_ = Kind::kNone;
}

void ResponseOutput::push(const v1::ChatResponse& message, v1::ResponseEvents* events) {
  for (const v1::ChatDelta& delta : message.deltas()) {
    if (!delta.reasoning().empty()) {
      add_text(Kind::kReasoning, delta.reasoning(), nullptr, events);
    }
    if (!delta.content().empty()) {
      add_text(Kind::kMessage, delta.content(), tokens_json(delta), events);
    }
    if (delta.has_call()) add_call(delta.call(), events);
  }
  for (const v1::ChatFinish& finish : message.finished()) {
    is_cut_ = finish.reason() == v1::CHAT_FINISH_REASON_LENGTH;
  }
  if (message.has_usage()) usage_ = message.usage();
}

void ResponseOutput::repeat(const Json& item, const Json& pieces, v1::ResponseEvents* events) {
  v1::ToolCallDelta call;
  const bool is_call = item["type"] == "function_call";
  if (is_call) {
    call.set_id(item["call_id"]);
    call.set_name(item["name"]);
    add_call(call, events);
    call.clear_id();
  }
  const Json part = is_call ? Json() : item["content"][0];
  const std::string text = is_call ? item["arguments"] : part["text"];
  const Json tokens = is_call ? Json::array() : part.value("logprobs", Json::array());
  std::size_t at = 0, at_token = 0;
  for (const Json& each : pieces) {
    const Json size = each.is_array() ? each[0] : each;
    const std::string piece = text.substr(std::min(at, text.size()), size.get<std::size_t>());
    at += piece.size();
    if (is_call) {
      call.set_arguments(piece);
      add_call(call, events);
      continue;
    }
    Json logprobs;
    if (each.is_array()) {
      logprobs = Json::array();
      const std::size_t end = at_token + each[1].get<std::size_t>();
      for (; at_token < std::min(end, tokens.size()); ++at_token) {
        logprobs.push_back(tokens[at_token]);
      }
    }
    add_text(item["type"] == "reasoning" ? Kind::kReasoning : Kind::kMessage, piece,
             std::move(logprobs), events);
  }
}

void ResponseOutput::end(const char* status, bool is_cut, const char* event,
                         v1::ResponseEvents* events) {
  has_ended_ = true;
  if (!has_begun_) begin(events);
  close(is_cut, events);
  response_["status"] = status;
  response_["usage"] = response_usage(usage_);
  emit_response(event, events);
}

void ResponseOutput::finish(std::int64_t now, v1::ResponseEvents* events) {
  if (!has_begun_) begin(events);
  if (pieces_.empty()) add_text(Kind::kMessage, "", nullptr, events);
  if (is_cut_) {
    response_["incomplete_details"] = {{"reason", "max_output_tokens"}};
    end("incomplete", /*is_cut=*/true, "response.incomplete", events);
  } else {
    response_["completed_at"] = now;
    end("completed", /*is_cut=*/false, "response.completed", events);
  }
}

void ResponseOutput::fail(const std::string& code, const std::string& message,
                          v1::ResponseEvents* events) {
  if (has_ended_) {  // in the place of the end that there was
    --sequence_;
    if (events != nullptr && events->events_size() > 0) events->mutable_events()->RemoveLast();
    response_["completed_at"] = nullptr;
    response_["incomplete_details"] = nullptr;
  }
  response_["error"] = {{"code", code}, {"message", message}};
  end("failed", /*is_cut=*/true, "response.failed", events);
}

void ResponseOutput::cancel(v1::ResponseEvents* events) {
  end("cancelled", /*is_cut=*/true, "response.incomplete", events);
}

v1::ResponseEvents make_events(const Json& response, const Json& pieces, const std::string& suffix,
                               std::int64_t starting_after) {
  v1::ResponseEvents events;
  ResponseOutput output(begun_response(response), suffix);
  const Json& items = response["output"];
  const bool is_sealed = std::ranges::any_of(
      items, [](const Json& item) { return item.contains("encrypted_content"); });
  if (is_sealed) {
    output.seal_reasoning([&](const std::string&) {
      return items[output.response()["output"].size()].value("encrypted_content", "");
    });
  }
  output.begin(&events);
  for (std::size_t i = 0; i < items.size(); ++i) {
    output.repeat(items[i], i < pieces.size() ? pieces[i] : Json::array(), &events);
  }
  v1::ChatResponse last;
  const Json& usage = response["usage"];
  if (!usage.is_null()) {
    v1::ChatUsage& wire = *last.mutable_usage();
    wire.set_prompt_tokens(usage["input_tokens"]);
    wire.set_completion_tokens(usage["output_tokens"]);
    wire.set_cached_tokens(usage["input_tokens_details"]["cached_tokens"]);
    wire.set_reasoning_tokens(usage["output_tokens_details"]["reasoning_tokens"]);
  }
  const std::string status = response["status"];
  if (status == "incomplete") last.add_finished()->set_reason(v1::CHAT_FINISH_REASON_LENGTH);
  output.push(last, &events);
  if (status == "failed") {
    output.fail(response["error"]["code"], response["error"]["message"], &events);
  } else if (status == "cancelled") {
    output.cancel(&events);
  } else {
    const Json& completed = response["completed_at"];
    output.finish(completed.is_null() ? 0 : completed.get<std::int64_t>(), &events);
  }
  const std::int64_t skipped =
      std::clamp<std::int64_t>(starting_after + 1, 0, events.events_size());
  events.mutable_events()->DeleteSubrange(0, static_cast<int>(skipped));
  events.set_response(json_text(response));
  return events;
}

}  // namespace lintel
