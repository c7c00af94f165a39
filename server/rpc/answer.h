// SPDX-License-Identifier: Apache-2.0
// What every RPC does around its translation.
#pragma once

#include <grpcpp/support/status.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "server/rpc/call_scope.h"
#include "server/rpc/message_bounds.h"
#include "server/rpc/rpc.h"
#include "server/rpc/status.h"

namespace lintel {

// A unary call: `body(caller, wire)`, or `body(scope, wire)` of a call about a model, translates
// and returns the status, if the caller may do this and the request can be read.
template <typename Request, typename Body>
RpcReactor* answer(const CallPolicy& gate, RpcCall& call, Method method,
                   const LazyMessage<Request>& request, Body body) {
  CallScope scope(gate, call, method);
  grpc::Status status = scope.admitted();
  if (status.ok()) {
    const LogScope log(scope.log_fields());
    status = catch_exceptions([&] {
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
  RpcReactor* const reactor = call.default_reactor();
  reactor->Finish(status);
  return reactor;
}

// A unary call that is answered later, by any thread, exactly once: `begin(wire, reply)`
// translates and calls reply(status) when the response is written, or hands the reply on, to be
// called then.
class LateReply {
 public:
  LateReply(std::unique_ptr<CallScope> scope, RpcReactor* reactor)
      : scope_(std::move(scope)), reactor_(reactor) {}
  void operator()(const grpc::Status& status) const {
    scope_->end(status);
    reactor_->Finish(status);
  }
  // The model that was loaded, or is there to be unloaded. REQUIRES: not yet answered.
  void set_model(const std::string& name) const { scope_->set_model(name); }

 private:
  const std::shared_ptr<CallScope> scope_;
  RpcReactor* const reactor_;
};

template <typename Request, typename Begin>
RpcReactor* answer_later(const CallPolicy& gate, RpcCall& call, Method method,
                         const LazyMessage<Request>& request, Begin begin) {
  auto scope = std::make_unique<CallScope>(gate, call, method);
  grpc::Status status = scope->admitted();
  const LogFields log_fields = scope->log_fields();  // a copy: the call may be over before begin is
  const LogScope log(log_fields);
  RpcReactor* const reactor = call.default_reactor();
  const LateReply reply(std::move(scope), reactor);
  Request wire;
  if (status.ok()) {
    status = catch_exceptions([&] { return request.read(bounds_of(gate, method), wire); });
  }
  status.ok() ? begin(wire, reply) : reply(status);
  return reactor;
}

// StreamCall: a CallScope, and what else a streaming call holds.

// Of a call that reads and produces tokens, from its headers to its end. Used by one thread at a
// time.
struct StreamCall {
  StreamCall(const CallPolicy& gate, RpcCall& context, Method method)
      : scope(gate, context, method), quota(gate.quotas, scope.caller().name) {}

  // The call does nothing more, and its client does not know yet.
  void finish(TokenUse used) noexcept {
    scope.note_use(used);
    quota.finish();
  }
  // The call is gone.
  void end(const grpc::Status& status) noexcept {
    quota.leave();
    scope.end(status);
  }

  CallScope scope;
  StreamQuota quota;
};

}  // namespace lintel
