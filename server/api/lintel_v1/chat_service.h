// SPDX-License-Identifier: Apache-2.0
// ChatService: conversations as prompts, and tokens as answers.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "lintel/v1/chat.pb.h"
#include "server/api/service_context.h"
#include "server/api/token_reactor.h"
#include "server/chat/chat_grammar.h"
#include "server/chat/chat_output.h"
#include "server/engine/request.h"
#include "server/grammar/grammar_cache.h"
#include "server/rpc/rpc.h"

namespace lintel {

// One Complete call, and how it writes.
class ChatStream final : public TokenReactor<v1::ChatResponse> {
 public:
  using TokenReactor::TokenReactor;

  // As run().
  grpc::Status begin(ChatOutput output, std::int64_t prompt_tokens, PreparedGeneration prepared,
                     const StreamingOptions& streaming, const Clock& clock);

 private:
  void fill(std::span<const OutboxEntry> entries, bool is_last, v1::ChatResponse& message) override;
  bool ends_early() const override;
  void add_use(TokenUse used, v1::ChatResponse& message) noexcept override;
  void add_usage(v1::ChatResponse& message) const;

  ChatOutput output_;
  std::vector<ChatChoice> choices_;
  std::int64_t prompt_tokens_ = 0;
  std::int64_t cached_tokens_ = 0;
};

// Thread-safe.
class ChatService final : public RpcService {
 public:
  explicit ChatService(const ServiceContext& context);

  RpcReactor* Render(RpcCall* context, const LazyMessage<v1::RenderChatRequest>* request,
                     v1::RenderChatResponse* response);
  RpcReactor* Complete(RpcCall* context, const LazyMessage<v1::ChatRequest>* request);

 private:
  grpc::Status render(const v1::RenderChatRequest& wire, v1::RenderChatResponse& response) const;
  grpc::Status complete(RpcCall& context, const v1::ChatRequest& wire, ChatStream& stream);
  // What the answer may be, in the request that is to be submitted.
  grpc::Status add_grammar(RpcCall& context, const ChatRequest& request, const ChatPrompt& prompt,
                           const Transformer& transformer, GenerationRequest& generation);

  const ServiceContext context_;
  grammar::GrammarCache grammars_;
  ChatVocabularies vocabularies_;
};

}  // namespace lintel
