// CallScope: one RPC from its headers to its end, with its caller and request id.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "server/core/clock.h"
#include "server/grpc/transport/call_end.h"
#include "server/grpc/transport/message_bounds.h"
#include "server/grpc/transport/methods.h"
#include "server/grpc/transport/request_counters.h"
#include "server/observability/logging.h"
#include "server/security/bearer_tokens.h"
#include "server/security/identity.h"
#include "server/security/quotas.h"

namespace lintel {

// What every call meets. Borrowed; the server owns all of it.
struct CallGate {
  const BearerTokens* bearer_tokens = nullptr;  // null: no token is asked for
  // In mutual TLS, where there are no tokens, callers have their certificates' names.
  bool identify_by_certificate = false;
  std::span<const std::string> admin_certificates;  // those names that have the role admin, too
  Roles anonymous;  // of callers without a token, where none is asked for
  Quotas& quotas;
  RequestCounters& counters;
  const Clock& clock;
  std::size_t max_message_bytes;  // of a request
  std::string inner_key = {};  // server/grpc/transport/inner_call.h; empty: there are no such calls
  std::string replica_id = {};  // this server's, for answers; empty: they do not say
};

// How large a request of this method may be.
MessageBounds bounds_of(const CallGate& gate, Method method);

// The identity of a call's token; UNAUTHENTICATED where it is empty or unknown.
grpc::Status identify(const BearerTokens& tokens, std::string_view token, Identity& caller);

// Made first in every method; counts and logs the call when it ends. The one place that identifies
// callers.
//
// Used by one thread at a time.
class CallScope {
 public:
  // Answers the call's headers with x-request-id and lintel-replica. `call` is used during the
  // constructor only.
  CallScope(const CallGate& gate, grpc::CallbackServerContext& call, Method method);
  ~CallScope();  // ends a call that was not ended: an exception kept it from beginning
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  // Not OK: the caller is not known (UNAUTHENTICATED) or may not do this (PERMISSION_DENIED).
  const grpc::Status& admitted() const { return admitted_; }
  const Identity& caller() const { return caller_; }
  // By which its requests take turns with others' (GenerationRequest::caller): the identity, or
  // where it has no name the address of the client's connection.
  const std::string& turn_name() const { return caller_.name.empty() ? peer_ : caller_.name; }
  const LogFields& log_fields() const { return fields_; }

  // The model the call is about, as soon as it is known to be there: for the log line and the
  // counters. Of a stream of requests the first one's.
  void set_model(const std::string& name);

  // What was read and produced since the last time, for the log.
  void note_use(ValueUse used) noexcept;

  // The call is gone. Idempotent.
  void end(const grpc::Status& status) noexcept;

 private:
  // `inner`: the call is this process's own, on behalf of a client.
  void identify(const grpc::CallbackServerContext& call, bool inner);

  const CallGate& gate_;
  const MethodInfo& method_;
  const TimePoint begun_;
  std::string peer_;  // of an inner call the client's, not this process
  Identity caller_;
  grpc::Status admitted_;
  LogFields fields_;
  std::string model_;  // empty: none, or not yet known
  ValueUse used_;      // of all that was noted
  bool ended_ = false;
};

}  // namespace lintel
