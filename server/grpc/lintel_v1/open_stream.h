// Common parts of methods that answer with a stream.
#pragma once

#include <memory>
#include <utility>

#include "server/api/service_context.h"
#include "server/grpc/lintel_v1/store_calls.h"
#include "server/grpc/transport/guarded.h"
#include "server/grpc/transport/received.h"

namespace lintel {

// The call's reactor is made and enters, the request is read, and `begin(reactor, wire)` has the
// reactor run, or says why the call is refused. The request is gone when the stream runs. Where
// there is a session store and `waits(wire)`, `begin` runs by a thread of that, and may do so after
// the method has returned: it holds what it needs.
template <typename Reactor, typename Request, typename Begin, typename Waits>
Reactor* open_stream(const ServiceContext& context, grpc::CallbackServerContext& rpc, Method method,
                     const Received<Request>& request, Begin begin, Waits waits) {
  auto reactor = std::make_unique<Reactor>(context.gate, context.calls, rpc, method);
  const LogFields log_fields = reactor->call().scope.log_fields();  // as the call began
  const LogScope log(log_fields);
  grpc::Status status = guarded([&] {
    grpc::Status entered = reactor->enter();
    if (!entered.ok()) return entered;
    Request wire;
    grpc::Status read = request.read(bounds_of(context.gate, method), wire);
    if (!read.ok()) return read;
    if (context.durable == nullptr || !waits(wire)) return begin(*reactor, wire);
    // gRPC runs nothing of the reactor before it has it from the method, its end neither.
    return run_by_store(
        context, log_fields,
        [&reactor = *reactor, begin, wire = std::make_shared<const Request>(std::move(wire))] {
          grpc::Status started = guarded([&] { return begin(reactor, *wire); });
          if (!started.ok()) reactor.refuse(std::move(started));
        });
  });
  if (!status.ok()) reactor->refuse(std::move(status));
  return reactor.release();  // deletes itself
}

// The same of what never waits.
template <typename Reactor, typename Request, typename Begin>
Reactor* open_stream(const ServiceContext& context, grpc::CallbackServerContext& rpc, Method method,
                     const Received<Request>& request, Begin begin) {
  return open_stream<Reactor>(context, rpc, method, request, std::move(begin),
                              [](const Request&) { return false; });
}

}  // namespace lintel
