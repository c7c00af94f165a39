// SessionService: creates, shows and deletes sessions.
#pragma once

#include "lintel/v1/session.grpc.pb.h"
#include "server/call/bounded_service.h"
#include "server/requests/service_context.h"

namespace lintel {

// Thread-safe. Nothing here waits: every method answers before it returns.
class SessionService final : public BoundedService {
 public:
  explicit SessionService(const ServiceContext& context);

  grpc::ServerUnaryReactor* Create(grpc::CallbackServerContext* call,
                                   const Received<v1::CreateSessionRequest>* request,
                                   v1::Session* response);
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* call,
                                const Received<v1::GetSessionRequest>* request,
                                v1::Session* response);
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* call,
                                 const Received<v1::ListSessionsRequest>* request,
                                 v1::ListSessionsResponse* response);
  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* call,
                                   const Received<v1::DeleteSessionRequest>* request,
                                   google::protobuf::Empty* response);

 private:
  grpc::Status create(CallScope& scope, const v1::CreateSessionRequest& wire, v1::Session& session);
  grpc::Status get(CallScope& scope, const v1::GetSessionRequest& wire, v1::Session& session);
  grpc::Status list(const Identity& caller, const v1::ListSessionsRequest& wire,
                    v1::ListSessionsResponse& page);
  grpc::Status remove(CallScope& scope, const v1::DeleteSessionRequest& wire);
  void write_session(const SessionInfo& info, v1::Session& wire) const;

  const ServiceContext context_;
};

}  // namespace lintel
