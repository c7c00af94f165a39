// SPDX-License-Identifier: Apache-2.0
// RestoreCall: one Restore, from its header to the session that it makes.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/status.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lintel/v1/session.pb.h"
#include "server/api/handlers.h"
#include "server/api/lintel_v1/session_calls.h"
#include "server/api/service_context.h"
#include "server/core/mutex.h"
#include "server/engine/token_sink.h"
#include "server/models/model_registry.h"
#include "server/rpc/call_scope.h"
#include "server/rpc/rpc.h"
#include "server/sessions/session_manager.h"
#include "server/sessions/snapshot.h"

namespace lintel {

// Checks that a snapshot can become a session here.

// The most bytes a snapshot of the model's sessions may have: a state and a history as long as
// there can be, and 64 KiB. The most for any model that is ready if `model` is null. At most the
// memory for sessions.
std::size_t most_restored_bytes(const ModelRegistry& models, const ServedModel* model,
                                const SessionManager::Options& store);

// DATA_LOSS for bytes that are damaged, INVALID_ARGUMENT for a field that makes no sense.
grpc::Status snapshot_refused(const SnapshotError& error);

// Checks that the model can continue the snapshot: its weights, attention and weight type, its
// numerics unless other ones are accepted, and tokens that it has.
grpc::Status check_restored(const SnapshotOf& snapshot, const ServedModel& model,
                            bool accept_other_numerics);

// Reads the header, reserves what it says will come, reads that, checks all of it and makes the
// session: nothing is there before, nor when anything is wrong. With `verify` a second session is
// made of the tokens alone, has the model read them, and has to arrive at the snapshot's state.
//
// Lives from the method until gRPC has done with it. One operation at a time, so that its members
// need no lock but for what a cancellation looks at: reads by gRPC's threads, a proof by the
// model's workers.
class RestoreCall final : public RpcReactor {
 public:
  // context, places: outlive the call. `session`: the response.
  RestoreCall(const ServiceContext& context, Semaphore& places, RpcCall& rpc, v1::Session& session);

  void OnReadDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  class ProofSink;

  Call call();
  // Starts one of the tasks below; the call ends where it is refused.
  grpc::Status start(Task<grpc::Status> task);
  // A message has come: takes it and reads the next.
  Task<grpc::Status> take(Call call, v1::RestoreSessionRequest wire);
  // All has come: makes the session, or begins the proof. OK: the call is not over.
  Task<grpc::Status> complete(Call call);
  grpc::Status take_header(const v1::RestoreHeader& header);
  grpc::Status take_data(const std::string& data);
  grpc::Status begin_proof();
  void proof_ended(RequestOutcome outcome);
  // Fails if the tokens did not lead to the snapshot's state.
  grpc::Status check_proof();
  // A session of the image, or why there is none.
  grpc::Status restore(const SessionImage& image, const SessionOptions& options, SessionInfo& made);
  // The answer, if nothing went wrong; where the session is to outlive the server it comes by a
  // thread of the store. OK: the call is over, or in the hands of that thread.
  grpc::Status end();
  void answer(const SessionInfo& made);
  // A session that proves.
  grpc::Status restore_proof(const SessionImage& image);
  void finish(grpc::Status status);

  const ServiceContext& context_;
  Semaphore& places_;
  RpcCall& rpc_;
  v1::Session& session_;
  StreamCall call_;
  ActiveCall active_;
  RequestMessage request_;
  grpc::Status status_;  // written before Finish, read after

  std::optional<v1::RestoreHeader> header_;
  std::shared_ptr<void> place_;
  std::optional<SessionMemory::Reservation> memory_;  // until what was read is gone
  std::optional<SnapshotReader> reader_;
  SessionImage image_;      // whose state lies in the reader
  SessionOptions options_;  // of the session that is made of it
  SharedModel model_;
  SharedAdapter adapter_;
  std::string proof_id_;  // of the session that proves; empty: none
  TokenUse used_;

  const RequestHandle proof_;
  Mutex mutex_;
  SharedModel proving_ GUARDED_BY(mutex_);  // that runs the proof
  bool cancelled_ GUARDED_BY(mutex_) = false;
};

}  // namespace lintel
