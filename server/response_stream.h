// ResponseStream: one server stream's way to gRPC. The only caller of StartWrite and Finish.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <memory>

#include "server/active_calls.h"
#include "server/call_scope.h"
#include "server/mutex.h"

namespace lintel {

// Derived classes decide what to send next; this class sees to it that one write is in flight, that
// its message outlives it, and that Finish comes exactly once, last, also after cancellation.
//
// Lifetime: gRPC's reactor holds the stream until OnDone, and whoever produces (a TokenSink in the
// scheduler) holds it too. The reactor deletes itself in OnDone; it is never touched after Finish.
// Threads: any.
template <typename Response>
class ResponseStream : public std::enable_shared_from_this<ResponseStream<Response>> {
 public:
  virtual ~ResponseStream() = default;

  // The reactor a gRPC method returns; made once. When the call is over its scope is ended, and it
  // is counted out of `calls`. REQUIRES: the call was counted in.
  grpc::ServerWriteReactor<Response>* start(ActiveCalls& calls, std::unique_ptr<CallScope> scope) {
    reactor_ = new Reactor(this->shared_from_this(), calls, std::move(scope));
    return reactor_;
  }

  // Ends a call that was never taken on. REQUIRES: start was called, and nothing else since.
  void refuse(const grpc::Status& status) {
    {
      MutexLock lock(mutex_);
      finished_ = true;
      final_status_ = status;
    }
    reactor_->scope().finish({});
    reactor_->Finish(status);
  }

 protected:
  enum class Next { kNothing, kWrite, kWriteAndFinish, kFinish };

  // What to do now that no write is in flight: fills the message to write (handed over cleared) or
  // the status to finish with.
  virtual Next next(Response& message, grpc::Status& status) REQUIRES(mutex_) = 0;
  // A message went out. Called without the mutex.
  virtual void on_written() {}
  // The client is gone or cancelled; called without the mutex, once or twice. What produces for
  // this stream has to end; then next() says kFinish.
  virtual void on_gone() = 0;
  // What the call read and produced, asked when next() has given its status.
  virtual TokenUse tokens_used() const REQUIRES(mutex_) = 0;

  // Sends what there is to send. REQUIRES: the caller holds no mutex, for gRPC may call back at
  // once.
  void pump() EXCLUDES(mutex_) {
    Next action = Next::kNothing;
    grpc::Status status;
    TokenUse used;
    {
      MutexLock lock(mutex_);
      if (writing_ || finished_) return;
      message_.Clear();
      action = next(message_, status);
      writing_ = action == Next::kWrite;
      finished_ = action == Next::kFinish || action == Next::kWriteAndFinish;
      if (finished_) {
        final_status_ = status;
        used = tokens_used();
      }
    }
    // The flags keep every other thread from coming here until the operation is over.
    if (action == Next::kWriteAndFinish || action == Next::kFinish) reactor_->scope().finish(used);
    if (action == Next::kWrite) reactor_->StartWrite(&message_);
    if (action == Next::kWriteAndFinish) {
      reactor_->StartWriteAndFinish(&message_, grpc::WriteOptions(), status);
    }
    if (action == Next::kFinish) reactor_->Finish(status);
  }

  mutable Mutex mutex_;

 private:
  class Reactor final : public grpc::ServerWriteReactor<Response> {
   public:
    Reactor(std::shared_ptr<ResponseStream> stream, ActiveCalls& calls,
            std::unique_ptr<CallScope> scope)
        : stream_(std::move(stream)), calls_(calls), scope_(std::move(scope)) {}

    CallScope& scope() { return *scope_; }

    void OnWriteDone(bool ok) override {
      // A copy: the reactor may be gone as soon as Finish is called.
      const std::shared_ptr<ResponseStream> stream = stream_;
      stream->written(ok);
    }
    void OnCancel() override {
      const std::shared_ptr<ResponseStream> stream = stream_;
      stream->on_gone();
    }
    void OnDone() override {
      ActiveCalls& calls = calls_;
      stream_->over(*scope_);
      delete this;
      calls.leave();
    }

   private:
    const std::shared_ptr<ResponseStream> stream_;
    ActiveCalls& calls_;
    const std::unique_ptr<CallScope> scope_;
  };

  void over(CallScope& scope) EXCLUDES(mutex_) {
    grpc::Status status;
    {
      MutexLock lock(mutex_);
      status = final_status_;
    }
    scope.end(status);
  }

  void written(bool ok) EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      writing_ = false;
    }
    if (ok) {
      on_written();
    } else {
      on_gone();
    }
    pump();
  }

  Reactor* reactor_ = nullptr;  // constant after start
  Response message_;            // owned by the write in flight, else by pump
  bool writing_ GUARDED_BY(mutex_) = false;
  bool finished_ GUARDED_BY(mutex_) = false;
  grpc::Status final_status_ GUARDED_BY(mutex_);
};

}  // namespace lintel
