// guarded(), for what ends in a status: an exception in one call ends that call only.
#pragma once

#include <grpcpp/support/status.h>

#include <utility>

#include "server/core/guarded.h"
#include "server/grpc/transport/status.h"

namespace lintel {

// Runs `method` and makes a status of what it throws. Nothing passes it, for want of memory either:
// the end of a call waits for what comes after it.
template <typename Method>
grpc::Status guarded(Method&& method) noexcept {
  return guarded([&]() -> grpc::Status { return method(); }, status_of_exception);
}

}  // namespace lintel
