// What every RPC method does around its translation.
#pragma once

#include <spdlog/spdlog.h>

#include <exception>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "server/call_scope.h"
#include "server/received.h"
#include "server/service_context.h"
#include "server/status.h"

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

// How large a request of this method may be.
inline MessageBounds bounds_of(const ServiceContext& context, Method method) {
  if (info_of(method).is_health) return kOpenMessage;
  return {static_cast<std::size_t>(context.options.connections.max_message_bytes)};
}

// A unary call: `body(caller, wire)`, or `body(scope, wire)` of a call about a model, translates
// and returns the status, if the caller may do this and the request can be read.
template <typename Request, typename Body>
grpc::ServerUnaryReactor* answer(const ServiceContext& context, grpc::CallbackServerContext& call,
                                 Method method, const Received<Request>& request, Body body) {
  CallScope scope(context.gate, call, method);
  grpc::Status status = scope.admitted();
  if (status.ok()) {
    const LogScope log(scope.log_fields());
    status = guarded([&] {
      Request wire;
      grpc::Status read = request.read(bounds_of(context, method), wire);
      if (!read.ok()) return read;
      if constexpr (std::is_invocable_v<Body, CallScope&, const Request&>) {
        return body(scope, wire);
      } else {
        return body(scope.caller(), wire);
      }
    });
  }
  scope.end(status);
  grpc::ServerUnaryReactor* const reactor = call.DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

// A unary call that is answered later, by whichever thread, exactly once: `begin(wire, reply)`
// translates and calls reply(status) when the response is written, or gives the reply away to who
// will.
class LateReply {
 public:
  LateReply(std::unique_ptr<CallScope> scope, grpc::ServerUnaryReactor* reactor)
      : scope_(std::move(scope)), reactor_(reactor) {}
  void operator()(const grpc::Status& status) const {
    scope_->end(status);
    reactor_->Finish(status);
  }
  // The model that was loaded, or is there to be unloaded. REQUIRES: not yet answered.
  void set_model(const std::string& name) const { scope_->set_model(name); }

 private:
  const std::shared_ptr<CallScope> scope_;
  grpc::ServerUnaryReactor* const reactor_;
};

template <typename Request, typename Begin>
grpc::ServerUnaryReactor* answer_later(const ServiceContext& context,
                                       grpc::CallbackServerContext& call, Method method,
                                       const Received<Request>& request, Begin begin) {
  auto scope = std::make_unique<CallScope>(context.gate, call, method);
  grpc::Status status = scope->admitted();
  const LogFields log_fields = scope->log_fields();  // a copy: the call may be over before begin is
  const LogScope log(log_fields);
  grpc::ServerUnaryReactor* const reactor = call.DefaultReactor();
  const LateReply reply(std::move(scope), reactor);
  Request wire;
  if (status.ok()) {
    status = guarded([&] { return request.read(bounds_of(context, method), wire); });
  }
  status.ok() ? begin(wire, reply) : reply(status);
  return reactor;
}

}  // namespace lintel
