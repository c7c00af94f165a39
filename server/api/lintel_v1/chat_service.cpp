// SPDX-License-Identifier: Apache-2.0
#include "server/api/lintel_v1/chat_service.h"

#include <memory>
#include <utility>

namespace lintel {

grpc::Status ChatStream::begin(PreparedChat chat, const StreamingOptions& streaming,
                               const Clock& clock) {
  writer_.begin(chat);
  model_ = chat.prepared.model->name;
  const Transformer& transformer = *chat.prepared.model->transformer;
  if (transformer.knows_fingerprint()) fingerprint_ = transformer.fingerprint();
  return run(std::move(chat.prepared), streaming, clock);
}

void ChatStream::fill(std::span<const OutboxEntry> entries, bool is_last,
                      v1::ChatResponse& message) {
  if (!model_.empty()) {
    message.set_model(std::exchange(model_, {}));
    message.set_fingerprint(std::exchange(fingerprint_, {}));
    message.set_cached_tokens(cached_tokens());  // the first message has a token
  }
  writer_.fill(entries, is_last, message);
}

void ChatStream::add_use(TokenUse used, v1::ChatResponse& message) noexcept {
  catch_exceptions([&] { writer_.add_use(used, times(), message); }, [] {});
}

namespace {

// Takes a request that was read, or reads its body and charges the call with what that becomes.
template <typename Message>
grpc::Status read_asked(const Call& call, ObjectOr<Message, ChatRequest>& asked,
                        bool refuses_unknown, ReadChat& chat) {
  if (asked.object == nullptr) {
    asked.object = std::make_unique<ChatRequest>();
    asked.object->charge = call.scope.charge();
    read_chat_request(asked.message.body(), call.scope.caller().name, chat.is_cancelled,
                      *asked.object);
    asked.message = {};
  }
  const std::unique_ptr<ChatRequest> request = std::move(asked.object);
  chat.take(*request);
  if (!request->status.ok()) return request->status;
  return report_ignored(request->ignored, refuses_unknown, call.rpc);
}

}  // namespace

ChatService::ChatService(const ServiceContext& context, ChatGeneration& generation)
    : HandlerService(context), generation_(generation) {
  serve(Method::kRenderChat, &ChatService::render);
  serve_stream<v1::ChatResponse>(Method::kCompleteChat, &ChatService::complete);
}

Task<grpc::Status> ChatService::render(Call call,
                                       ObjectOr<v1::RenderChatRequest, ChatRequest> asked,
                                       v1::RenderChatResponse& response) {
  ReadChat chat;
  chat.is_cancelled = [&rpc = call.rpc] { return rpc.is_cancelled(); };
  grpc::Status status = read_asked(call, asked, context_.refuses_unknown_members, chat);
  if (!status.ok()) co_return status;
  chat.model = co_await chat_model_use(call, chat.request.base.model, status);
  if (chat.model == nullptr) co_return status;
  status = make_prompt(context_, call.scope, chat, PromptUse::kNextTurn, /*is_shown=*/true);
  if (!status.ok()) co_return status;
  response.set_text(std::move(chat.prompt.rendered.text));
  response.mutable_ids()->Add(chat.prompt.tokens.ids.begin(), chat.prompt.tokens.ids.end());
  response.set_turn_boundary(chat.prompt.turn_boundary);
  response.set_before_generation_prompt(chat.prompt.before_generation_prompt);
  response.set_model(chat.model->name);
  co_return status;
}

Task<grpc::Status> ChatService::complete(Call call, ObjectOr<v1::ChatRequest, ChatRequest> asked,
                                         ChatStream& stream) {
  grpc::Status status = stream.call().quota.check_tokens();
  if (!status.ok()) co_return status;
  ReadChat chat;
  chat.is_cancelled = [&rpc = call.rpc] { return rpc.is_cancelled(); };
  status = read_asked(call, asked, context_.refuses_unknown_members, chat);
  if (!status.ok()) co_return status;
  chat.model = co_await chat_model_use(call, chat.request.base.model, status);
  if (chat.model == nullptr) co_return status;
  status = make_prompt(context_, call.scope, chat, PromptUse::kNextTurn);
  if (!status.ok()) co_return status;
  if (generation_.has_stored(call.scope, chat)) {
    status = co_await store_thread(call);
    if (!status.ok()) co_return status;
    generation_.restore(call.scope, chat);
  }
  PreparedChat prepared;
  status =
      generation_.prepare(call.rpc, stream.call(), chat, /*is_stored_at_once=*/false, prepared);
  if (!status.ok()) co_return status;
  co_return stream.begin(std::move(prepared), context_.streaming, context_.clock);
}

}  // namespace lintel
