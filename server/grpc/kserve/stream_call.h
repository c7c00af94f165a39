// ModelStreamInferCall: one ModelStreamInfer call.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "inference/grpc_service.pb.h"
#include "server/api/service_context.h"
#include "server/api/token_outbox.h"
#include "server/core/mutex.h"
#include "server/grpc/kserve/prepare.h"
#include "server/grpc/kserve/sequences.h"
#include "server/grpc/kserve/streamed_response.h"
#include "server/grpc/kserve/unary_call.h"
#include "server/grpc/transport/received.h"
#include "server/grpc/transport/stream_call.h"

namespace lintel {

// Reads a request, runs it, writes its response, or its values as they come, reads the next: one
// operation at a time, so that its members need no lock but for what a cancellation looks at.
// Between requests a drain does not wait for it. Lives from the method until gRPC has done with it.
class ModelStreamInferCall final
    : public grpc::ServerBidiReactor<Received<inference::ModelInferRequest>,
                                     inference::ModelStreamInferResponse>,
      private TokenWire {
 public:
  // context, sequences: outlive the call.
  ModelStreamInferCall(const ServiceContext& context, ClientSequences& sequences,
                       grpc::CallbackServerContext& rpc);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  // What runs of the request: its rows, or its values as they come.
  struct Running {
    std::shared_ptr<RowGatherer> rows;
    std::shared_ptr<TokenOutbox> outbox;
  };

  // Of a request whose values are written as they come.
  void write(std::span<const OutboxEntry> entries) override;
  void end(std::span<const OutboxEntry> entries, grpc::Status status, ValueUse used) override;
  void gone(grpc::Status status, ValueUse used) noexcept override;
  // Of a stored sequence it is for the end to say how it ended.
  void over() noexcept override {
    if (!sequence_.is_stored) sequences_.end_if_last(sequence_);
  }

  // Reads what came. What it was is forgotten once it runs: between its requests a stream holds
  // nothing of them.
  grpc::Status read(inference::ModelInferRequest& wire);
  // Takes what it needs and begins it, or responds why not. The call may be gone when this returns.
  void serve(const inference::ModelInferRequest& wire) noexcept;
  // Begins what was prepared. Not OK: nothing runs.
  grpc::Status run(PreparedInference& infer);
  grpc::Status run_streamed(PreparedInference& infer);
  void respond(grpc::Status status, ValueUse used);
  // From here on a cancellation ends it, too. False: the call is cancelled already.
  bool take_on(Running running) EXCLUDES(mutex_);
  bool is_cancelled() EXCLUDES(mutex_);
  void forget() EXCLUDES(mutex_);
  void finish(grpc::Status status);

  const ServiceContext& context_;
  ClientSequences& sequences_;
  ActiveCalls& calls_;
  grpc::CallbackServerContext& rpc_;
  StreamCall call_;
  // As Triton has it: with the metadata triton_grpc_error "true" an error is the stream's status
  // and its end, in place of a message with a text alone.
  const bool errors_are_statuses_;
  ActiveCall active_;  // while a request is served
  Received<inference::ModelInferRequest> request_;
  std::string id_;                // of the request that runs
  bool asks_for_stream_ = false;  // it has the parameter, with any value
  inference::ModelStreamInferResponse response_;
  grpc::Status status_;

  // Of a request whose values are written as they come.
  ClientSequence sequence_;
  std::optional<StreamedResponse> streamed_;
  bool writes_last_ = false;  // the message in flight ends the request

  Mutex mutex_;
  Running running_ GUARDED_BY(mutex_);
  bool cancelled_ GUARDED_BY(mutex_) = false;
};

}  // namespace lintel
