// What every unary RPC does around its translation.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "server/grpc/transport/call_scope.h"
#include "server/grpc/transport/guarded.h"
#include "server/grpc/transport/received.h"

namespace lintel {

// A unary call: `body(caller, wire)`, or `body(scope, wire)` of a call about a model, translates
// and returns the status, if the caller may do this and the request can be read.
template <typename Request, typename Body>
grpc::ServerUnaryReactor* answer(const CallGate& gate, grpc::CallbackServerContext& call,
                                 Method method, const Received<Request>& request, Body body) {
  CallScope scope(gate, call, method);
  grpc::Status status = scope.admitted();
  if (status.ok()) {
    const LogScope log(scope.log_fields());
    status = guarded([&] {
      Request wire;
      grpc::Status read = request.read(bounds_of(gate, method), wire);
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

// A unary call that is answered later, by any thread, exactly once: `begin(wire, reply)`
// translates and calls reply(status) when the response is written, or hands the reply on, to be
// called then.
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
grpc::ServerUnaryReactor* answer_later(const CallGate& gate, grpc::CallbackServerContext& call,
                                       Method method, const Received<Request>& request,
                                       Begin begin) {
  auto scope = std::make_unique<CallScope>(gate, call, method);
  grpc::Status status = scope->admitted();
  const LogFields log_fields = scope->log_fields();  // a copy: the call may be over before begin is
  const LogScope log(log_fields);
  grpc::ServerUnaryReactor* const reactor = call.DefaultReactor();
  const LateReply reply(std::move(scope), reactor);
  Request wire;
  if (status.ok()) {
    status = guarded([&] { return request.read(bounds_of(gate, method), wire); });
  }
  status.ok() ? begin(wire, reply) : reply(status);
  return reactor;
}

}  // namespace lintel
