// SPDX-License-Identifier: Apache-2.0
// The fake server's sessions: their number and tokens are a function of what is asked.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lintel/v1/session.grpc.pb.h"

namespace lintel::testing {

class FakeSessions : public v1::SessionService::Service {
 public:
  // Receives the calls that FakeServer::last_seen() is about.
  using NoteCall = std::function<void(const grpc::ServerContext&, const std::string& model)>;
  // The others: FakeServer's, and outlive it.
  FakeSessions(NoteCall note_call, const std::optional<grpc::Status>& failure,
               const bool& end_early, const v1::Session& like)
      : note_call_(std::move(note_call)), failure_(failure), end_early_(end_early), like_(like) {}

  // The same as FakeServer::copy_requests().
  std::vector<std::string> requests() const;
  int gets() const { return gets_; }  // calls of Get

  grpc::Status Create(grpc::ServerContext* context, const v1::CreateSessionRequest* request,
                      v1::Session* reply) override;
  grpc::Status Get(grpc::ServerContext* context, const v1::GetSessionRequest*,
                   v1::Session* reply) override;
  grpc::Status List(grpc::ServerContext* context, const v1::ListSessionsRequest* request,
                    v1::ListSessionsResponse* reply) override;
  grpc::Status Delete(grpc::ServerContext* context, const v1::DeleteSessionRequest*,
                      google::protobuf::Empty*) override;
  grpc::Status Fork(grpc::ServerContext*, const v1::ForkSessionRequest* request,
                    v1::ForkSessionResponse* reply) override;
  grpc::Status Rewind(grpc::ServerContext*, const v1::RewindSessionRequest* request,
                      v1::Session* reply) override;
  // "0123456789" in two pieces, of which the second does not come when the stream ends early.
  grpc::Status Snapshot(grpc::ServerContext*, const v1::SnapshotSessionRequest* request,
                        grpc::ServerWriter<v1::SnapshotChunk>* writer) override;
  grpc::Status Restore(grpc::ServerContext*, grpc::ServerReader<v1::RestoreSessionRequest>* reader,
                       v1::Session* reply) override;
  grpc::Status ReadHistory(grpc::ServerContext*, const v1::ReadHistoryRequest* request,
                           grpc::ServerWriter<v1::Chunk>* writer) override;
  grpc::Status SaveState(grpc::ServerContext*, const v1::SaveStateRequest* request,
                         v1::NamedState* reply) override;
  grpc::Status ListStates(grpc::ServerContext*, const v1::ListStatesRequest* request,
                          v1::ListStatesResponse* reply) override;
  grpc::Status DeleteState(grpc::ServerContext*, const v1::DeleteStateRequest* request,
                           google::protobuf::Empty*) override;

 private:
  v1::Session session(int i) const;
  grpc::Status note(const char* method, const google::protobuf::Message& request);

  const NoteCall note_call_;
  const std::optional<grpc::Status>& failure_;
  const bool& end_early_;
  const v1::Session& like_;
  std::atomic<int> gets_ = 0;
  mutable std::mutex mutex_;
  std::vector<std::string> requests_;
};

}  // namespace lintel::testing
