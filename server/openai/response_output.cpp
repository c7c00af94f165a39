// SPDX-License-Identifier: Apache-2.0
#include "server/openai/response_output.h"

#include <algorithm>
#include <utility>

#include "server/chat/chat_output.h"
#include "server/chat/template/request_json.h"
#include "server/openai/json.h"

namespace lintel {
namespace {

using Json = nlohmann::ordered_json;

// An output has reasoning once, a message before each call and one after the last.
static_assert(1 + 2 * kMostCalls + 1 <= kMostOutputItems);

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// Appends the members of a token, without a closing brace.
void write_token(std::string_view text, float log2_prob, std::string& out) {
  out += dumped(token_json(text, log2_prob));
  out.pop_back();
}

// An estimate of a token's bytes as JSON, mostly too high: a character that is escaped may take six
// bytes.
std::size_t token_bytes(std::string_view text) { return 48 + 6 * text.size(); }

// The tokens of a delta as a list.
std::string tokens_text(const v1::ChatDelta& delta) {
  std::string out = "[";
  for (const v1::ContentToken& token : delta.tokens()) {
    if (out.size() > 1) out += ',';
    write_token(token.text(), token.log2_prob(), out);
    out += ",\"top_logprobs\":[";
    for (int i = 0; i < token.top_size(); ++i) {
      if (i > 0) out += ',';
      write_token(token.top(i).text(), token.top(i).log2_prob(), out);
      out += '}';
    }
    out += "]}";
  }
  return out += ']';
}

}  // namespace

Json raw_json(const std::string& text) { return Json::binary({text.begin(), text.end()}); }

Json begun_response(Json response) {
  response["completed_at"] = nullptr;
  response["status"] = "in_progress";
  response["incomplete_details"] = nullptr;
  response["output"] = Json::array();
  response["error"] = nullptr;
  response["usage"] = nullptr;
  response.erase("timings");
  return response;
}

ResponseOutput::ResponseOutput(Json response, std::string suffix)
    : response_(std::move(response)), suffix_(std::move(suffix)) {
  if (const auto tools = response_.find("tools"); tools != response_.end()) {
    for (const Json& tool : *tools) {
      if (tool["type"] == "custom") custom_tools_.insert(tool["name"].get<std::string>());
    }
  }
  const auto reasoning = response_.find("reasoning");
  has_summaries_ = reasoning != response_.end() && !reasoning->value("summary", Json()).is_null();
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
  is_streamed_ = events != nullptr;
  emit_response("response.created", events);
  emit_response("response.in_progress", events);
}

void ResponseOutput::open(Kind kind, Json item, v1::ResponseEvents* events) {
  kind_ = kind;
  item_ = std::move(item);
  text_.clear();
  has_logprobs_ = false;
  logprobs_ = {};
  repeated_logprobs_.clear();
  pieces_.emplace_back();
  const std::size_t index = response_["output"].size();
  emit("response.output_item.added", {{"output_index", index}, {"item", item_}}, events);
  if (kind == Kind::kCall || kind == Kind::kCustomCall) return;
  if (kind == Kind::kReasoning && has_summaries_) {
    emit("response.reasoning_summary_part.added",
         {{"item_id", item_["id"]},
          {"output_index", index},
          {"summary_index", 0},
          {"part", {{"type", "summary_text"}, {"text", ""}}}},
         events);
  }
  Json part = kind == Kind::kReasoning
                  ? Json{{"type", "reasoning_text"}, {"text", ""}}
                  : Json{{"type", "output_text"}, {"text", ""}, {"annotations", Json::array()}};
  emit("response.content_part.added",
       {{"item_id", item_["id"]}, {"output_index", index}, {"content_index", 0}, {"part", part}},
       events);
}

void ResponseOutput::add_text(Kind kind, const std::string& text, Json logprobs, std::size_t count,
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
  output_bytes_ += text.size();
  Json members = {{"item_id", item_["id"]},
                  {"output_index", response_["output"].size()},
                  {"content_index", 0},
                  {"delta", text}};
  Piece& piece = pieces_.back().emplace_back();
  piece.bytes = static_cast<std::uint32_t>(text.size());
  if (count > 0) {
    piece.logprobs = static_cast<std::uint32_t>(count);
    has_logprobs_ = true;
    if (events != nullptr) members["logprobs"] = std::move(logprobs);
  }
  emit(kind == Kind::kReasoning ? "response.reasoning.delta" : "response.output_text.delta",
       std::move(members), events);
  if (kind != Kind::kReasoning || !has_summaries_) return;
  output_bytes_ += text.size();
  emit("response.reasoning_summary_text.delta",
       {{"item_id", item_["id"]},
        {"output_index", response_["output"].size()},
        {"summary_index", 0},
        {"delta", text}},
       events);
}

void ResponseOutput::add_call(const v1::ToolCallDelta& call, v1::ResponseEvents* events) {
  if (!call.id().empty()) {
    close(/*is_cut=*/false, events);
    open_call(custom_tools_.contains(call.name()) ? Kind::kCustomCall : Kind::kCall, call.id(),
              call.name(), events);
  }
  output_bytes_ += call.arguments().size();
  add_call_text(kind_ == Kind::kCustomCall ? input_.push(call.arguments()) : call.arguments(),
                events);
}

void ResponseOutput::open_call(Kind kind, const std::string& id, const std::string& name,
                               v1::ResponseEvents* events) {
  const bool is_custom = kind == Kind::kCustomCall;
  input_ = CustomInput();
  is_whole_input_ = false;
  open(kind,
       {{"type", is_custom ? "custom_tool_call" : "function_call"},
        {"id", item_id(is_custom ? "ctc_" : "fc_")},
        {"call_id", id},
        {"name", name},
        {is_custom ? "input" : "arguments", ""},
        {"status", "in_progress"}},
       events);
}

void ResponseOutput::add_call_text(const std::string& text, v1::ResponseEvents* events) {
  if (text.empty()) return;
  text_ += text;
  pieces_.back().push_back({.bytes = static_cast<std::uint32_t>(text.size())});
  emit(kind_ == Kind::kCustomCall ? "response.custom_tool_call_input.delta"
                                  : "response.function_call_arguments.delta",
       {{"item_id", item_["id"]}, {"output_index", response_["output"].size()}, {"delta", text}},
       events);
}

bool ResponseOutput::is_whole_call() const {
  return kind_ == Kind::kCall ? is_whole_json(text_) : is_whole_input_ || input_.is_whole(text_);
}

void ResponseOutput::close(bool is_cut, v1::ResponseEvents* events) {
  if (kind_ == Kind::kNone) return;
  const std::size_t index = response_["output"].size();
  if (kind_ == Kind::kCall || kind_ == Kind::kCustomCall) {
    // An incomplete call cannot be run. A stream has already shown its beginning.
    const bool is_whole = is_whole_call();
    if (!is_whole && !is_streamed_) {
      pieces_.pop_back();
      kind_ = Kind::kNone;
      return;
    }
    const bool is_custom = kind_ == Kind::kCustomCall;
    const char* const member = is_custom ? "input" : "arguments";
    emit(is_custom ? "response.custom_tool_call_input.done"
                   : "response.function_call_arguments.done",
         {{"item_id", item_["id"]}, {"output_index", index}, {member, text_}}, events);
    item_[member] = std::move(text_);
    item_["status"] = is_whole ? "completed" : "incomplete";
  } else {
    Json part;
    if (kind_ == Kind::kReasoning) {
      part = {{"type", "reasoning_text"}, {"text", text_}};
    } else {
      part = {{"type", "output_text"}, {"text", text_}, {"annotations", Json::array()}};
      if (has_logprobs_) part["logprobs"] = raw_json(logprobs_text());
      item_["status"] = is_cut ? "incomplete" : "completed";
    }
    Json done = {
        {"item_id", item_["id"]}, {"output_index", index}, {"content_index", 0}, {"text", text_}};
    if (has_logprobs_) done["logprobs"] = part["logprobs"];
    emit(kind_ == Kind::kReasoning ? "response.reasoning.done" : "response.output_text.done",
         std::move(done), events);
    emit("response.content_part.done",
         {{"item_id", item_["id"]}, {"output_index", index}, {"content_index", 0}, {"part", part}},
         events);
    if (kind_ == Kind::kReasoning && has_summaries_) {
      Json summary = {{"type", "summary_text"}, {"text", text_}};
      const Json place = {{"item_id", item_["id"]}, {"output_index", index}, {"summary_index", 0}};
      Json whole = place;
      whole["text"] = text_;
      emit("response.reasoning_summary_text.done", std::move(whole), events);
      whole = place;
      whole["part"] = summary;
      emit("response.reasoning_summary_part.done", std::move(whole), events);
      item_["summary"].push_back(std::move(summary));
    }
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
      add_text(Kind::kReasoning, delta.reasoning(), nullptr, /*count=*/0, events);
    }
    if (!delta.content().empty()) {
      const auto count = static_cast<std::size_t>(delta.tokens_size());
      const bool is_shown = count > 0 && events != nullptr;
      add_text(Kind::kMessage, delta.content(), is_shown ? raw_json(tokens_text(delta)) : Json(),
               count, events);
      add_tokens(delta);
    }
    if (delta.has_call()) add_call(delta.call(), events);
  }
  for (const v1::ChatFinish& finish : message.finished()) {
    is_cut_ = finish.reason() == v1::CHAT_FINISH_REASON_LENGTH;
    add_timings(finish.timings(), timings_);
  }
  if (message.has_usage()) usage_ = message.usage();
}

void ResponseOutput::add_tokens(const v1::ChatDelta& delta) {
  for (const v1::ContentToken& token : delta.tokens()) {
    logprobs_.add(token.id(), token.text(), token.log2_prob());
    output_bytes_ += token_bytes(token.text());
    for (const v1::ContentToken& top : token.top()) {
      logprobs_.add_top(top.id(), top.text(), top.log2_prob());
      output_bytes_ += token_bytes(top.text());
    }
  }
}

std::string ResponseOutput::logprobs_text() const {
  std::string out = "[" + repeated_logprobs_;
  for (TokenRecord::Cursor at; at.token < logprobs_.size(); logprobs_.advance(at)) {
    if (out.size() > 1) out += ',';
    const TokenRecord::Value token = logprobs_.token_at(at);
    write_token(logprobs_.text_of(token.id), token.log2_prob, out);
    out += ",\"top_logprobs\":[";
    for (std::size_t i = 0; i < logprobs_.tops_at(at); ++i) {
      if (i > 0) out += ',';
      const TokenRecord::Value top = logprobs_.top_at(at, i);
      write_token(logprobs_.text_of(top.id), top.log2_prob, out);
      out += '}';
    }
    out += "]}";
  }
  return out += ']';
}

Json ResponseOutput::pieces() const {
  Json all = Json::array();
  for (const std::deque<Piece>& item : pieces_) {
    Json& list = all.emplace_back(Json::array());
    for (const Piece& piece : item) {
      if (piece.logprobs == Piece::kNone) {
        list.push_back(piece.bytes);
      } else {
        list.push_back({piece.bytes, piece.logprobs});
      }
    }
  }
  return all;
}

void ResponseOutput::end(const char* status, bool is_cut, const char* event,
                         v1::ResponseEvents* events) {
  has_ended_ = true;
  if (!has_begun_) begin(events);
  close(is_cut, events);
  response_["status"] = status;
  response_["usage"] = usage_json(usage_, UsageForm::kResponse);
  if (has_timings_) {
    timings_.cached = usage_.cached_tokens();
    timings_.prompt = usage_.prompt_tokens() - usage_.cached_tokens();
    timings_.predicted = usage_.completion_tokens();
    response_["timings"] = timings_json(timings_);
  }
  emit_response(event, events);
}

void ResponseOutput::finish(std::int64_t now, v1::ResponseEvents* events) {
  if (!has_begun_) begin(events);
  close(is_cut_, events);
  if (pieces_.empty()) add_text(Kind::kMessage, "", nullptr, /*count=*/0, events);
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
  if (has_ended_) {  // replaces the earlier end
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

RepeatedEvents::RepeatedEvents(Json response, Json pieces, const std::string& suffix,
                               std::int64_t starting_after)
    : response_(std::move(response)),
      pieces_(std::move(pieces)),
      output_(begun_response(response_), suffix),
      skipped_(starting_after + 1) {
  const Json& items = response_["output"];
  // A response of an earlier version has none.
  output_.has_summaries_ = std::ranges::any_of(
      items, [](const Json& item) { return !item.value("summary", Json::array()).empty(); });
  const bool is_sealed = std::ranges::any_of(
      items, [](const Json& item) { return item.contains("encrypted_content"); });
  if (!is_sealed) return;
  output_.seal_reasoning([this](const std::string&) {
    return response_["output"][output_.response()["output"].size()].value("encrypted_content", "");
  });
}

bool RepeatedEvents::read(int most, v1::ResponseEvents& events) {
  while (!is_over_ && events.events_size() < most) {
    v1::ResponseEvents made;
    step(made);
    for (v1::ResponseEvent& event : *made.mutable_events()) {
      if (skipped_-- <= 0) *events.add_events() = std::move(event);
    }
  }
  if (is_over_) events.set_response(json_text(response_));
  return is_over_;
}

void RepeatedEvents::step(v1::ResponseEvents& events) {
  const Json& items = response_["output"];
  if (!std::exchange(has_begun_, true)) return output_.begin(&events);
  if (item_ == items.size()) return end(events);
  const Json& item = items[item_];
  const bool is_custom = item["type"] == "custom_tool_call";
  const bool is_call = is_custom || item["type"] == "function_call";
  if (is_call && piece_ == 0) {
    using Kind = ResponseOutput::Kind;
    output_.close(/*is_cut=*/false, &events);
    output_.open_call(is_custom ? Kind::kCustomCall : Kind::kCall, item["call_id"], item["name"],
                      &events);
    output_.is_whole_input_ = item["status"] == "completed";
  }
  const Json none = Json::array();
  const Json& pieces = item_ < pieces_.size() ? pieces_[item_] : none;
  if (piece_ == pieces.size()) {
    ++item_;
    piece_ = at_ = at_token_ = 0;
    return;
  }
  const Json& each = pieces[piece_++];
  const auto size = (each.is_array() ? each[0] : each).get<std::size_t>();
  const std::string& text = (is_custom ? item["input"]
                             : is_call ? item["arguments"]
                                       : item["content"][0]["text"])
                                .get_ref<const std::string&>();
  const std::string piece = text.substr(std::min(at_, text.size()), size);
  at_ += piece.size();
  if (is_call) return output_.add_call_text(piece, &events);
  std::string logprobs;
  std::size_t count = 0;
  if (each.is_array()) {
    const Json& part = item["content"][0];
    const auto tokens = part.find("logprobs");
    const std::size_t end = tokens == part.end()
                                ? at_token_
                                : std::min(at_token_ + each[1].get<std::size_t>(), tokens->size());
    for (; at_token_ < end; ++at_token_, ++count) {
      if (count > 0) logprobs += ',';
      logprobs += json_text((*tokens)[at_token_]);
    }
  }
  const auto kind = item["type"] == "reasoning" ? ResponseOutput::Kind::kReasoning
                                                : ResponseOutput::Kind::kMessage;
  output_.add_text(kind, piece, raw_json("[" + logprobs + "]"), count, &events);
  if (count == 0) return;
  std::string& repeated = output_.repeated_logprobs_;
  repeated += (repeated.empty() ? "" : ",") + logprobs;
}

void RepeatedEvents::end(v1::ResponseEvents& events) {
  is_over_ = true;
  v1::ChatResponse last;
  const Json& usage = response_["usage"];
  if (!usage.is_null()) {
    v1::ChatUsage& wire = *last.mutable_usage();
    wire.set_prompt_tokens(usage["input_tokens"]);
    wire.set_completion_tokens(usage["output_tokens"]);
    wire.set_cached_tokens(usage["input_tokens_details"]["cached_tokens"]);
    wire.set_reasoning_tokens(usage["output_tokens_details"]["reasoning_tokens"]);
  }
  const std::string status = response_["status"];
  if (status == "incomplete") last.add_finished()->set_reason(v1::CHAT_FINISH_REASON_LENGTH);
  output_.push(last, &events);
  if (const auto timings = response_.find("timings"); timings != response_.end()) {
    output_.response_["timings"] = *timings;
  }
  if (status == "failed") {
    output_.fail(response_["error"]["code"], response_["error"]["message"], &events);
  } else if (status == "cancelled") {
    output_.cancel(&events);
  } else {
    const Json& completed = response_["completed_at"];
    output_.finish(completed.is_null() ? 0 : completed.get<std::int64_t>(), &events);
  }
}

}  // namespace lintel
