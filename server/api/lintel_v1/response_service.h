// SPDX-License-Identifier: Apache-2.0
// ResponseService: conversations that the server keeps.
#pragma once

#include <span>

#include "lintel/v1/response.pb.h"
#include "server/api/lintel_v1/chat_generation.h"
#include "server/api/service_context.h"
#include "server/responses/response_request.h"
#include "server/rpc/rpc.h"

namespace lintel {

class CreateResponseStream;

// Thread-safe.
class ResponseService final : public RpcService {
 public:
  // `generation` outlives the service.
  ResponseService(const ServiceContext& context, ChatGeneration& generation);

  RpcReactor* Create(RpcCall* context, const LazyMessage<v1::CreateResponseRequest>* request);
  RpcReactor* CountInputTokens(RpcCall* context,
                               const LazyMessage<v1::CountInputTokensRequest>* request,
                               v1::CountInputTokensResponse* response);

 private:
  grpc::Status create(RpcCall& rpc, const v1::CreateResponseRequest& wire,
                      CreateResponseStream& stream);
  // The conversation that a request continues, as a chat.
  grpc::Status read_conversation(CallScope& scope, const ResponseRequest& request,
                                 const nlohmann::ordered_json& items, ReadChat& chat);

  const ServiceContext context_;
  ChatGeneration& generation_;
};

}  // namespace lintel
