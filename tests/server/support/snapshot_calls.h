// SPDX-License-Identifier: Apache-2.0
// Snapshots of sessions over gRPC, and restored ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/server/support/session_calls.h"

namespace lintel::testing {

struct Snapshot {
  std::string bytes;
  std::vector<v1::SnapshotChunk> chunks;
  grpc::Status status;
};

inline Snapshot snapshot_of(TestServer& server, const v1::SnapshotSessionRequest& request,
                            const std::string& who = "") {
  Snapshot out;
  grpc::ClientContext context;
  set_token(context, who);
  const auto reader = server.sessions->Snapshot(&context, request);
  v1::SnapshotChunk chunk;
  while (reader->Read(&chunk)) {
    out.bytes += chunk.data();
    out.chunks.push_back(chunk);
  }
  out.status = reader->Finish();
  return out;
}
inline Snapshot snapshot_of(TestServer& server, const std::string& id) {
  v1::SnapshotSessionRequest request;
  request.set_id(id);
  return snapshot_of(server, request);
}

using Messages = std::vector<v1::RestoreSessionRequest>;

inline v1::RestoreSessionRequest header_of(std::int64_t total_bytes, bool verify = false) {
  v1::RestoreSessionRequest message;
  message.mutable_header()->set_total_bytes(total_bytes);
  message.mutable_header()->set_verify(verify);
  return message;
}

inline v1::RestoreSessionRequest data_of(const std::string& bytes) {
  v1::RestoreSessionRequest message;
  message.set_data(bytes);
  return message;
}

inline Messages messages_of(const std::string& bytes, bool verify = false,
                            std::size_t piece = 1000) {
  Messages messages = {header_of(static_cast<std::int64_t>(bytes.size()), verify)};
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    messages.push_back(data_of(bytes.substr(at, piece)));
  }
  return messages;
}

inline grpc::Status restore(TestServer& server, const Messages& messages, v1::Session* session) {
  grpc::ClientContext context;
  const auto writer = server.sessions->Restore(&context, session);
  for (const v1::RestoreSessionRequest& message : messages) {
    if (!writer->Write(message)) break;
  }
  writer->WritesDone();
  return writer->Finish();
}

}  // namespace lintel::testing
