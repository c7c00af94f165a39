// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/connection_settings.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>

#include "server/grpc/port_guard.h"
#include "server/rpc/rpc.h"

namespace lintel {
namespace {

// gRPC cancels clients that ping more often.
constexpr int kMinClientPingIntervalMs = 10'000;

// The duration as gRPC takes it, at most the longest that gRPC can express.
int milliseconds(std::chrono::milliseconds duration) {
  return static_cast<int>(std::min<std::int64_t>(duration.count(), 0x7fffffff - 1));
}

}  // namespace

void set_connection_options(const ConnectionOptions& connections, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(static_cast<int>(connections.max_message_bytes));
  // gRPC takes a message in whole before it looks at its size, which is up to 4 GiB.
  grpc::ResourceQuota quota("connections");
  quota.Resize(static_cast<std::size_t>(connections.memory_bytes));
  builder.SetResourceQuota(quota);
  builder.SetMaxSendMessageSize(static_cast<int>(kMaxMessageBytes));
  // gRPC inflates a message before it compares its size with the bound: 16 MiB can become 16 GiB.
  // Without the filter a compressed message is not inflated, and refused by its headers.
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  // A half-open connection answers no ping; without them its streams would hold their rows and
  // state.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS,
                             milliseconds(connections.keepalive_time_ms));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             milliseconds(connections.keepalive_timeout_ms));
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, connections.max_metadata_bytes);
  guard_header_fields(connections.max_metadata_bytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, connections.max_streams);
  if (connections.max_age_ms.count() > 0) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                               milliseconds(connections.max_age_ms));
    if (connections.max_age_grace_ms.count() > 0) {
      builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
                                 milliseconds(connections.max_age_grace_ms));
    }
  }
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinClientPingIntervalMs);
}

}  // namespace lintel
