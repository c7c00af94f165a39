// StreamReactor: a call that is answered by a stream, as gRPC knows it.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <utility>

#include "server/grpc/transport/active_calls.h"
#include "server/grpc/transport/status.h"
#include "server/grpc/transport/stream_call.h"

namespace lintel {

// Made first by the method, which enters and then runs or refuses the call, and returns the reactor
// to gRPC; only after that come completed writes and cancellations. Deletes itself when gRPC
// has done with it.
//
// Threads: the method's until it returns, then any that writes or finishes, one at a time.
template <typename Response>
class StreamReactor : public grpc::ServerWriteReactor<Response> {
 public:
  // The gate and the calls outlive the reactor, the context does not matter after the constructor.
  StreamReactor(const CallGate& gate, ActiveCalls& calls, grpc::CallbackServerContext& context,
                Method method)
      : calls_(calls), call_(gate, context, method) {}

  StreamCall& call() { return call_; }

  // Counts the call in. Not OK: it has to be refused, as for all that stands in its way.
  grpc::Status enter() {
    if (!call_.scope.admitted().ok()) return call_.scope.admitted();
    active_ = ActiveCall(calls_);
    if (!active_) return shutting_down();
    return call_.quota.enter();
  }
  // Ends a call of which nothing runs: it holds nothing any more, and is counted out.
  void refuse(grpc::Status status) {
    active_.leave();
    call_.end(status);
    this->Finish(std::move(status));
  }

  // Ends the call, with a last message or without one (null). Once, and the reactor is not to be
  // touched afterwards.
  void finish(const Response* last, grpc::Status status, ValueUse used) {
    status_ = copy_of(status);
    call_.finish(used);
    if (last != nullptr) {
      this->StartWriteAndFinish(last, grpc::WriteOptions(), std::move(status));
    } else {
      this->Finish(std::move(status));
    }
  }

  void OnDone() final {
    const ActiveCall active = std::move(active_);  // counted out when the reactor is gone
    call_.end(status_);
    delete this;
  }

 protected:
  const ActiveCalls& calls() const { return calls_; }

 private:
  ActiveCalls& calls_;
  ActiveCall active_;
  StreamCall call_;
  grpc::Status status_;  // written before Finish, read after
};

}  // namespace lintel
