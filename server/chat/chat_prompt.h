// SPDX-License-Identifier: Apache-2.0
// ChatPrompt: the request of a chat as its tokens.
#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "model/tokenizer/tokenizer.h"
#include "server/api/params/chat_params.h"
#include "server/chat/template/chat_model.h"
#include "server/chat/template/template.h"
#include "server/chat/template/traits.h"

namespace lintel {

// Refusals that programs distinguish: INVALID_ARGUMENT with google.rpc.ErrorInfo of this reason,
// which is the `code` of OpenAI's errors in capitals.
grpc::Status chat_refusal(const char* reason, const std::string& param, const std::string& message);

// The state of the reasoning at the prompt's end.
enum class ThinkingStart {
  kClosed,      // the output may begin with <think>
  kOpened,      // the prompt ends with <think>
  kOpenedHalf,  // the prompt ends with "<think"
};

// The purpose that a prompt is made for.
enum class PromptUse {
  kCount,    // its ids are counted: boundaries and thinking are not found
  kAnswer,   // no state is kept for a next turn
  kNextTurn  // one is
};

struct ChatPrompt {
  RenderedText rendered;
  api::Values tokens;  // ids
  // Tokens that the prompt has in common with that of the next turn, for any answer and question;
  // at most tokens.size() - 1. For kAnswer the same as before_generation_prompt.
  std::int64_t turn_boundary = 0;
  // Tokens that it has in common with the conversation without a generation prompt.
  std::int64_t before_generation_prompt = 0;
  ThinkingStart thinking = ThinkingStart::kClosed;
  TemplateTraits traits;
};

// Renders the conversation and encodes it: control tokens are cut out where all their bytes are the
// template's own. Bounded by TemplateLimits; on the caller's thread. INVALID_ARGUMENT with a reason
// (chat_refusal): NO_CHAT_TEMPLATE, TOOLS_NOT_SUPPORTED, TEMPLATE_REFUSED, TEMPLATE_FAILED.
// CANCELLED where `budget` (null: none) ends a rendering. The request's messages become those that
// the template is shown.
//
// Renders the conversation once for the prompt; once without the request for an answer, to find the
// text that makes it (kAnswer; not if nothing asks); and once with a turn more, for
// ChatPrompt::turn_boundary (kNextTurn). If reasoning_effort has no value of the template's own,
// each value that is tried is a rendering, and so is each role that only some templates show.
// `late`: of system messages after the first turns.
grpc::Status make_chat_prompt(const ChatModel& model, const Tokenizer& tokenizer,
                              api::ChatParams& request, const LocalTime& now, ChatPrompt& prompt,
                              JsonBudget* budget = nullptr, PromptUse use = PromptUse::kNextTurn,
                              LateSystem late = LateSystem::kUser);

// True if the conversation's next turn begins with these tokens, the prompt's and those of the
// answer with its end, when the client sends `answer` (a message of the assistant) back. Renders
// the conversation once. False also if the template refuses. Throws RenderCancelled. The request's
// messages are as make_chat_prompt() leaves them, here and below.
bool next_turn_begins_with(const ChatModel& model, const Tokenizer& tokenizer,
                           api::ChatParams& request, const LocalTime& now,
                           const nlohmann::ordered_json& answer,
                           std::span<const std::int32_t> tokens, JsonBudget* budget = nullptr);
// The tokens that the next turn begins with, for any question or results of its calls; none where
// the template refuses. Renders the conversation twice. Throws RenderCancelled.
std::vector<std::int32_t> next_turn_beginning(const ChatModel& model, const Tokenizer& tokenizer,
                                              api::ChatParams& request, const LocalTime& now,
                                              const nlohmann::ordered_json& answer,
                                              JsonBudget* budget = nullptr);
// True if the client sends reasoning back: an assistant's message of the request has some, or there
// is none yet.
bool sends_reasoning_back(const api::ChatParams& request);

}  // namespace lintel
