// SPDX-License-Identifier: Apache-2.0
// ResponseService: conversations that the server keeps.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "lintel/v1/response.pb.h"
#include "server/api/handlers.h"
#include "server/api/lintel_v1/chat_generation.h"
#include "server/api/response_stream.h"
#include "server/api/service_context.h"
#include "server/core/task.h"
#include "server/openai/response_request.h"
#include "server/openai/response_store.h"
#include "server/rpc/rpc.h"

namespace lintel {

class ResponseCall;

// Thread-safe.
class ResponseService final : public HandlerService {
 public:
  // All outlive the service.
  ResponseService(const ServiceContext& context, ChatGeneration& generation, ResponseStore& store);
  ~ResponseService();

 private:
  // A request with the conversation that it continues.
  struct Conversation {
    // Takes a request that was read.
    void take(ReceivedResponse& received) {
      chat.memory = std::move(received.charge);
      request = std::move(received.request);
      earlier = std::move(received.earlier);
      chat.text_bytes = received.bytes;
    }

    ReadChat chat;  // its charge is for all of it
    ResponseRequest request;
    nlohmann::ordered_json input;  // its items
    nlohmann::ordered_json items;  // of the conversation, with those
    std::string parent;            // digits of the response that it continues; empty: none
    std::size_t chain_bytes = 0;   // of the items of that and of those before it, as JSON
    bool is_compacted = false;     // it is read for one item that stands for it
    // Members of a connection's turn:
    std::optional<std::string> earlier;  // the items before it, as JSON; none: the store has them
    bool is_kept = false;                // by the connection, which gets `kept`
    nlohmann::ordered_json kept;         // its items without `earlier`
  };

  using Asked = ObjectOr<v1::CreateResponseRequest, ReceivedResponse>;
  Task<grpc::Status> create(Call call, Asked asked, ResponseCall& stream);
  Task<grpc::Status> get(Call call, v1::GetResponseRequest wire, v1::ResponseJson& response);
  Task<grpc::Status> replay(Call call, v1::ReplayResponseRequest wire,
                            ResponseStream<v1::ResponseEvents>::Reactor& stream);
  Task<grpc::Status> remove(Call call, v1::DeleteResponseRequest wire,
                            v1::DeleteResponseResponse& response);
  Task<grpc::Status> cancel(Call call, v1::CancelResponseRequest wire, v1::ResponseJson& response);
  Task<grpc::Status> list_input_items(Call call, v1::ListInputItemsRequest wire,
                                      v1::ResponseJson& response);
  Task<grpc::Status> count_input_tokens(
      Call call, ObjectOr<v1::CountInputTokensRequest, ReceivedResponse> asked,
      v1::CountInputTokensResponse& response);
  Task<grpc::Status> compact(Call call,
                             ObjectOr<v1::CompactResponseRequest, ReceivedResponse> asked,
                             v1::ResponseJson& response);

  // Begins the response that `prepared` answers. record: of what is stored of it.
  grpc::Status begin(const Call& call, const ReceivedResponse& received, Conversation& read,
                     ResponseRecord record, PreparedChat prepared, ResponseCall& stream);
  // One in the background whose process is gone, without a client.
  void run_again(const ResponseRecord& record);
  // Fills in what is known of a record under the id of a request with an Idempotency-Key.
  // is_answered: the stream repeats its answer.
  grpc::Status find_repeated(const Call& call, const ReceivedResponse& received,
                             const ResponseRequest& request, ResponseRecord& record,
                             ResponseCall& stream, bool& is_answered);
  // Takes a request that was read, or reads its body and charges read.chat.memory with it. Not OK
  // also as request_memory_refusal().
  template <typename Message>
  grpc::Status read_received(const Call& call, ObjectOr<Message, ReceivedResponse> asked,
                             ResponseUse use, Conversation& read) const;
  // Charges `stream` with what the response may hold until its end. record: what is stored of it,
  // or nothing. repeated_bytes: as RunningResponse's.
  grpc::Status charge_running(const CallScope& scope, const ResponseRecord& record,
                              const PreparedChat& prepared, bool is_background, bool has_summaries,
                              ResponseCall& stream, std::size_t& repeated_bytes);
  // The items before those of the request.
  grpc::Status read_earlier(const std::string& owner, JsonBudget& budget, Conversation& read);
  // Checks that what it continues may be continued with its input.
  grpc::Status check_chain(const Conversation& read) const;
  // Its messages. suffix: of the ids of input items that have none.
  grpc::Status read_conversation(const std::string& owner, const std::string& suffix,
                                 Conversation& read);
  grpc::Status open_sealed(const std::string& owner, JsonBudget& budget,
                           nlohmann::ordered_json& items, std::ptrdiff_t& first_input);
  // Puts items in the places of references to them. Each response is looked up once. budget:
  // charged with what is read and copied.
  grpc::Status resolve_references(const std::string& owner,
                                  const std::function<bool()>& is_cancelled,
                                  nlohmann::ordered_json& items, JsonBudget& budget);
  // Charges `memory` with the record, and with its text once more.
  grpc::Status find(const std::string& id, const std::string& owner, RequestMemory::Charge& memory,
                    ResponseRecord& record);
  // Answers with the response as JSON, which the call keeps charged until it is out.
  grpc::Status show(const Call& call, const std::string& id, v1::ResponseJson& response);
  // Ends a response that is run again with the refusal of its request.
  void fail_interrupted(ResponseRecord record, const grpc::Status& refused);

  ChatGeneration& generation_;
  ResponseStore& store_;
};

}  // namespace lintel
