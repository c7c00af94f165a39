// SPDX-License-Identifier: Apache-2.0
// ResponseService: conversations that the server keeps.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "lintel/v1/response.pb.h"
#include "server/api/lintel_v1/chat_generation.h"
#include "server/api/service_context.h"
#include "server/openai/response_request.h"
#include "server/openai/response_store.h"
#include "server/rpc/rpc.h"

namespace lintel {

class ResponseCall;

// Thread-safe.
class ResponseService final : public RpcService {
 public:
  // All outlive the service.
  ResponseService(const ServiceContext& context, ChatGeneration& generation, ResponseStore& store);
  ~ResponseService();

  RpcReactor* Create(RpcCall* rpc, const LazyMessage<v1::CreateResponseRequest>* request);
  RpcReactor* Get(RpcCall* rpc, const LazyMessage<v1::GetResponseRequest>* request,
                  v1::ResponseJson* response);
  RpcReactor* Replay(RpcCall* rpc, const LazyMessage<v1::ReplayResponseRequest>* request);
  RpcReactor* Delete(RpcCall* rpc, const LazyMessage<v1::DeleteResponseRequest>* request,
                     v1::DeleteResponseResponse* response);
  RpcReactor* Cancel(RpcCall* rpc, const LazyMessage<v1::CancelResponseRequest>* request,
                     v1::ResponseJson* response);
  RpcReactor* ListInputItems(RpcCall* rpc, const LazyMessage<v1::ListInputItemsRequest>* request,
                             v1::ResponseJson* response);
  RpcReactor* CountInputTokens(RpcCall* rpc,
                               const LazyMessage<v1::CountInputTokensRequest>* request,
                               v1::CountInputTokensResponse* response);

  RpcReactor* Compact(RpcCall* rpc, const LazyMessage<v1::CompactResponseRequest>* request,
                      v1::ResponseJson* response);

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
    // Of a connection's turn:
    std::optional<std::string> earlier;  // the items before it, as JSON; none: the store has them
    bool is_kept = false;                // by the connection, which gets `kept`
    nlohmann::ordered_json kept;         // its items without `earlier`
  };

  // A request for a response, until it runs.
  struct Creation {
    std::unique_ptr<ReceivedResponse> received;
    std::optional<ResponseRecord> interrupted;  // what is run again; none: a client's request
    bool has_begun = false;
    Conversation read;
    ResponseRecord record;
  };

  RpcReactor* open(RpcCall& rpc, const LazyMessage<v1::CreateResponseRequest>& request,
                   const std::optional<ResponseRecord>& interrupted);
  // Of a request that its protocol has read, or of a message of gRPC.
  grpc::Status receive(RpcCall& rpc, const LazyMessage<v1::CreateResponseRequest>& request,
                       StreamCall& call, Creation& asked);
  grpc::Status create(RpcCall& rpc, Creation& asked, ResponseCall& stream);
  // The conversation, and the record of what will be stored.
  grpc::Status begin_creation(const std::string& owner, Creation& asked);
  grpc::Status run_creation(RpcCall& rpc, Creation& asked, ResponseCall& stream);
  // One in the background whose process is gone, without a client.
  void run_again(const ResponseRecord& record);
  // Of a request with an Idempotency-Key: fills in what is known of a record under its id.
  // is_answered: the stream repeats its answer.
  grpc::Status find_repeated(const std::string& owner, const ReceivedResponse& received,
                             const ResponseRequest& request, ResponseRecord& record,
                             ResponseCall& stream, bool& is_answered);
  // What a body says, charged to read.chat.memory. Not OK also as request_memory_refusal().
  grpc::Status read_received(const CallScope& scope, std::string_view text, ResponseUse use,
                             Conversation& read);
  // Charges `stream` with what the response may hold until its end. record: what is stored of it,
  // or nothing. repeated_bytes: as RunningResponse's.
  grpc::Status charge_running(const CallScope& scope, const ResponseRecord& record,
                              const PreparedChat& prepared, bool is_background,
                              ResponseCall& stream, std::size_t& repeated_bytes);
  // The items before those of the request.
  grpc::Status read_earlier(const std::string& owner, JsonBudget& budget, Conversation& read);
  // Checks that what it continues may be continued with its input.
  grpc::Status check_chain(const Conversation& read) const;
  // Its messages. suffix: of the ids of input items that have none.
  grpc::Status read_conversation(const std::string& owner, const std::string& suffix,
                                 Conversation& read);
  grpc::Status render(CallScope& scope, PromptUse use, Conversation& read);
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
  grpc::Status show(RpcCall& rpc, CallScope& scope, const std::string& id,
                    v1::ResponseJson& response);
  // Ends a response that is run again with the refusal of its request.
  void fail_interrupted(ResponseRecord record, const grpc::Status& refused);

  const ServiceContext context_;
  ChatGeneration& generation_;
  ResponseStore& store_;
};

}  // namespace lintel
