// SPDX-License-Identifier: Apache-2.0
#include "server/api/lintel_v1/chat_service.h"

#include <memory>
#include <utility>

#include "server/api/lintel_v1/session_calls.h"
#include "server/rpc/answer.h"

namespace lintel {

grpc::Status ChatStream::begin(PreparedChat chat, const StreamingOptions& streaming,
                               const Clock& clock) {
  writer_.begin(chat);
  model_ = chat.prepared.model->name;
  return run(std::move(chat.prepared), streaming, clock);
}

void ChatStream::fill(std::span<const OutboxEntry> entries, bool is_last,
                      v1::ChatResponse& message) {
  if (!model_.empty()) message.set_model(std::exchange(model_, {}));
  writer_.fill(entries, is_last, message);
}

bool ChatStream::ends_early() const { return writer_.ends_early(); }

void ChatStream::add_use(TokenUse used, v1::ChatResponse& message) noexcept {
  writer_.add_use(used, message);
}

ChatService::ChatService(const ServiceContext& context, ChatGeneration& generation)
    : context_(context), generation_(generation) {
  serve(info_of(Method::kRenderChat).name, this, &ChatService::Render);
  serve_stream<v1::ChatResponse>(info_of(Method::kCompleteChat).name, this, &ChatService::Complete);
}

RpcReactor* ChatService::Render(RpcCall* call, const LazyMessage<v1::RenderChatRequest>* request,
                                v1::RenderChatResponse* response) {
  return answer_with_model(
      context_, *call, Method::kRenderChat, *request,
      [this, call, response](CallScope& scope, const auto& wire) {
        ReadChat chat;
        chat.is_cancelled = [call] { return call->is_cancelled(); };
        ChatRequest read;
        read.charge = scope.charge();
        read_chat_request(wire.body(), scope.caller().name, chat.is_cancelled, read);
        grpc::Status status = read.status;
        chat.take(read);
        if (status.ok())
          status = read_chat(context_, scope, chat, PromptUse::kNextTurn, /*is_shown=*/true);
        if (!status.ok()) return status;
        response->set_text(std::move(chat.prompt.rendered.text));
        response->mutable_ids()->Add(chat.prompt.ids.begin(), chat.prompt.ids.end());
        response->set_turn_boundary(chat.prompt.turn_boundary);
        response->set_before_generation_prompt(chat.prompt.before_generation_prompt);
        response->set_model(chat.model->name);
        return status;
      });
}

grpc::Status ChatService::read(RpcCall& rpc, const LazyMessage<v1::ChatRequest>& request,
                               StreamCall& call, ReadChat& chat) {
  chat.is_cancelled = [&rpc] { return rpc.is_cancelled(); };
  std::unique_ptr<ChatRequest> read = request.take_object<ChatRequest>();
  if (grpc::Status begins = call.quota.check_tokens(); !begins.ok()) return begins;
  if (read == nullptr) {
    const std::string& caller = call.scope.caller().name;
    RequestMemory::Charge text = call.scope.charge();
    v1::ChatRequest wire;
    grpc::Status status = request.read(bounds_of(context_.gate, Method::kCompleteChat), wire);
    if (status.ok()) status = charge_message(wire, caller, text);
    if (!status.ok()) return status;
    read = std::make_unique<ChatRequest>();
    read->charge = call.scope.charge();
    read_chat_request(wire.body(), caller, chat.is_cancelled, *read);
  }
  grpc::Status status = read->status;
  chat.take(*read);
  return status;
}

grpc::Status ChatService::complete(RpcCall& rpc, const std::shared_ptr<ReadChat>& chat,
                                   ChatStream& stream) {
  grpc::Status status = read_chat(context_, stream.call().scope, *chat, PromptUse::kNextTurn);
  if (!status.ok()) return status;
  if (!generation_.has_stored(stream.call().scope, *chat)) return generate(rpc, *chat, stream);
  return run_by_store(context_, stream.call().scope.log_fields(), [this, &rpc, &stream, chat] {
    generation_.restore(stream.call().scope, *chat);
    grpc::Status started = catch_exceptions([&] { return generate(rpc, *chat, stream); });
    if (!started.ok()) stream.refuse(std::move(started));
  });
}

grpc::Status ChatService::generate(RpcCall& rpc, ReadChat& chat, ChatStream& stream) {
  PreparedChat prepared;
  grpc::Status status =
      generation_.prepare(rpc, stream.call(), chat, /*is_stored_at_once=*/false, prepared);
  if (!status.ok()) return status;
  return stream.begin(std::move(prepared), context_.streaming, context_.clock);
}

RpcReactor* ChatService::Complete(RpcCall* rpc, const LazyMessage<v1::ChatRequest>* request) {
  using Chat = std::shared_ptr<ReadChat>;
  return open_stream_as<ChatStream, Chat>(
      context_, *rpc, Method::kCompleteChat,
      [&](ChatStream& stream, Chat& chat) {
        chat = std::make_shared<ReadChat>();
        return read(*rpc, *request, stream.call(), *chat);
      },
      [this, rpc](ChatStream& stream, const Chat& chat) { return complete(*rpc, chat, stream); },
      [](const Chat&) { return false; });
}

}  // namespace lintel
