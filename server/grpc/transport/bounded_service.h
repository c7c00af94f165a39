// BoundedService: base of the server's gRPC services. Requests come unparsed (Received).
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/rpc_service_method.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/codegen/service_type.h>

#include <deque>
#include <string>

#include "server/grpc/transport/received.h"

namespace lintel {

// Stands where protoc's CallbackService would, whose methods take what gRPC has parsed without a
// bound. A derived class names its methods in its constructor.
class BoundedService : public grpc::Service {
 protected:
  // `name`: service and method, as on the wire; `method`: of `self`, the derived object.
  template <typename Self, typename Request, typename Response>
  void serve(const char* name, Self* self,
             grpc::ServerUnaryReactor* (Self::*method)(grpc::CallbackServerContext*,
                                                       const Received<Request>*, Response*)) {
    add(name, grpc::internal::RpcMethod::NORMAL_RPC,
        new grpc::internal::CallbackUnaryHandler<Received<Request>, Response>(
            [self, method](grpc::CallbackServerContext* call, const Received<Request>* request,
                           Response* response) {
              return (self->*method)(call, request, response);
            }));
  }

  template <typename Self, typename Request, typename Response>
  void serve(const char* name, Self* self,
             grpc::ServerWriteReactor<Response>* (Self::*method)(grpc::CallbackServerContext*,
                                                                 const Received<Request>*)) {
    add(name, grpc::internal::RpcMethod::SERVER_STREAMING,
        new grpc::internal::CallbackServerStreamingHandler<Received<Request>, Response>(
            [self, method](grpc::CallbackServerContext* call, const Received<Request>* request) {
              return (self->*method)(call, request);
            }));
  }

  template <typename Self, typename Request, typename Response>
  void serve(const char* name, Self* self,
             grpc::ServerReadReactor<Received<Request>>* (Self::*method)(
                 grpc::CallbackServerContext*, Response*)) {
    add(name, grpc::internal::RpcMethod::CLIENT_STREAMING,
        new grpc::internal::CallbackClientStreamingHandler<Received<Request>, Response>(
            [self, method](grpc::CallbackServerContext* call, Response* response) {
              return (self->*method)(call, response);
            }));
  }

  template <typename Self, typename Request, typename Response>
  void serve(const char* name, Self* self,
             grpc::ServerBidiReactor<Received<Request>, Response>* (Self::*method)(
                 grpc::CallbackServerContext*)) {
    add(name, grpc::internal::RpcMethod::BIDI_STREAMING,
        new grpc::internal::CallbackBidiHandler<Received<Request>, Response>(
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

}  // namespace lintel
