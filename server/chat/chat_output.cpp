// SPDX-License-Identifier: Apache-2.0
#include "server/chat/chat_output.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "model/core/sha256.h"

namespace lintel {

ChatOutput chat_output(const api::ChatParams& request, const ChatPrompt& prompt,
                       std::shared_ptr<const Tokenizer> tokenizer) {
  ChatOutput output;
  output.tokenizer = std::move(tokenizer);
  const bool reads_calls =
      !request.tools.is_null() && request.tool_choice != api::ChatParams::ToolChoice::kNone;
  output.thinking = prompt.thinking;
  output.reader.reasoning =
      prompt.thinking == ThinkingStart::kOpened ? ReasoningMode::kOpened : ReasoningMode::kTags;
  output.reader.dialect = reads_calls ? prompt.traits.dialect : ToolDialect::kNone;
  output.reader.parallel = request.parallel_tool_calls;
  // A document may speak of calls; GBNF that writes some means them.
  output.reader.calls_after_text = request.format != api::ChatParams::Format::kJsonObject &&
                                   request.format != api::ChatParams::Format::kJsonSchema;
  if (reads_calls) output.tools = ToolTypes(request.tools);
  output.thinking_budget = request.thinking_budget;
  output.stops = request.base.stop.strings;
  output.has_stop_token = request.base.stop.include_in_output;
  if (output.has_stop_token) output.shown_stops = output.stops.size();
  output.min_tokens = request.base.stop.min_tokens;
  output.spells_special = !request.skip_special_tokens;
  output.logprobs = request.logprobs;
  output.token_ids = request.return_token_ids;
  return output;
}

ChatChoice::ChatChoice(const ChatOutput& output, std::uint32_t index)
    : output_(output), index_(index), reader_(output.reader, &output.tools), stop_(output.stops) {
  if (output.thinking != ThinkingStart::kOpenedHalf) return;
  // The part of the tag that the prompt has.
  constexpr std::string_view kHalf = "<think";
  std::vector<OutputDelta> none;
  reader_.push(kHalf, none);
}

std::string_view ChatChoice::text_of(std::int32_t id) const {
  const std::string_view bytes = output_.tokenizer->bytes_of(id);
  return bytes.empty() && output_.spells_special ? output_.tokenizer->text_of_special(id) : bytes;
}

v1::ContentToken ChatChoice::content_token(std::int32_t id, float log2_prob) const {
  v1::ContentToken token;
  token.set_id(id);
  token.set_text(std::string(text_of(id)));
  token.set_log2_prob(log2_prob);
  return token;
}

void ChatChoice::push(const ChatToken& token, v1::ChatResponse& message) {
  if (is_over_) return;
  ++tokens_;
  if (output_.token_ids) ids_.push_back(token.id);
  const std::uint64_t begin = reader_.read_bytes();
  begins_.push_back(begin);
  const std::string_view text = text_of(token.id);
  const bool was_reasoning = reader_.in_reasoning();
  if (output_.logprobs && token.log2_prob && !text.empty()) {
    waiting_.push_back({begin, token.id, *token.log2_prob, {token.top.begin(), token.top.end()}});
  }
  std::vector<OutputDelta> deltas;
  reader_.push(text, deltas);
  add(deltas, message);
  count_reasoning();
  drop_reasoning();
  // A model whose reasoning was ended for it may yet write the end of what it thinks.
  if (was_reasoning && !reader_.in_reasoning() && output_.thinking_budget &&
      reasoning_tokens_ >= *output_.thinking_budget) {
    reader_.expect_end_of_thought();
  }
  if (!reader_.reasoning() && !deltas.empty()) begins_.clear();  // none comes behind the content
  if (is_over_) return;
  if (reader_.stopped()) end(v1::CHAT_FINISH_REASON_TOOL_CALLS, message);
}

// Tokens before the content are of reasoning where they begin within it.
void ChatChoice::count_reasoning() {
  const auto& span = reader_.reasoning();
  if (!span) return;
  const std::uint64_t end = span->end.value_or(reader_.decided());
  for (const std::uint64_t begin : begins_) {
    if (span->begin <= begin && begin < end) ++reasoning_tokens_;
  }
  // The last tokens of an open reasoning may be part of its end.
  std::erase_if(begins_, [&](std::uint64_t begin) { return span->end || begin < end; });
}

void ChatChoice::drop_reasoning() {
  const auto& span = reader_.reasoning();
  if (!span) return;
  const std::uint64_t end = span->end.value_or(reader_.decided());
  while (!waiting_.empty() && waiting_.front().begin < end) waiting_.pop_front();
}

v1::ChatDelta& ChatChoice::add_delta(v1::ChatResponse& message) {
  v1::ChatDelta& delta = *message.add_deltas();
  delta.set_choice(index_);
  delta.mutable_token_ids()->Add(ids_.begin(), ids_.end());
  ids_.clear();
  return delta;
}

void ChatChoice::add(std::span<const OutputDelta> deltas, v1::ChatResponse& message) {
  for (const OutputDelta& delta : deltas) {
    if (is_over_) return;
    if (delta.kind == OutputDelta::Kind::kContent) {
      add_content(delta, message);
      continue;
    }
    if (delta.kind == OutputDelta::Kind::kCall && delta.call >= kMostCalls) {
      return end(v1::CHAT_FINISH_REASON_LENGTH, message);
    }
    v1::ChatDelta& wire = add_delta(message);
    if (delta.kind == OutputDelta::Kind::kReasoning) {
      wire.set_reasoning(delta.text);
      continue;
    }
    v1::ToolCallDelta& call = *wire.mutable_call();
    call.set_index(static_cast<std::uint32_t>(delta.call));
    call.set_arguments(delta.text);
    if (delta.name.empty()) continue;
    call.set_name(delta.name);
    call.set_id(call_id(delta.call));
  }
}

void ChatChoice::add_content(const OutputDelta& delta, v1::ChatResponse& message) {
  std::string text;
  const bool has_stopped = stop_.push(delta.text, text, tokens_ > output_.min_tokens);
  if (has_stopped && *stop_.stopped_by() < output_.shown_stops) {
    text += output_.stops[*stop_.stopped_by()];
  }
  if (!text.empty()) {
    v1::ChatDelta& wire = add_delta(message);
    wire.set_content(text);
    // Tokens of a text that a stop text holds back come with it.
    add_tokens(delta.offset + delta.text.size(), wire);
  }
  if (has_stopped) end(v1::CHAT_FINISH_REASON_STOP, message);
}

void ChatChoice::add_tokens(std::uint64_t end, v1::ChatDelta& delta) {
  const auto& span = reader_.reasoning();
  const std::uint64_t content = span ? span->end.value_or(reader_.read_bytes()) : 0;
  while (!waiting_.empty() && waiting_.front().begin < end) {
    const Waiting& waiting = waiting_.front();
    if (waiting.begin >= content) {
      v1::ContentToken& token = *delta.add_tokens() = content_token(waiting.id, waiting.log2_prob);
      for (const auto& [id, log2_prob] : waiting.top) {
        *token.add_top() = content_token(id, log2_prob);
      }
    }
    waiting_.pop_front();
  }
}

void ChatChoice::end_with(std::int32_t token) {
  if (is_over_) return;
  ++tokens_;
  if (output_.token_ids) ids_.push_back(token);
}

void ChatChoice::finish(bool by_itself, v1::ChatResponse& message) {
  if (is_over_) return;
  std::vector<OutputDelta> deltas;
  reader_.finish(by_itself ? OutputEnd::kStop : OutputEnd::kLength, deltas);
  add(deltas, message);
  count_reasoning();
  if (is_over_) return;
  std::string rest;
  stop_.finish(rest);
  if (!rest.empty()) {
    v1::ChatDelta& wire = add_delta(message);
    wire.set_content(rest);
    add_tokens(reader_.read_bytes(), wire);
  }
  const bool has_calls = reader_.num_calls() > 0 && reader_.calls_are_whole();
  end(!by_itself  ? v1::CHAT_FINISH_REASON_LENGTH
      : has_calls ? v1::CHAT_FINISH_REASON_TOOL_CALLS
                  : v1::CHAT_FINISH_REASON_STOP,
      message);
}

void ChatChoice::end(v1::ChatFinishReason reason, v1::ChatResponse& message) {
  is_over_ = true;
  if (!ids_.empty()) add_delta(message);
  v1::ChatFinish& finish = *message.add_finished();
  finish.set_choice(index_);
  finish.set_reason(reason);
  finish.set_seed(output_.seed + index_);
  if (const auto stopped_by = stop_.stopped_by()) {
    finish.set_stop_string(output_.stops[*stopped_by]);
  }
}

// 9 of A-Z a-z 0-9, which templates of Mistral demand.
std::string ChatChoice::call_id(std::size_t call) const {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  const std::string text =
      std::to_string(output_.seed) + " " + std::to_string(index_) + " " + std::to_string(call);
  Sha256 hasher;
  hasher.add(text);
  const std::string hash = hasher.hex();
  std::string id;
  for (std::size_t i = 0; i < 9; ++i) {
    id += kLetters[static_cast<std::size_t>(std::stoi(hash.substr(2 * i, 2), nullptr, 16)) %
                   kLetters.size()];
  }
  return id;
}

bool is_whole_json(std::string_view text) {
  // Numbers are cut to two digits in a row: that keeps whether they are well-formed (01 is not),
  // and none is too large for a double.
  std::string shortened;
  shortened.reserve(text.size());
  bool in_text = false;
  std::size_t digits = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool is_escape = in_text && c == '\\' && i + 1 < text.size();
    if (c == '"') in_text = !in_text;
    digits = !in_text && c >= '0' && c <= '9' ? digits + 1 : 0;
    if (digits > 2) continue;
    shortened += c;
    if (is_escape) shortened += text[++i];
  }
  return nlohmann::json::accept(shortened);
}

}  // namespace lintel
