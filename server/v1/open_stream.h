// What methods that answer with a stream do around their translation.
#pragma once

#include <memory>
#include <utility>

#include "server/call/guarded.h"
#include "server/call/received.h"
#include "server/requests/service_context.h"

namespace lintel {

// The call's reactor is made and enters, the request is read, and `begin(reactor, wire)` has the
// reactor run, or says why the call is refused. The request is gone when the stream runs.
template <typename Reactor, typename Request, typename Begin>
Reactor* open_stream(const ServiceContext& context, grpc::CallbackServerContext& rpc, Method method,
                     const Received<Request>& request, Begin begin) {
  auto reactor = std::make_unique<Reactor>(context.gate, context.calls, rpc, method);
  const LogFields log_fields = reactor->call().scope.log_fields();  // as the call began
  const LogScope log(log_fields);
  grpc::Status status = guarded([&] {
    grpc::Status entered = reactor->enter();
    if (!entered.ok()) return entered;
    Request wire;
    grpc::Status read = request.read(bounds_of(context.gate, method), wire);
    return read.ok() ? begin(*reactor, wire) : read;
  });
  if (!status.ok()) reactor->refuse(std::move(status));
  return reactor.release();  // deletes itself
}

}  // namespace lintel
