// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "server/rpc/call_scope.h"
#include "server/rpc/rpc.h"

namespace lintel {

// ChannelzService: gRPC's own view of its connections and calls.

// grpc.channelz.v1, from the JSON of gRPC's channelz registry. gRPC's own service takes requests of
// any size.
//
// Thread-safe.
class ChannelzService final : public RpcService {
 public:
  ChannelzService();

 private:
  template <typename Request, typename Response>
  RpcReactor* answer(RpcCall* call, const LazyMessage<Request>* request, Response* response);
};

// ReflectionService: the server's services and types, for clients that have no .proto files.

// grpc.reflection, v1 and v1alpha, which are the same under two names. gRPC's own has a thread for
// every open stream and takes requests of any size; here a stream that waits costs its memory
// alone.
//
// Thread-safe.
class ReflectionService final : public RpcService {
 public:
  // `services`: full names, the answer to list_services.
  explicit ReflectionService(std::vector<std::string> services);

 private:
  template <typename Request, typename Response>
  RpcReactor* talk(RpcCall* call);

  const std::vector<std::string> services_;
};

}  // namespace lintel
