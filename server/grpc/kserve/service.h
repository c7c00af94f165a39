// InferenceService: the Open Inference Protocol (KServe v2), on the port of lintel.v1.
#pragma once

#include "inference/grpc_service.grpc.pb.h"
#include "server/api/service_context.h"
#include "server/grpc/kserve/sequences.h"
#include "server/grpc/transport/unary_call.h"

namespace lintel {

// Thread-safe. Translates; what it says is what GenerationService and SessionService would.
class InferenceService final : public BoundedService {
 public:
  explicit InferenceService(const ServiceContext& context);

  grpc::ServerUnaryReactor* ServerLive(grpc::CallbackServerContext* call,
                                       const LazyMessage<inference::ServerLiveRequest>* request,
                                       inference::ServerLiveResponse* response);
  grpc::ServerUnaryReactor* ServerReady(grpc::CallbackServerContext* call,
                                        const LazyMessage<inference::ServerReadyRequest>* request,
                                        inference::ServerReadyResponse* response);
  grpc::ServerUnaryReactor* ModelReady(grpc::CallbackServerContext* call,
                                       const LazyMessage<inference::ModelReadyRequest>* request,
                                       inference::ModelReadyResponse* response);
  grpc::ServerUnaryReactor* ServerMetadata(
      grpc::CallbackServerContext* call,
      const LazyMessage<inference::ServerMetadataRequest>* request,
      inference::ServerMetadataResponse* response);
  grpc::ServerUnaryReactor* ModelMetadata(
      grpc::CallbackServerContext* call,
      const LazyMessage<inference::ModelMetadataRequest>* request,
      inference::ModelMetadataResponse* response);
  grpc::ServerUnaryReactor* RepositoryIndex(
      grpc::CallbackServerContext* call,
      const LazyMessage<inference::RepositoryIndexRequest>* request,
      inference::RepositoryIndexResponse* response);
  grpc::ServerUnaryReactor* ModelConfig(grpc::CallbackServerContext* call,
                                        const LazyMessage<inference::ModelConfigRequest>* request,
                                        inference::ModelConfigResponse* response);
  grpc::ServerUnaryReactor* ModelStatistics(
      grpc::CallbackServerContext* call,
      const LazyMessage<inference::ModelStatisticsRequest>* request,
      inference::ModelStatisticsResponse* response);
  grpc::ServerUnaryReactor* RepositoryModelLoad(
      grpc::CallbackServerContext* call,
      const LazyMessage<inference::RepositoryModelLoadRequest>* request,
      inference::RepositoryModelLoadResponse* response);
  grpc::ServerUnaryReactor* RepositoryModelUnload(
      grpc::CallbackServerContext* call,
      const LazyMessage<inference::RepositoryModelUnloadRequest>* request,
      inference::RepositoryModelUnloadResponse* response);
  grpc::ServerUnaryReactor* ModelInfer(grpc::CallbackServerContext* call,
                                       const LazyMessage<inference::ModelInferRequest>* request,
                                       inference::ModelInferResponse* response);
  grpc::ServerBidiReactor<LazyMessage<inference::ModelInferRequest>,
                          inference::ModelStreamInferResponse>*
  ModelStreamInfer(grpc::CallbackServerContext* call);

 private:
  const ServiceContext context_;
  ClientSequences sequences_;
};

}  // namespace lintel
