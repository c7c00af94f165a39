// ChannelzService: gRPC's own view of its connections and calls.
#pragma once

#include "server/grpc/transport/bounded_service.h"

namespace lintel {

// grpc.channelz.v1, from the JSON of gRPC's channelz registry. gRPC's own service takes requests of
// any size.
//
// Thread-safe.
class ChannelzService final : public BoundedService {
 public:
  ChannelzService();

 private:
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* answer(grpc::CallbackServerContext* call,
                                   const Received<Request>* request, Response* response);
};

}  // namespace lintel
