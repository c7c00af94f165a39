// What every RPC method does around its translation.
#pragma once

#include <spdlog/spdlog.h>

#include <exception>
#include <new>

#include "server/status.h"

namespace lintel {

// Runs `method` and makes a status of what it throws: an exception in one call ends that call only.
template <typename Method>
grpc::Status guarded(Method method) {
  try {
    return method();
  } catch (const std::bad_alloc&) {
    return resource_exhausted("the machine is out of memory", std::chrono::seconds(1));
  } catch (const std::exception& error) {
    spdlog::error("a call failed: {}", error.what());
    return internal_error("server", "", error.what());
  }
}

}  // namespace lintel
