// SPDX-License-Identifier: Apache-2.0
// AdminService: an operator's calls to a running server.
#pragma once

#include "lintel/v1/admin.grpc.pb.h"
#include "server/api/service_context.h"
#include "server/rpc/answer.h"

namespace lintel {

// Thread-safe.
class AdminService final : public RpcService {
 public:
  explicit AdminService(const ServiceContext& context);

  RpcReactor* GetLogLevel(RpcCall* call, const LazyMessage<v1::GetLogLevelRequest>* request,
                          v1::LogLevel* response);
  RpcReactor* SetLogLevel(RpcCall* call, const LazyMessage<v1::LogLevel>* request,
                          v1::LogLevel* response);
  RpcReactor* LoadModel(RpcCall* call, const LazyMessage<v1::LoadModelRequest>* request,
                        v1::Model* response);
  RpcReactor* LoadAdapter(RpcCall* call, const LazyMessage<v1::LoadAdapterRequest>* request,
                          v1::Adapter* response);
  RpcReactor* UnloadAdapter(RpcCall* call, const LazyMessage<v1::UnloadAdapterRequest>* request,
                            v1::UnloadAdapterResponse* response);
  RpcReactor* UnloadModel(RpcCall* call, const LazyMessage<v1::UnloadModelRequest>* request,
                          v1::UnloadModelResponse* response);

 private:
  const ServiceContext context_;
};

}  // namespace lintel
