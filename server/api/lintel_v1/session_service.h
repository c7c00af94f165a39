// SPDX-License-Identifier: Apache-2.0
// SessionService: creates, shows, copies and deletes sessions.
#pragma once

#include "lintel/v1/session.grpc.pb.h"
#include "server/api/lintel_v1/session_calls.h"
#include "server/api/service_context.h"
#include "server/rpc/answer.h"

namespace lintel {

// Thread-safe. Without a session store nothing here waits, and a unary method answers before it
// returns; with one, methods that name a session continue on the store's threads. Its files:
// session_service.cpp (Create, Get, List, Delete),
// session_copies.cpp (Fork, Rewind, ReadHistory), session_snapshots.cpp (Snapshot),
// restore_call.cpp (Restore), session_states.cpp (named states).
class SessionService final : public RpcService {
 public:
  explicit SessionService(const ServiceContext& context);

  RpcReactor* Create(RpcCall* call, const LazyMessage<v1::CreateSessionRequest>* request,
                     v1::Session* response);
  RpcReactor* Get(RpcCall* call, const LazyMessage<v1::GetSessionRequest>* request,
                  v1::Session* response);
  RpcReactor* List(RpcCall* call, const LazyMessage<v1::ListSessionsRequest>* request,
                   v1::ListSessionsResponse* response);
  RpcReactor* Delete(RpcCall* call, const LazyMessage<v1::DeleteSessionRequest>* request,
                     google::protobuf::Empty* response);
  RpcReactor* Fork(RpcCall* call, const LazyMessage<v1::ForkSessionRequest>* request,
                   v1::ForkSessionResponse* response);
  RpcReactor* Rewind(RpcCall* call, const LazyMessage<v1::RewindSessionRequest>* request,
                     v1::Session* response);
  RpcReactor* Snapshot(RpcCall* call, const LazyMessage<v1::SnapshotSessionRequest>* request);
  RpcReactor* Restore(RpcCall* call, v1::Session* response);
  RpcReactor* ReadHistory(RpcCall* call, const LazyMessage<v1::ReadHistoryRequest>* request);
  RpcReactor* SaveState(RpcCall* call, const LazyMessage<v1::SaveStateRequest>* request,
                        v1::NamedState* response);
  RpcReactor* ListStates(RpcCall* call, const LazyMessage<v1::ListStatesRequest>* request,
                         v1::ListStatesResponse* response);
  RpcReactor* DeleteState(RpcCall* call, const LazyMessage<v1::DeleteStateRequest>* request,
                          google::protobuf::Empty* response);

 private:
  using SnapshotStream = PieceStream<v1::SnapshotChunk>;
  using HistoryStream = PieceStream<v1::Chunk>;

  grpc::Status create(CallScope& scope, const v1::CreateSessionRequest& wire, v1::Session& session);
  grpc::Status get(CallScope& scope, const v1::GetSessionRequest& wire, v1::Session& session);
  grpc::Status list(CallScope& scope, const v1::ListSessionsRequest& wire,
                    v1::ListSessionsResponse& page);
  grpc::Status remove(CallScope& scope, const v1::DeleteSessionRequest& wire);
  grpc::Status fork(CallScope& scope, const v1::ForkSessionRequest& wire, SessionPin& pin,
                    v1::ForkSessionResponse& response);
  grpc::Status rewind(CallScope& scope, const v1::RewindSessionRequest& wire, SessionPin& pin,
                      v1::Session& session);
  grpc::Status snapshot(const v1::SnapshotSessionRequest& wire, SessionPin& pin,
                        SnapshotStream::Reactor& reactor);
  grpc::Status read_history(const v1::ReadHistoryRequest& wire, SessionPin& pin,
                            HistoryStream::Reactor& reactor);

  grpc::Status save_state(CallScope& scope, const v1::SaveStateRequest& wire, SessionPin& pin,
                          v1::NamedState& state);
  grpc::Status list_states(CallScope& scope, const v1::ListStatesRequest& wire,
                           v1::ListStatesResponse& page);
  grpc::Status delete_state(CallScope& scope, const v1::DeleteStateRequest& wire);
  void write_state(const NamedState& state, v1::NamedState& wire) const;

  // A place among copies_, or why there is none.
  grpc::Status take_place(std::shared_ptr<void>& place);
  // The caller's session, which is in memory then; not OK: it is not there. Gives the scope its
  // model.
  grpc::Status find(CallScope& scope, const std::string& id, SessionPin& pin,
                    SessionInfo& info) const;
  // Of a session that the caller has; OK where it is no refusal.
  grpc::Status refused(const SessionRefusal& refusal, const CallScope& scope,
                       const std::string& id) const;

  const ServiceContext context_;
  Semaphore copies_;  // of calls that hold what sessions are, on its way in or out
};

// A session as the wire has it.
void write_session(const ServiceContext& context, const SessionInfo& info, v1::Session& wire);

}  // namespace lintel
