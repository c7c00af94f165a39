// InferenceService: the Open Inference Protocol (KServe v2) beside lintel.v1, on the same port.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "inference/grpc_service.grpc.pb.h"
#include "server/infer_run.h"
#include "server/infer_tokens.h"
#include "server/prepare_generation.h"
#include "server/sequence_names.h"
#include "server/service_context.h"

namespace lintel {

// Thread-safe. Translates; what it says is what GenerationService and SessionService would.
class InferenceService final : public inference::GRPCInferenceService::CallbackService {
 public:
  explicit InferenceService(const ServiceContext& context)
      : context_(context), sequences_(context.store) {}

  grpc::ServerUnaryReactor* ServerLive(grpc::CallbackServerContext* call,
                                       const inference::ServerLiveRequest* request,
                                       inference::ServerLiveResponse* response) override;
  grpc::ServerUnaryReactor* ServerReady(grpc::CallbackServerContext* call,
                                        const inference::ServerReadyRequest* request,
                                        inference::ServerReadyResponse* response) override;
  grpc::ServerUnaryReactor* ModelReady(grpc::CallbackServerContext* call,
                                       const inference::ModelReadyRequest* request,
                                       inference::ModelReadyResponse* response) override;
  grpc::ServerUnaryReactor* ServerMetadata(grpc::CallbackServerContext* call,
                                           const inference::ServerMetadataRequest* request,
                                           inference::ServerMetadataResponse* response) override;
  grpc::ServerUnaryReactor* ModelMetadata(grpc::CallbackServerContext* call,
                                          const inference::ModelMetadataRequest* request,
                                          inference::ModelMetadataResponse* response) override;
  grpc::ServerUnaryReactor* RepositoryIndex(grpc::CallbackServerContext* call,
                                            const inference::RepositoryIndexRequest* request,
                                            inference::RepositoryIndexResponse* response) override;
  grpc::ServerUnaryReactor* ModelConfig(grpc::CallbackServerContext* call,
                                        const inference::ModelConfigRequest* request,
                                        inference::ModelConfigResponse* response) override;
  grpc::ServerUnaryReactor* ModelStatistics(grpc::CallbackServerContext* call,
                                            const inference::ModelStatisticsRequest* request,
                                            inference::ModelStatisticsResponse* response) override;
  grpc::ServerUnaryReactor* RepositoryModelLoad(
      grpc::CallbackServerContext* call, const inference::RepositoryModelLoadRequest* request,
      inference::RepositoryModelLoadResponse* response) override;
  grpc::ServerUnaryReactor* RepositoryModelUnload(
      grpc::CallbackServerContext* call, const inference::RepositoryModelUnloadRequest* request,
      inference::RepositoryModelUnloadResponse* response) override;
  grpc::ServerUnaryReactor* ModelInfer(grpc::CallbackServerContext* call,
                                       const inference::ModelInferRequest* request,
                                       inference::ModelInferResponse* response) override;
  grpc::ServerBidiReactor<inference::ModelInferRequest, inference::ModelStreamInferResponse>*
  ModelStreamInfer(grpc::CallbackServerContext* call) override;

 private:
  class InferStream;

  // The session of a call that names a sequence.
  struct Sequence {
    Owner owner;
    std::string model, name;
    std::string session_id;  // empty: no sequence
    bool is_new = false;
    bool ends = false;
  };

  // A request that is ready to run.
  struct Infer {
    std::shared_ptr<const InferRequest> request;
    Sequence sequence;
    std::vector<PreparedGeneration> prepared;
    inference::ModelInferResponse head;  // what every response begins with
  };
  using OnInferred = std::function<void(const grpc::Status&, TokenUse used)>;

  // What a request needs is checked and taken. Only where it `may_stream` can it ask for more than
  // one response.
  grpc::Status prepare(const grpc::CallbackServerContext& call,
                       const inference::ModelInferRequest& wire, CallScope& scope, bool may_stream,
                       Infer& infer);
  // Runs it for one response, which is written when the run is done, before `on_done`; both outlive
  // it.
  std::shared_ptr<InferRun> new_run(const Infer& infer, inference::ModelInferResponse& response,
                                    OnInferred on_done);
  grpc::Status find_sequence(const Owner& owner, const ServedModel& model,
                             const InferRequest& request, Sequence& sequence);
  grpc::Status prepare_rows(const grpc::CallbackServerContext& call, const SharedModel& model,
                            const InferRequest& request, const Sequence& sequence, CallScope& scope,
                            std::vector<PreparedGeneration>& prepared);
  void end_sequence(const Sequence& sequence);
  void end_if_last(const Sequence& sequence);  // the request that used it is over

  const ServiceContext context_;
  SequenceNames sequences_;
};

}  // namespace lintel
