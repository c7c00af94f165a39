// SPDX-License-Identifier: Apache-2.0
// ResponseRequest: the body of a response, as OpenAI's API and Open Responses have it, checked
// member by member, and the chat completion that it stands for.
#pragma once

#include <grpcpp/support/status.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "model/core/json_reader.h"
#include "server/core/request_memory.h"
#include "server/openai/chat_request.h"
#include "server/openai/response_store.h"
#include "server/rpc/ignored_members.h"
#include "server/rpc/rpc.h"

namespace lintel {

// Bounds of one request, documented in docs/chat.md.
inline constexpr std::size_t kMostItems =
    kMostMessages;  // of a conversation, with its instructions
inline constexpr std::size_t kMostMetadata = 16;
inline constexpr std::size_t kMostMetadataKeyBytes = 64;
inline constexpr std::size_t kMostMetadataValueBytes = 512;

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
  bool has_timings = false;      // timings_per_token: the response has them
  api::ChatParams chat;          // that it stands for, without its messages
  IgnoredMembers ignored;
  // The response before it starts: the members that repeat the request, and null or an empty list
  // for those that are not known yet. Its members are in the API's order.
  nlohmann::ordered_json response;
};

// The purpose of a request.
enum class ResponseUse {
  kCreate,
  kTurn,  // to create one by an event `response.create`
  kCount,
  kCompact,
};

// The number of copies of a request's items at a time: of the record, of the conversation or the
// prompt, and of the messages.
inline constexpr std::size_t kItemCopies = 3;

// A body as it was read, with the memory that it holds.
struct ReceivedResponse final : RequestObject {
  std::size_t text_bytes() const override { return bytes; }
  const RequestMemory::Charge& memory() const override { return charge; }
  // Charges and takes the earlier items, a list as JSON, if the connection has them.
  void continue_turn(std::optional<std::string> items, const std::string& caller);

  RequestMemory::Charge charge;  // of the members below, which are destroyed first
  ResponseRequest request;
  bool has_temperature = false, has_top_p = false;
  std::string idempotency_key;                // empty: none
  std::string digest;                         // of the body, if there is a key
  std::string text;                           // kept if it may have to be run again
  bool is_turn = false;                       // of a connection
  std::optional<std::string> earlier;         // by continue_turn()
  std::optional<ResponseRecord> interrupted;  // to run again; none: a client's request
  // Not OK: the reason why it was not read; the service refuses it when it knows the caller.
  grpc::Status status;
  std::size_t bytes = 0;  // of its text
};

// Reads a body. INVALID_ARGUMENT names the member.
grpc::Status read_response_request(const nlohmann::ordered_json& body, ResponseUse use,
                                   ResponseRequest& request);
// Reads a body, and charges response.charge with kItemCopies of the tree that it becomes.
// response.status: the error, or request_memory_refusal(); even then the response that a turn
// continues is known, if the body names one. is_cancelled: empty: never. Returns why it is not
// JSON.
JsonFailure read_response_request(std::string_view text, ResponseUse use, const std::string& caller,
                                  const std::function<bool()>& is_cancelled,
                                  ReceivedResponse& response);

// A chat's refusal with the names of a response's members: "messages" becomes "input".
grpc::Status with_response_members(const grpc::Status& status);

}  // namespace lintel
