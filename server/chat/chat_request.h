// SPDX-License-Identifier: Apache-2.0
// ChatRequest: the body of a chat completion, as OpenAI's API has it
// (https://platform.openai.com/docs/api-reference/chat/create), checked member by member.
#pragma once

#include <grpcpp/support/status.h>

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/core/json_reader.h"
#include "server/api/params/generate_params.h"

namespace lintel {

// Of one request. docs/chat.md names them.
inline constexpr std::size_t kMostMessages = 10'000;
inline constexpr std::size_t kMostTools = 128;
inline constexpr std::size_t kMostCalls = 128;  // of an answer, which ends where more would come
inline constexpr std::size_t kMostToolBytes = std::size_t{1} << 20;  // of all tools
inline constexpr std::size_t kMostKwargsBytes = std::size_t{64} << 10;

struct ChatRequest {
  enum class ToolChoice { kAuto, kNone, kRequired };
  enum class Format { kText, kJsonObject, kJsonSchema, kGrammar };

  // Of these its model, sampling, adapter and the stop texts, which are of the content.
  api::GenerateParams base;
  nlohmann::ordered_json messages;  // a list of objects with a role
  nlohmann::ordered_json tools;     // null: none
  nlohmann::ordered_json documents;
  nlohmann::ordered_json kwargs;  // chat_template_kwargs; null: none
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::vector<std::string> offered_tools;  // those that may be called; empty: all
  bool parallel_tool_calls = true;
  bool tool_grammar = true;  // calls that the model begins by itself are held to their form
  bool cache = true;         // states after beginnings of the prompt are used, and kept
  Format format = Format::kText;
  std::string format_text;  // the schema, or GBNF
  bool strict_schema = false;
  std::string reasoning_effort;                  // empty: not given
  std::optional<std::uint32_t> thinking_budget;  // tokens of reasoning
  std::string verbosity;                         // empty: not given
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  std::optional<std::uint32_t> max_tokens;
  bool logprobs = false;
  std::uint32_t top_logprobs = 0;
  std::uint32_t num_choices = 1;
  bool streams = false;        // of HTTP alone
  bool include_usage = false;  // at the end of a stream
};

// The object that a body is. Takes time linear in the text, memory within the bounds.
grpc::Status read_json_body(std::string_view text, const JsonBounds& bounds,
                            nlohmann::ordered_json& body);
// INVALID_ARGUMENT names the member.
grpc::Status read_chat_request(nlohmann::ordered_json body, ChatRequest& request);
grpc::Status read_chat_request(std::string_view text, const JsonBounds& bounds,
                               ChatRequest& request);

// Refusals that programs distinguish: INVALID_ARGUMENT with google.rpc.ErrorInfo of this reason,
// which is the `code` of OpenAI's errors in capitals.
grpc::Status chat_refusal(const char* reason, const std::string& param, const std::string& message);

}  // namespace lintel
