// SPDX-License-Identifier: Apache-2.0
// ResponseRequest: the body of a response, as OpenAI's API and Open Responses have it, checked
// member by member, and the chat completion that it stands for.
#pragma once

#include <grpcpp/support/status.h>

#include <nlohmann/json.hpp>
#include <string>

#include "server/chat/chat_request.h"

namespace lintel {

// Of one request. docs/chat.md names them.
inline constexpr std::size_t kMostItems =
    kMostMessages;  // of a conversation, with its instructions
inline constexpr std::size_t kMostMetadata = 16;
inline constexpr std::size_t kMostMetadataKeyBytes = 64;
inline constexpr std::size_t kMostMetadataValueBytes = 512;
inline constexpr std::uint32_t kLeastOutputTokens = 16;

struct ResponseRequest {
  std::string model;
  std::string previous_response_id;     // empty: none
  nlohmann::ordered_json input;         // a list of items, with the members that each has
  nlohmann::ordered_json instructions;  // a text; null: none
  bool store = true;
  bool streams = false;
  bool is_background = false;    // it continues without its client
  bool seals_reasoning = false;  // include: reasoning.encrypted_content
  bool has_logprobs = false;     // include: message.output_text.logprobs
  // The chat completion without its messages, of the API's names.
  nlohmann::ordered_json chat;
  // The response before it starts: what it repeats of its request, with null or an empty list
  // for what is not known yet. Its members are in the API's order.
  nlohmann::ordered_json response;
};

// What a request is read for.
enum class ResponseUse {
  kCreate,
  kTurn,  // to create it by an event `response.create` of a connection
  kCount,
  kCompact,
};

// INVALID_ARGUMENT names the member.
grpc::Status read_response_request(const nlohmann::ordered_json& body, ResponseUse use,
                                   ResponseRequest& request);

// A chat's refusal with the members' names of a response: "messages" is "input".
grpc::Status with_response_members(const grpc::Status& status);

}  // namespace lintel
