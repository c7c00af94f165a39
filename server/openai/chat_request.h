// SPDX-License-Identifier: Apache-2.0
// api::ChatParams: the body of a chat completion, as OpenAI's API has it
// (https://platform.openai.com/docs/api-reference/chat/create), checked member by member.
#pragma once

#include <grpcpp/support/status.h>

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "model/core/json_reader.h"
#include "server/api/params/chat_params.h"
#include "server/core/request_memory.h"
#include "server/rpc/ignored_members.h"
#include "server/rpc/rpc.h"

namespace lintel {

// Limits of one request in each API of chats. docs/chat.md names them.
inline constexpr std::size_t kMostMessages = 10'000;
inline constexpr std::size_t kMostTools = 512;
inline constexpr std::size_t kMostToolNameBytes = 128;
inline constexpr std::size_t kMostToolBytes = std::size_t{1} << 20;  // of all tools
inline constexpr std::size_t kMostKwargsBytes = std::size_t{64} << 10;

// A body as it was read, with the memory that it holds.
struct ChatRequest final : RequestObject {
  std::size_t text_bytes() const override { return bytes; }
  const RequestMemory::Charge& memory() const override { return charge; }

  RequestMemory::Charge charge;  // of the members below, which are destroyed first
  api::ChatParams params;
  const char* max_tokens_member = "max_completion_tokens";  // or max_tokens, where that was sent
  // Members for HTTP only.
  bool streams = false;
  bool include_usage = false;     // at the end of a stream
  bool continuous_usage = false;  // and in each event
  bool timings = false;           // the answer has them
  IgnoredMembers ignored;
  // Not OK: the reason why it was not read; the service refuses it when it knows the caller.
  grpc::Status status;
  std::size_t bytes = 0;  // of its text
};

// The error of a tool's name; empty: a tool may have it.
std::string tool_name_error(const nlohmann::ordered_json& name);

// Parses a body into its object. Takes time linear in the text, memory within the bounds.
// `failure`: why it is not JSON.
grpc::Status read_json_body(std::string_view text, const JsonBounds& bounds,
                            nlohmann::ordered_json& body, JsonFailure& failure);
// Reads a body. INVALID_ARGUMENT names the member. Members without effect here are added to
// request.ignored.
grpc::Status read_chat_request(nlohmann::ordered_json body, ChatRequest& request);
// The same for a body without messages, which take_messages() adds.
grpc::Status read_chat_members(nlohmann::ordered_json body, ChatRequest& request);
grpc::Status take_messages(nlohmann::ordered_json messages, api::ChatParams& params);
// Reads a body, and charges request.charge with the tree that it becomes. request.status: the
// error, or request_memory_refusal(). is_cancelled: empty: never. Returns why it is not JSON.
JsonFailure read_chat_request(std::string_view text, const std::string& caller,
                              const std::function<bool()>& is_cancelled, ChatRequest& request);

}  // namespace lintel
