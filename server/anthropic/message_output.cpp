// SPDX-License-Identifier: Apache-2.0
#include "server/anthropic/message_output.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "server/chat/chat_output.h"
#include "server/http/encoding/json_bodies.h"
#include "server/http/encoding/server_sent_events.h"
#include "server/rpc/rpc.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

using Json = nlohmann::ordered_json;

// An event, whose data begins with its type.
std::string typed_event(const char* type, const Json& members) {
  Json json = {{"type", type}};
  json.update(members);
  return std::string("event: ") + type + "\n" + server_sent_event(dumped(json));
}

}  // namespace

void MessageOutput::note(const v1::ChatResponse& message) {
  if (options_.model.empty()) options_.model = message.model();
  if (message.prompt_tokens() > 0) {
    usage_.set_prompt_tokens(message.prompt_tokens());
    usage_.set_cached_tokens(message.cached_tokens());
  }
  if (message.has_usage()) usage_ = message.usage();
  if (message.finished_size() > 0) finish_ = message.finished(message.finished_size() - 1);
}

Json MessageOutput::usage() const {
  return {
      {"input_tokens", std::max<std::int64_t>(usage_.prompt_tokens() - usage_.cached_tokens(), 0)},
      {"cache_creation_input_tokens", 0},
      {"cache_read_input_tokens", usage_.cached_tokens()},
      {"output_tokens", usage_.completion_tokens()},
      {"output_tokens_details", {{"thinking_tokens", usage_.reasoning_tokens()}}}};
}

// A text that ends the model's own turns is no stop sequence of the request.
Json MessageOutput::stop_sequence() const {
  const bool is_asked_for = finish_.reason() == v1::CHAT_FINISH_REASON_STOP &&
                            !finish_.stop_string().empty() &&
                            std::ranges::find(options_.stop_sequences, finish_.stop_string()) !=
                                options_.stop_sequences.end();
  return is_asked_for ? Json(finish_.stop_string()) : Json();
}

std::string MessageOutput::stop_reason() const {
  switch (finish_.reason()) {
    case v1::CHAT_FINISH_REASON_TOOL_CALLS:
      return "tool_use";
    case v1::CHAT_FINISH_REASON_STOP:
      return stop_sequence().is_null() ? "end_turn" : "stop_sequence";
    default:
      return finish_.at_context_end() ? "model_context_window_exceeded" : "max_tokens";
  }
}

void MessageOutput::begin(std::string& out) {
  if (std::exchange(has_begun_, true)) return;
  const Json message = {{"id", options_.id},        {"type", "message"},
                        {"role", "assistant"},      {"model", options_.model},
                        {"content", Json::array()}, {"stop_reason", nullptr},
                        {"stop_sequence", nullptr}, {"usage", usage()}};
  out += typed_event("message_start", {{"message", message}});
}

void MessageOutput::open(Kind kind, Json block, std::string& out) {
  close(out);
  kind_ = kind;
  out += typed_event("content_block_start", {{"index", index_}, {"content_block", block}});
}

void MessageOutput::add_delta(Json delta, std::string& out) const {
  out += typed_event("content_block_delta", {{"index", index_}, {"delta", std::move(delta)}});
}

void MessageOutput::keep_thinking(const std::string& text) {
  const std::size_t size = thinking_.size() + text.size();
  if (keeps_thinking_ && size > options_.charge.bytes()) {
    keeps_thinking_ = !options_.charge.add(size);
    if (!keeps_thinking_) thinking_ = {};
  }
  if (keeps_thinking_) thinking_ += text;
}

void MessageOutput::close(std::string& out) {
  if (kind_ == Kind::kNone) return;
  if (kind_ == Kind::kThinking) {
    const std::string signature = thinking_.empty() ? "" : options_.seal(thinking_);
    add_delta({{"type", "signature_delta"}, {"signature", signature}}, out);
    thinking_ = {};
    options_.charge.shrink_to(0);
  }
  out += typed_event("content_block_stop", {{"index", index_}});
  kind_ = Kind::kNone;
  ++index_;
}

std::string MessageOutput::events(const v1::ChatResponse& message) {
  std::string out;
  note(message);
  begin(out);
  for (const v1::ChatDelta& delta : message.deltas()) {
    if (!delta.reasoning().empty()) {
      if (kind_ != Kind::kThinking) {
        open(Kind::kThinking, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}, out);
      }
      keep_thinking(delta.reasoning());
      if (options_.shows_thinking) {
        add_delta({{"type", "thinking_delta"}, {"thinking", delta.reasoning()}}, out);
      }
    }
    if (!delta.content().empty()) {
      if (kind_ != Kind::kText) open(Kind::kText, {{"type", "text"}, {"text", ""}}, out);
      add_delta({{"type", "text_delta"}, {"text", delta.content()}}, out);
    }
    if (!delta.has_call()) continue;
    const v1::ToolCallDelta& call = delta.call();
    if (!call.id().empty()) {
      open(Kind::kCall,
           {{"type", "tool_use"},
            {"id", call.id()},
            {"name", call.name()},
            {"input", Json::object()}},
           out);
    }
    if (!call.arguments().empty()) {
      add_delta({{"type", "input_json_delta"}, {"partial_json", call.arguments()}}, out);
    }
  }
  return out;
}

std::string MessageOutput::last_events() {
  std::string out;
  begin(out);
  close(out);
  out +=
      typed_event("message_delta",
                  {{"delta", {{"stop_reason", stop_reason()}, {"stop_sequence", stop_sequence()}}},
                   {"usage", usage()}});
  return out + typed_event("message_stop", Json::object());
}

grpc::Status MessageOutput::gather(const v1::ChatResponse& message) {
  note(message);
  const auto add = [this](Kind kind, const std::string& text) {
    if (text.empty()) return;
    if (blocks_.empty() || blocks_.back().kind != kind) blocks_.push_back({.kind = kind});
    blocks_.back().text += text;
    gathered_ += text.size();
  };
  for (const v1::ChatDelta& delta : message.deltas()) {
    add(Kind::kThinking, delta.reasoning());
    add(Kind::kText, delta.content());
    if (!delta.has_call()) continue;
    if (!delta.call().id().empty()) {
      Block& block = blocks_.emplace_back(Block{.kind = Kind::kCall});
      block.call.set_id(delta.call().id());
      block.call.set_name(delta.call().name());
      gathered_ += delta.call().id().size() + delta.call().name().size();
    }
    add(Kind::kCall, delta.call().arguments());
  }
  if (gathered_ <= kMaxMessageBytes) return grpc::Status::OK;
  return invalid_argument(
      {{"max_tokens",
        "the answer is larger than " + std::to_string(kMaxMessageBytes) + " bytes: stream it"}});
}

void MessageOutput::write_block(Block& block, JsonPieces& out) const {
  switch (block.kind) {
    case Kind::kThinking: {
      std::string signature = options_.seal(block.text);
      out.raw(R"({"type":"thinking","thinking":)");
      out.quoted(options_.shows_thinking ? std::move(block.text) : "");
      out.raw(",\"signature\":");
      out.quoted(std::move(signature));
      break;
    }
    case Kind::kText:
      out.raw(R"({"type":"text","text":)");
      out.quoted(std::move(block.text));
      break;
    default:
      out.raw(R"({"type":"tool_use","id":)" + dumped(Json(block.call.id())) +
              ",\"name\":" + dumped(Json(block.call.name())) + ",\"input\":");
      out.raw(std::move(block.text));
  }
  out.raw("}");
}

JsonPieces MessageOutput::body() {
  // A call that broke off cannot be run. A stream has shown it as far as it came.
  std::erase_if(blocks_, [](const Block& block) {
    return block.kind == Kind::kCall && !is_whole_json(block.text);
  });
  JsonPieces out;
  out.raw("{\"id\":" + dumped(Json(options_.id)) +
          R"(,"type":"message","role":"assistant","model":)" + dumped(Json(options_.model)) +
          ",\"content\":[");
  const char* separator = "";
  for (Block& block : blocks_) {
    out.raw(std::exchange(separator, ","));
    write_block(block, out);
  }
  blocks_.clear();
  out.raw("],\"stop_reason\":" + dumped(Json(stop_reason())) +
          ",\"stop_sequence\":" + dumped(stop_sequence()) + ",\"usage\":" + dumped(usage()) + "}");
  return out;
}

}  // namespace lintel
