// SPDX-License-Identifier: Apache-2.0
// GrpcService: the methods of an RpcService over gRPC.
#pragma once

#include <grpcpp/impl/codegen/service_type.h>

#include <deque>
#include <string>

#include "server/rpc/rpc.h"

namespace lintel {

// Stands where protoc's CallbackService would, whose methods take what gRPC has parsed without a
// bound.
class GrpcService final : public grpc::Service {
 public:
  // The service outlives the object.
  explicit GrpcService(const RpcService& service);

 private:
  std::deque<std::string> paths_;  // gRPC keeps pointers to them
};

}  // namespace lintel
