// SPDX-License-Identifier: Apache-2.0
// ConnectionOptions: gRPC's settings of connections.
#pragma once

#include <chrono>
#include <cstdint>

namespace grpc {
class ServerBuilder;
}

namespace lintel {

struct ConnectionOptions {
  std::int64_t max_message_bytes = 4 << 20;  // of a request; gRPC's own default
  // Memory that gRPC may hold for all connections together: bytes received that are no whole
  // message yet, and bytes that wait to be sent. Beyond it gRPC ends calls.
  std::int64_t memory_bytes = 256 << 20;
  int max_metadata_bytes = 16 << 10;  // of a call's headers
  int max_streams = 1024;             // calls at a time of one connection
  // A client that answers no ping for time + timeout is gone: its calls are cancelled.
  std::chrono::milliseconds keepalive_time_ms{30'000};
  std::chrono::milliseconds keepalive_timeout_ms{10'000};
  // A connection this old takes no new calls (the client opens another, and shows its certificate
  // again); its running calls have the grace to end, then it is closed. 0: no bound.
  std::chrono::milliseconds max_age_ms{3'600'000};
  std::chrono::milliseconds max_age_grace_ms{3'600'000};
};

void set_connection_options(const ConnectionOptions& connections, grpc::ServerBuilder& builder);

}  // namespace lintel
