// SPDX-License-Identifier: Apache-2.0
// ChatService: conversations as prompts, and tokens as answers.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "lintel/v1/chat.pb.h"
#include "server/api/lintel_v1/chat_generation.h"
#include "server/api/service_context.h"
#include "server/api/token_reactor.h"
#include "server/rpc/rpc.h"

namespace lintel {

// One Complete call, and how it writes.
class ChatStream final : public TokenReactor<v1::ChatResponse> {
 public:
  using TokenReactor::TokenReactor;

  // As run().
  grpc::Status begin(PreparedChat chat, const StreamingOptions& streaming, const Clock& clock);

 private:
  void fill(std::span<const OutboxEntry> entries, bool is_last, v1::ChatResponse& message) override;
  bool ends_early() const override;
  void add_use(TokenUse used, v1::ChatResponse& message) noexcept override;

  ChatAnswerWriter writer_;
  std::string model_;  // until the first message
};

// Thread-safe.
class ChatService final : public RpcService {
 public:
  // `generation` outlives the service.
  ChatService(const ServiceContext& context, ChatGeneration& generation);

  RpcReactor* Render(RpcCall* context, const LazyMessage<v1::RenderChatRequest>* request,
                     v1::RenderChatResponse* response);
  RpcReactor* Complete(RpcCall* rpc, const LazyMessage<v1::ChatRequest>* request);

 private:
  // Of a request that its protocol has read, or of a message of gRPC.
  grpc::Status read(RpcCall& rpc, const LazyMessage<v1::ChatRequest>& request, StreamCall& call,
                    ReadChat& chat);
  grpc::Status complete(RpcCall& rpc, const std::shared_ptr<ReadChat>& chat, ChatStream& stream);
  // Of a request that was read, whose conversation is in memory as far as it is anywhere.
  grpc::Status generate(RpcCall& rpc, ReadChat& chat, ChatStream& stream);

  const ServiceContext context_;
  ChatGeneration& generation_;
};

}  // namespace lintel
