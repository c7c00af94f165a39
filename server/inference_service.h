// InferenceService: the Open Inference Protocol (KServe v2) beside lintel.v1, on the same port.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "inference/grpc_service.grpc.pb.h"
#include "server/infer_run.h"
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
  grpc::ServerUnaryReactor* ModelInfer(grpc::CallbackServerContext* call,
                                       const inference::ModelInferRequest* request,
                                       inference::ModelInferResponse* response) override;
  grpc::ServerBidiReactor<inference::ModelInferRequest, inference::ModelStreamInferResponse>*
  ModelStreamInfer(grpc::CallbackServerContext* call) override;

 private:
  class InferStream;

  // A request that is ready to run.
  struct Infer {
    std::shared_ptr<InferRun> run;
    std::vector<PreparedGeneration> prepared;
  };
  using OnInferred = std::function<void(const grpc::Status&, TokenUse used)>;

  // The session of a call that names a sequence.
  struct Sequence {
    Owner owner;
    std::string model, name;
    std::string session_id;  // empty: no sequence
    bool is_new = false;
    bool ends = false;
  };

  // What a request needs is checked and taken. `response` is written when the run is done, before
  // `on_done`; both outlive it.
  grpc::Status prepare(const grpc::CallbackServerContext& call,
                       const inference::ModelInferRequest& wire, CallScope& scope,
                       inference::ModelInferResponse& response, OnInferred on_done, Infer& infer);
  grpc::Status find_sequence(const Owner& owner, const ServedModel& model,
                             const InferRequest& request, Sequence& sequence);
  grpc::Status prepare_rows(const grpc::CallbackServerContext& call, const InferRequest& request,
                            const Sequence& sequence, CallScope& scope,
                            std::vector<PreparedGeneration>& prepared);
  void end_sequence(const Sequence& sequence);

  const ServiceContext context_;
  SequenceNames sequences_;
};

}  // namespace lintel
