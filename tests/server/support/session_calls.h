// SPDX-License-Identifier: Apache-2.0
// Calls about sessions and their copies.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/server/support/calls_as.h"
#include "tests/server/support/service_fixture.h"

namespace lintel::testing {

// The next `count` tokens of a session, after `prompt`. Throws where the call fails.
inline Sample go_on(TestServer& server, const std::string& id, unsigned count,
                    const std::vector<std::int32_t>& prompt = {}, std::uint64_t seed = 7) {
  v1::GenerateRequest request = request_for("", {prompt.begin(), prompt.end()}, count);
  request.set_session_id(id);
  request.mutable_sampling()->set_seed(seed);
  request.set_log2_probs(true);
  const Generated out = generate(server, request);
  if (!out.status.ok()) throw std::runtime_error("Generate: " + out.status.error_message());
  return out.only();
}

inline v1::Session create_windowed(TestServer& server, const std::string& model,
                                   std::int64_t window, grpc::Status* refused = nullptr) {
  v1::CreateSessionRequest request;
  request.set_model(model);
  request.set_window(window);
  v1::Session session;
  grpc::ClientContext context;
  const grpc::Status status = server.sessions->Create(&context, request, &session);
  if (refused != nullptr) *refused = status;
  if (refused == nullptr && !status.ok()) {
    throw std::runtime_error("Create: " + status.error_message());
  }
  return session;
}

inline v1::Session get_session(TestServer& server, const std::string& id) {
  v1::GetSessionRequest request;
  request.set_id(id);
  v1::Session session;
  grpc::ClientContext context;
  const grpc::Status status = server.sessions->Get(&context, request, &session);
  if (!status.ok()) throw std::runtime_error("Get: " + status.error_message());
  return session;
}

inline grpc::Status fork_session(TestServer& server, const std::string& id,
                                 std::optional<std::int64_t> position, unsigned count,
                                 v1::ForkSessionResponse* response) {
  v1::ForkSessionRequest request;
  request.set_id(id);
  if (position) request.set_position(*position);
  request.set_count(count);
  grpc::ClientContext context;
  return server.sessions->Fork(&context, request, response);
}

inline grpc::Status rewind_session(TestServer& server, const std::string& id, std::int64_t position,
                                   v1::Session* session, const std::string& expected_digest = "") {
  v1::RewindSessionRequest request;
  request.set_id(id);
  request.set_position(position);
  if (!expected_digest.empty()) request.set_expected_digest(expected_digest);
  grpc::ClientContext context;
  return server.sessions->Rewind(&context, request, session);
}

struct History {
  std::vector<v1::Chunk> runs;
  grpc::Status status;

  std::vector<std::int32_t> tokens() const {
    std::vector<std::int32_t> all;
    for (const v1::Chunk& run : runs) {
      all.insert(all.end(), run.tokens().begin(), run.tokens().end());
    }
    return all;
  }
};
inline History read_history(TestServer& server, const std::string& id, std::int64_t from = 0,
                            std::optional<std::int64_t> to = std::nullopt) {
  v1::ReadHistoryRequest request;
  request.set_id(id);
  request.set_from_position(from);
  if (to) request.set_to_position(*to);
  History out;
  grpc::ClientContext context;
  const auto reader = server.sessions->ReadHistory(&context, request);
  v1::Chunk chunk;
  while (reader->Read(&chunk)) out.runs.push_back(chunk);
  out.status = reader->Finish();
  return out;
}

}  // namespace lintel::testing
