// What every RPC method does around its translation.
#pragma once

#include <spdlog/spdlog.h>

#include <exception>
#include <new>

#include "server/call_scope.h"
#include "server/service_context.h"
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

// A unary call: `body(caller)` translates and returns the status, if the caller may do this.
template <typename Body>
grpc::ServerUnaryReactor* answer(const ServiceContext& context, grpc::CallbackServerContext& call,
                                 Method method, Body body) {
  CallScope scope(context.gate, call, method);
  grpc::Status status = scope.admitted();
  if (status.ok()) {
    const LogScope log(scope.log_fields());
    status = guarded([&] { return body(scope.caller()); });
  }
  scope.end(status);
  grpc::ServerUnaryReactor* const reactor = call.DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

}  // namespace lintel
