// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/grpc_calls.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/impl/codegen/rpc_service_method.h>
#include <grpcpp/impl/codegen/serialization_traits.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/support/proto_buffer_writer.h>

#include <chrono>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include "server/core/clock.h"

namespace lintel {
namespace {

// A response in the form that gRPC is given. Owns the message of a unary call.
struct ResponseMessage {
  std::unique_ptr<google::protobuf::Message> owned;
  const google::protobuf::Message* message = nullptr;
};

}  // namespace
}  // namespace lintel

namespace grpc {

template <>
class SerializationTraits<lintel::RequestMessage, void> {
 public:
  static Status Deserialize(ByteBuffer* bytes, lintel::RequestMessage* request) {
    request->swap(*bytes);
    bytes->Clear();
    return Status::OK;
  }
};

template <>
class SerializationTraits<lintel::ResponseMessage, void> {
 public:
  static Status Serialize(const lintel::ResponseMessage& response, ByteBuffer* bytes,
                          bool* own_buffer) {
    return GenericSerialize<ProtoBufferWriter, google::protobuf::Message>(*response.message, bytes,
                                                                          own_buffer);
  }
};

}  // namespace grpc

namespace lintel {
namespace {

class GrpcCall final : public RpcCall {
 public:
  explicit GrpcCall(grpc::CallbackServerContext& context) : context_(context) {}

  std::string_view header(const char* name) const override {
    const auto [first, last] = context_.client_metadata().equal_range(name);
    if (first == last || std::next(first) != last) return {};
    return {first->second.data(), first->second.size()};
  }
  std::string peer() const override { return context_.peer(); }
  std::string certificate() const override {
    const auto names = context_.auth_context()->GetPeerIdentity();
    return names.empty() ? std::string() : std::string(names[0].data(), names[0].size());
  }
  std::optional<std::chrono::system_clock::time_point> deadline() const override {
    // Seconds come first: gRPC's own conversion overflows for a deadline after 2262, which would
    // then be past.
    const gpr_timespec deadline =
        gpr_convert_clock_type(context_.raw_deadline(), GPR_CLOCK_REALTIME);
    constexpr std::int64_t kYear = 365 * 24 * 3600;
    if (deadline.tv_sec > unix_seconds() + kYear) return std::nullopt;
    return context_.deadline();
  }
  bool is_cancelled() const override { return context_.IsCancelled(); }
  void add_header(const std::string& name, const std::string& value) override {
    context_.AddInitialMetadata(name, value);
  }

 private:
  grpc::CallbackServerContext& context_;
};

// A reactor as gRPC knows it, which runs one of ours. Lives until gRPC has done with it.
template <typename Base>
class GrpcReactor final : public Base, private RpcTransport {
 public:
  // `response`: of a call with one response; else null.
  GrpcReactor(const RpcMethod& method, grpc::CallbackServerContext& context,
              const RequestMessage& request, ResponseMessage* response)
      : call_(context) {
    google::protobuf::Message* message = nullptr;
    if (response != nullptr) {
      response->owned = method.new_response();
      response->message = message = response->owned.get();
    }
    reactor_ = method.run(call_, request, message);
    reactor_->bind(*this);  // gRPC runs nothing of it before it has it, its end neither
  }

 private:
  static constexpr bool kReads = requires(Base & base, bool ok) { base.OnReadDone(ok); };
  static constexpr bool kWrites = requires(Base & base, bool ok) { base.OnWriteDone(ok); };

  // gRPC's reactors declare OnReadDone virtual if they read, and OnWriteDone if they write.
  void OnReadDone(bool ok) { reactor_->OnReadDone(ok); }
  void OnWriteDone(bool ok) { reactor_->OnWriteDone(ok); }
  void OnSendInitialMetadataDone(bool ok) override { reactor_->OnWriteDone(ok); }
  void OnCancel() override { reactor_->cancel(); }
  void OnDone() override {
    reactor_->OnDone();
    delete this;
  }

  void read(RequestMessage& request) override {
    if constexpr (kReads) this->StartRead(&request);
  }
  void begin() override { this->StartSendInitialMetadata(); }
  void write(const google::protobuf::Message& message) override {
    if constexpr (kWrites) {
      written_.message = &message;
      this->StartWrite(&written_);
    }
  }
  void finish(const google::protobuf::Message* last, grpc::Status status) override {
    if constexpr (kWrites) {
      if (last != nullptr) {
        written_.message = last;
        return this->StartWriteAndFinish(&written_, grpc::WriteOptions(), std::move(status));
      }
    }
    this->Finish(std::move(status));
  }

  GrpcCall call_;
  RpcReactor* reactor_ = nullptr;
  ResponseMessage written_;  // the write under way
};

grpc::internal::RpcMethod::RpcType grpc_type(RpcMethod::Type type) {
  switch (type) {
    case RpcMethod::Type::kUnary:
      return grpc::internal::RpcMethod::NORMAL_RPC;
    case RpcMethod::Type::kServerStream:
      return grpc::internal::RpcMethod::SERVER_STREAMING;
    case RpcMethod::Type::kClientStream:
      return grpc::internal::RpcMethod::CLIENT_STREAMING;
    case RpcMethod::Type::kBidiStream:
      break;
  }
  return grpc::internal::RpcMethod::BIDI_STREAMING;
}

grpc::internal::MethodHandler* handler_of(const RpcMethod& method) {
  using grpc::CallbackServerContext;
  switch (method.type) {
    case RpcMethod::Type::kUnary:
      return new grpc::internal::CallbackUnaryHandler<RequestMessage, ResponseMessage>(
          [&method](CallbackServerContext* context, const RequestMessage* request,
                    ResponseMessage* response) {
            return new GrpcReactor<grpc::ServerUnaryReactor>(method, *context, *request, response);
          });
    case RpcMethod::Type::kServerStream:
      return new grpc::internal::CallbackServerStreamingHandler<RequestMessage, ResponseMessage>(
          [&method](CallbackServerContext* context, const RequestMessage* request) {
            return new GrpcReactor<grpc::ServerWriteReactor<ResponseMessage>>(method, *context,
                                                                              *request, nullptr);
          });
    case RpcMethod::Type::kClientStream:
      return new grpc::internal::CallbackClientStreamingHandler<RequestMessage, ResponseMessage>(
          [&method](CallbackServerContext* context, ResponseMessage* response) {
            return new GrpcReactor<grpc::ServerReadReactor<RequestMessage>>(method, *context, {},
                                                                            response);
          });
    case RpcMethod::Type::kBidiStream:
      break;
  }
  return new grpc::internal::CallbackBidiHandler<RequestMessage, ResponseMessage>(
      [&method](CallbackServerContext* context) {
        return new GrpcReactor<grpc::ServerBidiReactor<RequestMessage, ResponseMessage>>(
            method, *context, {}, nullptr);
      });
}

}  // namespace

GrpcService::GrpcService(const RpcService& service) {
  for (const RpcMethod& method : service.methods()) {
    const std::string& path = paths_.emplace_back("/" + method.name);
    AddMethod(new grpc::internal::RpcServiceMethod(path.c_str(), grpc_type(method.type),
                                                   /*handler=*/nullptr));
    MarkMethodCallback(static_cast<int>(paths_.size()) - 1, handler_of(method));
  }
}

}  // namespace lintel
