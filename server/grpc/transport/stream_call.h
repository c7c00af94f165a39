// StreamCall: a CallScope, and what else a streaming call holds.
#pragma once

#include "server/grpc/transport/call_scope.h"
#include "server/grpc/transport/stream_quota.h"

namespace lintel {

// Of a call that reads and produces tokens, from its headers to its end. Used by one thread at a
// time.
struct StreamCall {
  StreamCall(const CallGate& gate, grpc::CallbackServerContext& context, Method method)
      : scope(gate, context, method), quota(gate.quotas, scope.caller().name) {}

  // The call does nothing more, and its client does not know yet.
  void finish(ValueUse used) noexcept {
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
