// ReflectionService: the server's services and types, for clients that have no .proto files.
#pragma once

#include <string>
#include <vector>

#include "server/grpc/transport/bounded_service.h"

namespace lintel {

// grpc.reflection, v1 and v1alpha, which are the same under two names. gRPC's own has a thread for
// every open stream and takes requests of any size; here a stream that waits costs its memory
// alone.
//
// Thread-safe.
class ReflectionService final : public BoundedService {
 public:
  // `services`: full names, the answer to list_services.
  explicit ReflectionService(std::vector<std::string> services);

 private:
  template <typename Request, typename Response>
  grpc::ServerBidiReactor<Received<Request>, Response>* talk(grpc::CallbackServerContext* call);

  const std::vector<std::string> services_;
};

}  // namespace lintel
