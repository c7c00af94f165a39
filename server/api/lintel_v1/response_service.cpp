// SPDX-License-Identifier: Apache-2.0
#include "server/api/lintel_v1/response_service.h"

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "server/api/lintel_v1/session_calls.h"
#include "server/api/token_reactor.h"
#include "server/core/random_bytes.h"
#include "server/responses/response_items.h"
#include "server/responses/response_output.h"
#include "server/rpc/answer.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

using Json = nlohmann::ordered_json;

// 128 random bits as 32 digits.
std::string random_digits() {
  constexpr char kDigits[] = "0123456789abcdef";
  std::array<std::byte, 16> bytes{};
  fill_with_random(bytes);
  std::string digits;
  for (const std::byte byte : bytes) {
    digits += kDigits[std::to_integer<int>(byte) >> 4];
    digits += kDigits[std::to_integer<int>(byte) & 15];
  }
  return digits;
}

}  // namespace

// One Create call, and how it writes.
class CreateResponseStream final : public TokenReactor<v1::ResponseEvents> {
 public:
  using TokenReactor::TokenReactor;

  // As run().
  grpc::Status begin(PreparedChat chat, ResponseOutput output, bool streams,
                     const StreamingOptions& streaming, const Clock& clock) {
    writer_.begin(chat);
    output_.emplace(std::move(output));
    streams_ = streams;
    clock_ = &clock;
    return run(std::move(chat.prepared), streaming, clock);
  }

 private:
  v1::ResponseEvents* events_of(v1::ResponseEvents& message) const {
    return streams_ ? &message : nullptr;
  }

  void fill(std::span<const OutboxEntry> entries, bool is_last,
            v1::ResponseEvents& message) override {
    chat_.Clear();
    writer_.fill(entries, is_last, chat_);
    if (!output_->has_begun()) output_->begin(events_of(message));
    output_->push(chat_, events_of(message));
  }
  bool ends_early() const override { return writer_.ends_early(); }
  void add_use(TokenUse used, v1::ResponseEvents&) noexcept override {
    catch_exceptions(
        [&] {
          writer_.add_use(used, chat_);
          v1::ChatResponse usage;
          *usage.mutable_usage() = chat_.usage();
          output_->push(usage, nullptr);
        },
        [] {});
  }
  void conclude(v1::ResponseEvents* last, grpc::Status status, TokenUse used) noexcept override {
    if (last == nullptr) return finish(nullptr, std::move(status), used);
    grpc::Status ended = catch_exceptions([&] {
      if (status.ok()) {
        const auto now = std::chrono::duration_cast<std::chrono::seconds>(
            clock_->wall_time().time_since_epoch());
        output_->finish(now.count(), events_of(*last));
      } else if (streams_ && output_->has_begun()) {
        // An error before the first event is the call's, a later one the response's.
        output_->fail("server_error", status.error_message(), last);
      } else {
        return status;
      }
      last->set_response(json_text(output_->response()));
      return grpc::Status::OK;
    });
    finish(ended.ok() ? last : nullptr, std::move(ended), used);
  }

  ChatAnswerWriter writer_;
  std::optional<ResponseOutput> output_;
  bool streams_ = false;
  const Clock* clock_ = nullptr;
  v1::ChatResponse chat_;  // what the entries of one message make
};

ResponseService::ResponseService(const ServiceContext& context, ChatGeneration& generation)
    : context_(context), generation_(generation) {
  serve_stream<v1::ResponseEvents>(info_of(Method::kCreateResponse).name, this,
                                   &ResponseService::Create);
  serve(info_of(Method::kCountInputTokens).name, this, &ResponseService::CountInputTokens);
}

grpc::Status ResponseService::read_conversation(CallScope& scope, const ResponseRequest& request,
                                                const Json& items, ReadChat& chat) {
  Json body = request.chat;
  grpc::Status status = messages_of(request.instructions, items, 0, body["messages"]);
  if (status.ok()) status = read_chat_request(body, chat.request);
  if (status.ok()) status = read_chat(context_, scope, chat);
  return with_response_members(status);
}

grpc::Status ResponseService::create(RpcCall& rpc, const v1::CreateResponseRequest& wire,
                                     CreateResponseStream& stream) {
  StreamCall& call = stream.call();
  if (grpc::Status begins = call.quota.check_tokens(); !begins.ok()) return begins;
  Json body, items;
  ResponseRequest request;
  grpc::Status status = read_json_body(wire.body(), {}, body);
  if (status.ok()) status = read_response_request(body, ResponseUse::kCreate, request);
  if (!status.ok()) return status;
  const std::string digits = random_digits();
  status = read_items(request.input, digits + "_in", items);
  ReadChat chat;
  if (status.ok()) status = read_conversation(call.scope, request, items, chat);
  PreparedChat prepared;
  if (status.ok()) {
    status = with_response_members(
        generation_.prepare(rpc, call, chat, /*is_stored_at_once=*/request.store, prepared));
  }
  if (!status.ok()) return status;
  Json response = std::move(request.response);
  response["id"] = "resp_" + digits;
  response["created_at"] = std::chrono::duration_cast<std::chrono::seconds>(
                               context_.clock.wall_time().time_since_epoch())
                               .count();
  response["model"] = chat.model->name;
  return stream.begin(std::move(prepared), ResponseOutput(std::move(response), digits + "_"),
                      request.streams, context_.streaming, context_.clock);
}

RpcReactor* ResponseService::Create(RpcCall* rpc,
                                    const LazyMessage<v1::CreateResponseRequest>* request) {
  return open_stream<CreateResponseStream>(
      context_, *rpc, Method::kCreateResponse, *request,
      [this, rpc](CreateResponseStream& stream, const v1::CreateResponseRequest& wire) {
        return create(*rpc, wire, stream);
      });
}

RpcReactor* ResponseService::CountInputTokens(
    RpcCall* rpc, const LazyMessage<v1::CountInputTokensRequest>* request,
    v1::CountInputTokensResponse* response) {
  return answer(context_.gate, *rpc, Method::kCountInputTokens, *request,
                [&](CallScope& scope, const v1::CountInputTokensRequest& wire) {
                  Json body, items;
                  ResponseRequest read;
                  grpc::Status status = read_json_body(wire.body(), {}, body);
                  if (status.ok()) status = read_response_request(body, ResponseUse::kCount, read);
                  if (status.ok()) status = read_items(read.input, "", items);
                  ReadChat chat;
                  if (status.ok()) status = read_conversation(scope, read, items, chat);
                  if (!status.ok()) return status;
                  response->set_input_tokens(static_cast<std::int64_t>(chat.prompt.ids.size()));
                  return status;
                });
}

}  // namespace lintel
