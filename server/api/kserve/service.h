// SPDX-License-Identifier: Apache-2.0
// InferenceService: the Open Inference Protocol (KServe v2), on the port of lintel.v1.
#pragma once

#include "inference/grpc_service.grpc.pb.h"
#include "server/api/kserve/sequences.h"
#include "server/api/service_context.h"
#include "server/rpc/answer.h"

namespace lintel {

// Thread-safe. Translates; what it says is what GenerationService and SessionService would.
class InferenceService final : public RpcService {
 public:
  explicit InferenceService(const ServiceContext& context);

  RpcReactor* ServerLive(RpcCall* call, const LazyMessage<inference::ServerLiveRequest>* request,
                         inference::ServerLiveResponse* response);
  RpcReactor* ServerReady(RpcCall* call, const LazyMessage<inference::ServerReadyRequest>* request,
                          inference::ServerReadyResponse* response);
  RpcReactor* ModelReady(RpcCall* call, const LazyMessage<inference::ModelReadyRequest>* request,
                         inference::ModelReadyResponse* response);
  RpcReactor* ServerMetadata(RpcCall* call,
                             const LazyMessage<inference::ServerMetadataRequest>* request,
                             inference::ServerMetadataResponse* response);
  RpcReactor* ModelMetadata(RpcCall* call,
                            const LazyMessage<inference::ModelMetadataRequest>* request,
                            inference::ModelMetadataResponse* response);
  RpcReactor* RepositoryIndex(RpcCall* call,
                              const LazyMessage<inference::RepositoryIndexRequest>* request,
                              inference::RepositoryIndexResponse* response);
  RpcReactor* ModelConfig(RpcCall* call, const LazyMessage<inference::ModelConfigRequest>* request,
                          inference::ModelConfigResponse* response);
  RpcReactor* ModelStatistics(RpcCall* call,
                              const LazyMessage<inference::ModelStatisticsRequest>* request,
                              inference::ModelStatisticsResponse* response);
  RpcReactor* RepositoryModelLoad(RpcCall* call,
                                  const LazyMessage<inference::RepositoryModelLoadRequest>* request,
                                  inference::RepositoryModelLoadResponse* response);
  RpcReactor* RepositoryModelUnload(
      RpcCall* call, const LazyMessage<inference::RepositoryModelUnloadRequest>* request,
      inference::RepositoryModelUnloadResponse* response);
  RpcReactor* ModelInfer(RpcCall* call, const LazyMessage<inference::ModelInferRequest>* request,
                         inference::ModelInferResponse* response);
  RpcReactor* ModelStreamInfer(RpcCall* call);

 private:
  const ServiceContext context_;
  ClientSequences sequences_;
};

}  // namespace lintel
