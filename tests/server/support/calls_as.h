// SPDX-License-Identifier: Apache-2.0
// Calls with the token of a name in a token file.
#pragma once

#include <string>

#include "tests/server/support/token_file.h"

namespace lintel::testing {

// The status of a whole call as `who`.
inline grpc::Status generate_as(TestServer& server, const std::string& who,
                                const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  set_token(context, who);
  const auto reader = server.generation->Generate(&context, request);
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  return reader->Finish();
}

inline grpc::Status score_as(TestServer& server, const std::string& who) {
  v1::ScoreRequest request;
  for (int i = 0; i < 3; ++i) {
    if (i == 0) request.add_sequences();
    request.mutable_sequences(0)->mutable_tokens()->add_ids(i);
  }
  grpc::ClientContext context;
  set_token(context, who);
  const auto reader = server.generation->Score(&context, request);
  v1::ScoreResponse message;
  while (reader->Read(&message)) {
  }
  return reader->Finish();
}

inline grpc::Status create_as(TestServer& server, const std::string& who, v1::Session* session) {
  grpc::ClientContext context;
  set_token(context, who);
  return server.sessions->Create(&context, {}, session);
}

}  // namespace lintel::testing
