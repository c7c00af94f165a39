// SPDX-License-Identifier: Apache-2.0
// ChatService: conversations as prompts, and tokens as answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lintel/v1/chat.pb.h"
#include "server/api/service_context.h"
#include "server/api/token_reactor.h"
#include "server/chat/chat_grammar.h"
#include "server/chat/chat_output.h"
#include "server/chat/chat_request.h"
#include "server/core/threads.h"
#include "server/engine/request.h"
#include "server/grammar/grammar_cache.h"
#include "server/rpc/rpc.h"

namespace lintel {

// A turn of a conversation, from its prompt to its answer: enough to say which of the states that
// were kept on the way the next turn may begin with.
struct ChatTurn {
  SharedModel model;
  SharedAdapter adapter;
  Owner owner;
  ChatRequest request;
  LocalTime now;
  GenerationRequest::Turn kept;
  std::int64_t boundary = 0;             // of the turn: tokens of the prompt
  std::vector<std::int32_t> tokens;      // of the prompt, then of the answer with its end
  v1::ChatDelta answer;                  // its content and reasoning, whole
  std::vector<v1::ToolCallDelta> calls;  // whole
  bool ended_by_token = false;
};

struct ReadChat;

// One Complete call, and how it writes.
class ChatStream final : public TokenReactor<v1::ChatResponse> {
 public:
  using TokenReactor::TokenReactor;

  using OnTurn = std::function<void(std::unique_ptr<ChatTurn>)>;

  // As run(). turn: given to on_turn with its answer, once that is whole; null: it is not needed.
  grpc::Status begin(ChatOutput output, std::int64_t prompt_tokens, PreparedGeneration prepared,
                     const StreamingOptions& streaming, const Clock& clock,
                     std::unique_ptr<ChatTurn> turn, OnTurn on_turn);

 private:
  void gather(const v1::ChatResponse& message);
  void fill(std::span<const OutboxEntry> entries, bool is_last, v1::ChatResponse& message) override;
  bool ends_early() const override;
  void add_use(TokenUse used, v1::ChatResponse& message) noexcept override;
  void add_usage(v1::ChatResponse& message) const;

  ChatOutput output_;
  std::vector<ChatChoice> choices_;
  std::int64_t prompt_tokens_ = 0;
  std::int64_t cached_tokens_ = 0;
  std::unique_ptr<ChatTurn> turn_;  // null: not needed, or given away
  OnTurn on_turn_;
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
  // Of a request that was read, whose conversation is in memory as far as it is anywhere.
  grpc::Status generate(RpcCall& context, ReadChat& chat, ChatStream& stream);
  // What the answer may be, in the request that is to be submitted.
  grpc::Status add_grammar(RpcCall& context, const ChatRequest& request, const ChatPrompt& prompt,
                           const Transformer& transformer, GenerationRequest& generation);

  // Of the states that were kept in a turn those go that the next one cannot begin with.
  void end_turn(const ChatTurn& turn) const;

  const ServiceContext context_;
  grammar::GrammarCache grammars_;
  ChatVocabularies vocabularies_;
  WorkThreads turns_;  // last: ends turns while the rest is there
};

}  // namespace lintel
