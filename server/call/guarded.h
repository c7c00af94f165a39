// guarded(): an exception in one call ends that call only.
#pragma once

#include <grpcpp/support/status.h>
#include <spdlog/spdlog.h>

#include <exception>
#include <new>

#include "server/call/status.h"

namespace lintel {

// Runs `method` and makes a status of what it throws: an exception in one call ends that call only.
// Nothing passes it, for want of memory either: the end of a call waits for what comes after it.
template <typename Method>
grpc::Status guarded(Method method) noexcept {
  try {
    try {
      return method();
    } catch (const std::bad_alloc&) {
      return out_of_memory();
    } catch (const std::exception& error) {
      spdlog::error("a call failed: {}", error.what());
      return internal_error("server", "", error.what());
    }
  } catch (...) {
    return out_of_memory();
  }
}

}  // namespace lintel
