// SPDX-License-Identifier: Apache-2.0
// The body of Anthropic's POST /v1/messages (https://docs.anthropic.com/en/api/messages) as
// api::ChatParams, checked member by member.
#pragma once

#include <grpcpp/support/status.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "model/core/json_reader.h"
#include "server/openai/chat_request.h"
#include "server/openai/sealer.h"

namespace lintel {

// The purpose of a request: an answer, or the number of its tokens.
enum class MessageUse { kCreate, kCount };

// The form of an answer, as its request asks for it.
struct MessageForm {
  bool shows_thinking = true;  // false: a thinking block has its signature alone
};

// INVALID_ARGUMENT names the member as the request has it. Signatures of thinking are opened by
// `sealer`; thinking that it has not sealed is left out. Members, tools and blocks without effect
// are named in request.ignored: "speed", "tools=web_search_20250305".
grpc::Status read_message_request(nlohmann::ordered_json body, MessageUse use, const Sealer& sealer,
                                  ChatRequest& request, MessageForm& form);
// The same of a text, as read_chat_request().
JsonFailure read_message_request(std::string_view text, MessageUse use, const Sealer& sealer,
                                 const std::string& caller,
                                 const std::function<bool()>& is_cancelled, ChatRequest& request,
                                 MessageForm& form);

// The signature of a thinking block.
std::string seal_thinking(const Sealer& sealer, const std::string& text);

// The member of a request that ChatParams calls `field`, or of which that is a part.
std::string message_member(const std::string& field);

}  // namespace lintel
