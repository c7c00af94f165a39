// SPDX-License-Identifier: Apache-2.0
// One request of /v1/chat/completions, from its body to its last byte.
#pragma once

#include <grpcpp/support/status.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lintel/v1/chat.pb.h"
#include "model/core/json_reader.h"
#include "server/core/token_record.h"
#include "server/http/encoding/json_bodies.h"
#include "server/http/transport/http_calls.h"
#include "server/http/transport/http_message.h"
#include "server/openai/json.h"

namespace lintel {

// Options of the form of an answer.
struct ChatForm {
  bool include_usage = false;
  bool continuous_usage = false;  // in each event
  bool logprobs = false;
  bool token_ids = false;
  bool timings = false;
  ChatReasoningField reasoning = ChatReasoningField::kReasoningContent;
};

// The messages of lintel.v1.ChatService/Complete as OpenAI's JSON. Used by one thread at a time.
class ChatJson {
 public:
  // head: without a model, which the first message has.
  ChatJson(AnswerHead head, ChatForm form) : head_(std::move(head)), form_(form) {}

  // Events of a stream: of a message, and the last ones.
  std::string events(const v1::ChatResponse& message);
  std::string last_events() const;
  // Adds a message to an answer that is sent whole. Not OK: it is too large.
  grpc::Status gather(const v1::ChatResponse& message);
  // Takes what was gathered.
  JsonPieces body();

 private:
  struct Choice {
    std::string content, reasoning;
    std::vector<v1::ToolCallDelta> calls;
    TokenRecord tokens;
    std::vector<std::int32_t> ids;
    nlohmann::ordered_json finish_reason;
  };

  // Takes the members of a message for the whole answer.
  void note(const v1::ChatResponse& message);
  std::string usage() const;
  // The usage of a choice so far.
  std::string usage_of(std::uint32_t choice) const;
  // Members of the whole answer, or of its last event.
  std::string timings() const;
  // The member of the first event, or of the whole answer. Takes the ids.
  std::string take_prompt_ids();
  // Appends the role, with which a choice begins.
  void begin(std::uint32_t choice, std::string& out);
  // token_ids: null: the event has no such member.
  std::string event(std::uint32_t choice, nlohmann::ordered_json delta,
                    nlohmann::ordered_json logprobs, nlohmann::ordered_json finish_reason,
                    const v1::ChatDelta* token_ids = nullptr);
  // Members of a message or a delta.
  void add_reasoning(const std::string& text, nlohmann::ordered_json& json) const;
  void write_choice(std::uint32_t index, Choice& choice, JsonPieces& out) const;
  void write_reasoning(Choice& choice, JsonPieces& out) const;

  AnswerHead head_;
  const ChatForm form_;
  v1::ChatUsage usage_;
  std::int64_t prompt_tokens_ = 0;
  std::vector<std::int32_t> prompt_ids_;
  std::map<std::uint32_t, std::int64_t> written_;  // tokens of the choices, for usage in each event
  AnswerTimings timings_;
  std::set<std::uint32_t> begun_;
  std::map<std::uint32_t, Choice> choices_;
  std::size_t gathered_ = 0;  // bytes of texts
};

// Answers the exchange. Not OK: it did not. `calls` outlives its answer.
grpc::Status complete_chat(const SharedExchange& exchange, const std::string& body,
                           JsonBudget& budget, HttpCalls& calls, ChatReasoningField reasoning);

}  // namespace lintel
