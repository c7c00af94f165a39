// What methods that name sessions do around their translation where there is a session store: they
// continue on one of its threads, since they may have to wait for it.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "server/api/refusals.h"
#include "server/api/service_context.h"
#include "server/api/store_work.h"
#include "server/grpc/transport/guarded.h"
#include "server/grpc/transport/received.h"
#include "server/grpc/transport/unary_call.h"

namespace lintel {

// answer(), but `body(scope, wire)` may run after the method has returned, so that it holds what it
// needs; without a store it runs at once.
template <typename Request, typename Body>
grpc::ServerUnaryReactor* answer_by_store(const ServiceContext& context,
                                          grpc::CallbackServerContext& call, Method method,
                                          const Received<Request>& request, Body body) {
  if (context.durable == nullptr) return answer(context.gate, call, method, request, body);
  struct Waiting {
    Waiting(const ServiceContext& context, grpc::CallbackServerContext& call, Method method)
        : calls(context.calls), scope(context.gate, call, method) {
      calls.hold();  // the server does not go before it
    }
    ~Waiting() { calls.release(); }
    ActiveCalls& calls;
    CallScope scope;
    Request wire;
  };
  const auto waiting = std::make_shared<Waiting>(context, call, method);
  grpc::ServerUnaryReactor* const reactor = call.DefaultReactor();
  const auto end = [waiting, reactor](const grpc::Status& status) {
    waiting->scope.end(status);
    reactor->Finish(status);
  };
  grpc::Status status = waiting->scope.admitted();
  if (status.ok()) {
    const LogScope log(waiting->scope.log_fields());
    status = guarded([&] {
      grpc::Status read = request.read(bounds_of(context.gate, method), waiting->wire);
      if (!read.ok()) return read;
      return run_by_store(context, waiting->scope.log_fields(), [waiting, end, body] {
        end(guarded([&] { return body(waiting->scope, waiting->wire); }));
      });
    });
  }
  if (!status.ok()) end(status);
  return reactor;
}

// Brings the caller's session (empty: none) into memory, if it is a stored one that is not there.
// Not OK: why it is not to be had. Waits where there is a store.
inline grpc::Status bring_session(const ServiceContext& context, const std::string& id,
                                  const Owner& owner) {
  if (context.durable == nullptr || id.empty()) return grpc::Status::OK;
  SessionRefusal refusal = context.durable->bring(id, owner);
  if (refusal.error == SessionError::kNotFound) refusal = context.store.absence(id, owner);
  return store_refusal(refusal, context.store.options(), id, owner);
}

// Runs `body`, which brings the session and then uses it. Where memory is scarce the session may be
// gone from there in between: then once more.
template <typename Body>
grpc::Status with_session(const ServiceContext& context, const std::string& id, const Owner& owner,
                          const Body& body) {
  constexpr int kAttempts = 4;
  for (int attempt = 1;; ++attempt) {
    grpc::Status status = body();
    const bool went_between = context.durable != nullptr && !id.empty() &&
                              status.error_code() == grpc::StatusCode::NOT_FOUND &&
                              !context.store.get(id, owner) && context.durable->find(id, owner);
    if (!went_between) return status;
    if (attempt == kAttempts) {
      return resource_exhausted("there is no memory to keep the session in",
                                std::chrono::milliseconds(1000));
    }
  }
}

}  // namespace lintel
