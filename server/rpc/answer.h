// SPDX-License-Identifier: Apache-2.0
// StreamCall: a CallScope, and what else a streaming call holds.
#pragma once

#include <grpcpp/support/status.h>

#include "server/rpc/call_scope.h"
#include "server/rpc/message_bounds.h"
#include "server/rpc/rpc.h"
#include "server/rpc/status.h"

namespace lintel {

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
