// ResponseStream: one server stream's way to gRPC. The only caller of StartWrite and Finish.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <utility>

#include "server/base/mutex.h"
#include "server/call/active_calls.h"
#include "server/call/call_scope.h"
#include "server/call/status.h"

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

  // Counts the call in and takes its scope: the reactor a gRPC method returns; made once. When the
  // call is over its scope is ended, and it is counted out of `calls`. Null, and nothing has
  // happened, where no call enters any more; the same when it throws std::bad_alloc.
  grpc::ServerWriteReactor<Response>* start(ActiveCalls& calls, std::unique_ptr<CallScope>& scope) {
    auto reactor = std::make_unique<Reactor>(this->shared_from_this(), calls);
    if (!calls.enter()) return nullptr;
    reactor->take(std::move(scope));
    reactor_ = reactor.release();
    return reactor_;
  }

  // Ends a call that was never taken on. REQUIRES: start was called, and nothing else since.
  void refuse(grpc::Status status) {
    {
      MutexLock lock(mutex_);
      finished_ = true;
      final_status_ = copy_of(status);
    }
    reactor_->scope().finish({});
    reactor_->Finish(std::move(status));
  }

 protected:
  enum class Next { kNothing, kWrite, kWriteAndFinish, kFinish };

  // What to do now that no write is in flight: fills the message to write (handed over cleared) or
  // the status to finish with. What it throws is on_lost()'s.
  virtual Next next(Response& message, grpc::Status& status) REQUIRES(mutex_) = 0;
  // A message went out. Called without the mutex.
  virtual void on_written() {}
  // The client is gone or cancelled; called without the mutex, once or twice. What produces for
  // this stream has to end; then next() says kFinish.
  virtual void on_gone() = 0;
  // There was no memory for the next message; called without the mutex. What produces has to end,
  // and then next() says kFinish, without asking for memory.
  virtual void on_lost() = 0;
  // What the call read and produced, asked when next() has given its status.
  virtual ValueUse tokens_used() const REQUIRES(mutex_) = 0;

  // Sends what there is to send. REQUIRES: the caller holds no mutex, for gRPC may call back at
  // once.
  void pump() EXCLUDES(mutex_) {
    Next action = Next::kNothing;
    grpc::Status status;
    ValueUse used;
    bool lost = false;
    {
      MutexLock lock(mutex_);
      if (writing_ || finished_) return;
      try {
        message_.Clear();
        action = next(message_, status);
      } catch (...) {
        lost = true;
      }
      writing_ = action == Next::kWrite;
      finished_ = action == Next::kFinish || action == Next::kWriteAndFinish;
      if (finished_) {
        final_status_ = copy_of(status);
        used = tokens_used();
      }
    }
    if (lost) return on_lost();
    // The flags keep every other thread from coming here until the operation is over.
    if (action == Next::kWriteAndFinish || action == Next::kFinish) reactor_->scope().finish(used);
    if (action == Next::kWrite) reactor_->StartWrite(&message_);
    if (action == Next::kWriteAndFinish) {
      reactor_->StartWriteAndFinish(&message_, grpc::WriteOptions(), std::move(status));
    }
    if (action == Next::kFinish) reactor_->Finish(std::move(status));
  }

  mutable Mutex mutex_;

 private:
  class Reactor final : public grpc::ServerWriteReactor<Response> {
   public:
    Reactor(std::shared_ptr<ResponseStream> stream, ActiveCalls& calls)
        : stream_(std::move(stream)), calls_(calls) {}

    void take(std::unique_ptr<CallScope> scope) { scope_ = std::move(scope); }
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
    std::unique_ptr<CallScope> scope_;
  };

  void over(CallScope& scope) EXCLUDES(mutex_) {
    grpc::Status status;
    {
      MutexLock lock(mutex_);
      status = std::move(final_status_);
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
