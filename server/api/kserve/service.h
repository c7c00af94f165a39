// SPDX-License-Identifier: Apache-2.0
// InferenceService: the Open Inference Protocol (KServe v2), on the port of lintel.v1.
#pragma once

#include "inference/grpc_service.grpc.pb.h"
#include "server/api/handlers.h"
#include "server/api/kserve/sequences.h"
#include "server/api/service_context.h"

namespace lintel {

// Thread-safe. Translates; what it says is what GenerationService and SessionService would.
class InferenceService final : public HandlerService {
 public:
  explicit InferenceService(const ServiceContext& context);

 private:
  class InferCall;

  grpc::Status server_live(CallScope& scope, const inference::ServerLiveRequest& wire,
                           inference::ServerLiveResponse& response);
  grpc::Status server_ready(CallScope& scope, const inference::ServerReadyRequest& wire,
                            inference::ServerReadyResponse& response);
  grpc::Status model_ready(CallScope& scope, const inference::ModelReadyRequest& wire,
                           inference::ModelReadyResponse& response);
  grpc::Status server_metadata(CallScope& scope, const inference::ServerMetadataRequest& wire,
                               inference::ServerMetadataResponse& response);
  grpc::Status model_metadata(CallScope& scope, const inference::ModelMetadataRequest& wire,
                              inference::ModelMetadataResponse& response);
  grpc::Status model_config(CallScope& scope, const inference::ModelConfigRequest& wire,
                            inference::ModelConfigResponse& response);
  grpc::Status model_statistics(CallScope& scope, const inference::ModelStatisticsRequest& wire,
                                inference::ModelStatisticsResponse& response);
  grpc::Status repository_index(CallScope& scope, const inference::RepositoryIndexRequest& wire,
                                inference::RepositoryIndexResponse& response);
  Task<grpc::Status> load(Call call, inference::RepositoryModelLoadRequest wire,
                          inference::RepositoryModelLoadResponse& response);
  Task<grpc::Status> unload(Call call, inference::RepositoryModelUnloadRequest wire,
                            inference::RepositoryModelUnloadResponse& response);
  Task<grpc::Status> infer(Call call, inference::ModelInferRequest wire, InferCall& answer);
  RpcReactor* stream_infer(RpcCall* call);

  ClientSequences sequences_;
};

}  // namespace lintel
