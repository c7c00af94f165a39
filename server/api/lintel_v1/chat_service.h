// SPDX-License-Identifier: Apache-2.0
// ChatService: conversations as prompts, and tokens as answers.
#pragma once

#include <span>
#include <string>

#include "lintel/v1/chat.pb.h"
#include "server/api/handlers.h"
#include "server/api/lintel_v1/chat_generation.h"
#include "server/api/response_stream.h"
#include "server/api/service_context.h"
#include "server/core/task.h"
#include "server/openai/chat_request.h"
#include "server/rpc/rpc.h"

namespace lintel {

// One Complete call, and how it writes.
class ChatStream final : public TokenReactor<v1::ChatResponse> {
 public:
  using TokenReactor::TokenReactor;

  // Starts the call; the status is run()'s.
  grpc::Status begin(PreparedChat chat, const StreamingOptions& streaming, const Clock& clock);

 private:
  void fill(std::span<const OutboxEntry> entries, bool is_last, v1::ChatResponse& message) override;
  bool ends_early() const override { return writer_.ends_early(); }
  void add_use(TokenUse used, v1::ChatResponse& message) noexcept override;

  ChatAnswerWriter writer_;
  std::string model_, fingerprint_;  // until the first message
};

// Thread-safe.
class ChatService final : public HandlerService {
 public:
  // `generation` outlives the service.
  ChatService(const ServiceContext& context, ChatGeneration& generation);

 private:
  Task<grpc::Status> render(Call call, ObjectOr<v1::RenderChatRequest, ChatRequest> asked,
                            v1::RenderChatResponse& response);
  Task<grpc::Status> complete(Call call, ObjectOr<v1::ChatRequest, ChatRequest> asked,
                              ChatStream& stream);

  ChatGeneration& generation_;
};

}  // namespace lintel
