// ModelStreamInferCall: one ModelStreamInfer call.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <string>

#include "inference/grpc_service.pb.h"
#include "server/base/mutex.h"
#include "server/call/call_scope.h"
#include "server/call/received.h"
#include "server/kserve/infer_tokens.h"
#include "server/kserve/prepare.h"
#include "server/kserve/sequences.h"
#include "server/kserve/unary_call.h"
#include "server/requests/service_context.h"

namespace lintel {

// Reads a request, runs it, writes its response, or its values as they come, reads the next: one
// operation at a time, so that its members need no lock but for what a cancellation looks at.
// Between requests a drain does not wait for it. Lives from the method until gRPC has done with it.
class ModelStreamInferCall final
    : public grpc::ServerBidiReactor<Received<inference::ModelInferRequest>,
                                     inference::ModelStreamInferResponse> {
 public:
  // context, sequences: outlive the call.
  ModelStreamInferCall(const ServiceContext& context, ClientSequences& sequences,
                       grpc::CallbackServerContext& call, std::unique_ptr<CallScope> scope);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  // Reads what came and takes what it needs. What it was is forgotten with that: between its
  // requests a stream holds nothing of them.
  grpc::Status prepare(PreparedInference& infer);
  void respond(grpc::Status status, ValueUse used);
  std::shared_ptr<InferTokens> new_tokens(const PreparedInference& infer);
  std::shared_ptr<InferTokens> current_tokens() EXCLUDES(mutex_);
  void forget_tokens() EXCLUDES(mutex_);
  void rest();
  void finish(grpc::Status status);

  const ServiceContext& context_;
  ClientSequences& sequences_;
  ActiveCalls& calls_;
  grpc::CallbackServerContext& call_;
  const std::unique_ptr<CallScope> scope_;
  Received<inference::ModelInferRequest> request_;
  std::string id_;                // of the request that runs
  bool asks_for_stream_ = false;  // it has the parameter, whatever its value
  inference::ModelStreamInferResponse response_;
  bool is_busy_ = false;  // counted in
  grpc::Status status_;
  std::atomic<bool> cancelled_{false};
  Mutex mutex_;
  std::shared_ptr<RowGatherer> run_ GUARDED_BY(mutex_);     // the last one
  std::shared_ptr<InferTokens> tokens_ GUARDED_BY(mutex_);  // of a request that is streamed
};

}  // namespace lintel
