// What every unary RPC does around its translation.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/rpc_service_method.h>
#include <grpcpp/impl/codegen/serialization_traits.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/codegen/service_type.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <deque>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "server/core/threads.h"
#include "server/grpc/transport/call_scope.h"
#include "server/grpc/transport/message_bounds.h"
#include "server/grpc/transport/status.h"

namespace lintel {

// catch_exceptions(), for what ends in a status: an exception in one call ends that call only.

// Runs `method` and makes a status of what it throws. Nothing passes it, for want of memory either:
// the end of a call waits for what comes after it.
template <typename Method>
grpc::Status catch_exceptions(Method&& method) noexcept {
  return catch_exceptions([&]() -> grpc::Status { return method(); }, status_of_exception);
}

// LazyMessage: a request as gRPC hands it over, still in its bytes.

// gRPC would parse a request before the server's code sees it, and keep it until its call is over:
// for as long as a stream lasts. This one is parsed when the caller is known and may ask for it,
// within bounds, and its bytes are gone with that.
//
// Used by one thread at a time.
template <typename Message>
class LazyMessage {
 public:
  // Parses into `message`, which is empty, and drops the bytes. To be called once, though gRPC
  // hands the object over as const.
  grpc::Status read(const MessageBounds& bounds, Message& message) const {
    const grpc::Status status = parse_bounded(bytes_, bounds, message);
    bytes_.Clear();
    return status;
  }

 private:
  friend class grpc::SerializationTraits<LazyMessage, void>;
  mutable grpc::ByteBuffer bytes_;
};

}  // namespace lintel

namespace grpc {

template <typename Message>
class SerializationTraits<lintel::LazyMessage<Message>, void> {
 public:
  static Status Deserialize(ByteBuffer* bytes, lintel::LazyMessage<Message>* received) {
    received->bytes_.Clear();
    received->bytes_.Swap(bytes);
    return Status::OK;
  }
};

}  // namespace grpc

namespace lintel {

// BoundedService: base of the server's gRPC services. Requests come unparsed (LazyMessage).

// Stands where protoc's CallbackService would, whose methods take what gRPC has parsed without a
// bound. A derived class names its methods in its constructor.
class BoundedService : public grpc::Service {
 protected:
  // `name`: service and method, as on the wire; `method`: of `self`, the derived object.
  template <typename Self, typename Request, typename Response>
  void serve(const char* name, Self* self,
             grpc::ServerUnaryReactor* (Self::*method)(grpc::CallbackServerContext*,
                                                       const LazyMessage<Request>*, Response*)) {
    add(name, grpc::internal::RpcMethod::NORMAL_RPC,
        new grpc::internal::CallbackUnaryHandler<LazyMessage<Request>, Response>(
            [self, method](grpc::CallbackServerContext* call, const LazyMessage<Request>* request,
                           Response* response) {
              return (self->*method)(call, request, response);
            }));
  }

  template <typename Self, typename Request, typename Response>
  void serve(const char* name, Self* self,
             grpc::ServerWriteReactor<Response>* (Self::*method)(grpc::CallbackServerContext*,
                                                                 const LazyMessage<Request>*)) {
    add(name, grpc::internal::RpcMethod::SERVER_STREAMING,
        new grpc::internal::CallbackServerStreamingHandler<LazyMessage<Request>, Response>(
            [self, method](grpc::CallbackServerContext* call, const LazyMessage<Request>* request) {
              return (self->*method)(call, request);
            }));
  }

  template <typename Self, typename Request, typename Response>
  void serve(const char* name, Self* self,
             grpc::ServerReadReactor<LazyMessage<Request>>* (Self::*method)(
                 grpc::CallbackServerContext*, Response*)) {
    add(name, grpc::internal::RpcMethod::CLIENT_STREAMING,
        new grpc::internal::CallbackClientStreamingHandler<LazyMessage<Request>, Response>(
            [self, method](grpc::CallbackServerContext* call, Response* response) {
              return (self->*method)(call, response);
            }));
  }

  template <typename Self, typename Request, typename Response>
  void serve(const char* name, Self* self,
             grpc::ServerBidiReactor<LazyMessage<Request>, Response>* (Self::*method)(
                 grpc::CallbackServerContext*)) {
    add(name, grpc::internal::RpcMethod::BIDI_STREAMING,
        new grpc::internal::CallbackBidiHandler<LazyMessage<Request>, Response>(
            [self, method](grpc::CallbackServerContext* call) { return (self->*method)(call); }));
  }

 private:
  void add(const char* name, grpc::internal::RpcMethod::RpcType type,
           grpc::internal::MethodHandler* handler) {
    const std::string& path = paths_.emplace_back(std::string("/") + name);
    AddMethod(new grpc::internal::RpcServiceMethod(path.c_str(), type, /*handler=*/nullptr));
    MarkMethodCallback(static_cast<int>(paths_.size()) - 1, handler);
  }

  std::deque<std::string> paths_;  // gRPC keeps pointers to them
};

// A unary call: `body(caller, wire)`, or `body(scope, wire)` of a call about a model, translates
// and returns the status, if the caller may do this and the request can be read.
template <typename Request, typename Body>
grpc::ServerUnaryReactor* answer(const CallPolicy& gate, grpc::CallbackServerContext& call,
                                 Method method, const LazyMessage<Request>& request, Body body) {
  CallScope scope(gate, call, method);
  grpc::Status status = scope.admitted();
  if (status.ok()) {
    const LogScope log(scope.log_fields());
    status = catch_exceptions([&] {
      Request wire;
      grpc::Status read = request.read(bounds_of(gate, method), wire);
      if (!read.ok()) return read;
      if constexpr (std::is_invocable_v<Body, CallScope&, const Request&>) {
        return body(scope, wire);
      } else {
        return body(scope.caller(), wire);
      }
    });
  }
  scope.end(status);
  grpc::ServerUnaryReactor* const reactor = call.DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

// A unary call that is answered later, by any thread, exactly once: `begin(wire, reply)`
// translates and calls reply(status) when the response is written, or hands the reply on, to be
// called then.
class LateReply {
 public:
  LateReply(std::unique_ptr<CallScope> scope, grpc::ServerUnaryReactor* reactor)
      : scope_(std::move(scope)), reactor_(reactor) {}
  void operator()(const grpc::Status& status) const {
    scope_->end(status);
    reactor_->Finish(status);
  }
  // The model that was loaded, or is there to be unloaded. REQUIRES: not yet answered.
  void set_model(const std::string& name) const { scope_->set_model(name); }

 private:
  const std::shared_ptr<CallScope> scope_;
  grpc::ServerUnaryReactor* const reactor_;
};

template <typename Request, typename Begin>
grpc::ServerUnaryReactor* answer_later(const CallPolicy& gate, grpc::CallbackServerContext& call,
                                       Method method, const LazyMessage<Request>& request,
                                       Begin begin) {
  auto scope = std::make_unique<CallScope>(gate, call, method);
  grpc::Status status = scope->admitted();
  const LogFields log_fields = scope->log_fields();  // a copy: the call may be over before begin is
  const LogScope log(log_fields);
  grpc::ServerUnaryReactor* const reactor = call.DefaultReactor();
  const LateReply reply(std::move(scope), reactor);
  Request wire;
  if (status.ok()) {
    status = catch_exceptions([&] { return request.read(bounds_of(gate, method), wire); });
  }
  status.ok() ? begin(wire, reply) : reply(status);
  return reactor;
}

// StreamCall: a CallScope, and what else a streaming call holds.

// Of a call that reads and produces tokens, from its headers to its end. Used by one thread at a
// time.
struct StreamCall {
  StreamCall(const CallPolicy& gate, grpc::CallbackServerContext& context, Method method)
      : scope(gate, context, method), quota(gate.quotas, scope.caller().name) {}

  // The call does nothing more, and its client does not know yet.
  void finish(ValueUse used) noexcept {
    scope.note_use(used);
    quota.finish();
  }
  // The call is gone.
  void end(const grpc::Status& status) noexcept {
    quota.leave();
    scope.end(status);
  }

  CallScope scope;
  StreamQuota quota;
};

}  // namespace lintel
