// SPDX-License-Identifier: Apache-2.0
// SessionService: creates, shows, copies and deletes sessions.
#pragma once

#include "lintel/v1/session.grpc.pb.h"
#include "server/api/handlers.h"
#include "server/api/lintel_v1/session_calls.h"
#include "server/api/service_context.h"

namespace lintel {

// Thread-safe. Without a session store nothing here waits, and a unary method answers before it
// returns; with one, methods that name a session continue on the store's threads. Its files:
// session_service.cpp (Create, Get, List, Delete),
// session_copies.cpp (Fork, Rewind, ReadHistory), session_snapshots.cpp (Snapshot),
// restore_call.cpp (Restore), session_states.cpp (named states).
class SessionService final : public HandlerService {
 public:
  explicit SessionService(const ServiceContext& context);

 private:
  using SnapshotStream = PieceStream<v1::SnapshotChunk>;
  using HistoryStream = PieceStream<v1::Chunk>;
  // The part of a method that works on the session that its request names. `pin` keeps that in
  // memory.
  // `absent`: the model that it needs, where it is not in memory: then it is run again when that
  // is.
  template <typename Request, typename Answer>
  using Body = grpc::Status (SessionService::*)(CallScope& scope, const Request& wire,
                                                SessionPin& pin, AbsentModel& absent,
                                                Answer& answer);

  Task<grpc::Status> create(Call call, v1::CreateSessionRequest wire, v1::Session& session);
  Task<grpc::Status> get(Call call, v1::GetSessionRequest wire, v1::Session& session);
  Task<grpc::Status> list(Call call, v1::ListSessionsRequest wire, v1::ListSessionsResponse& page);
  Task<grpc::Status> remove(Call call, v1::DeleteSessionRequest wire, google::protobuf::Empty&);
  template <typename Request, typename Answer, Body<Request, Answer> kBody>
  Task<grpc::Status> on_session(Call call, Request wire, Answer& answer);
  grpc::Status fork(CallScope& scope, const v1::ForkSessionRequest& wire, SessionPin& pin,
                    AbsentModel& absent, v1::ForkSessionResponse& response);
  grpc::Status rewind(CallScope& scope, const v1::RewindSessionRequest& wire, SessionPin& pin,
                      AbsentModel& absent, v1::Session& session);
  grpc::Status snapshot(CallScope& scope, const v1::SnapshotSessionRequest& wire, SessionPin& pin,
                        AbsentModel& absent, SnapshotStream::Reactor& reactor);
  grpc::Status read_history(CallScope& scope, const v1::ReadHistoryRequest& wire, SessionPin& pin,
                            AbsentModel& absent, HistoryStream::Reactor& reactor);
  RpcReactor* Restore(RpcCall* call, v1::Session* response);

  grpc::Status save_state(CallScope& scope, const v1::SaveStateRequest& wire, SessionPin& pin,
                          AbsentModel& absent, v1::NamedState& state);
  grpc::Status list_states(CallScope& scope, const v1::ListStatesRequest& wire,
                           v1::ListStatesResponse& page);
  grpc::Status delete_state(CallScope& scope, const v1::DeleteStateRequest& wire,
                            google::protobuf::Empty&);
  void write_state(const NamedState& state, v1::NamedState& wire) const;

  // A place among copies_, or why there is none.
  grpc::Status take_place(std::shared_ptr<void>& place);
  // The caller's session, which is in memory then; not OK: it is not there. Gives the scope its
  // model.
  grpc::Status find(CallScope& scope, const std::string& id, SessionPin& pin, AbsentModel& absent,
                    SessionInfo& info) const;
  // The status for a refusal of a session that the caller has; OK if it is none.
  grpc::Status refused(const SessionRefusal& refusal, const CallScope& scope,
                       const std::string& id) const;

  Semaphore copies_;  // of calls that hold what sessions are, on its way in or out
};

// A session as the wire has it.
void write_session(const ServiceContext& context, const SessionInfo& info, v1::Session& wire);

}  // namespace lintel
