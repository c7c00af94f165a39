// SPDX-License-Identifier: Apache-2.0
// ResponseStream: writes the messages that a derived class has ready, one at a time.
#pragma once

#include <grpcpp/support/status.h>

#include <memory>
#include <utility>

#include "server/core/mutex.h"
#include "server/rpc/active_calls.h"
#include "server/rpc/call_scope.h"
#include "server/rpc/rpc.h"
#include "server/rpc/status.h"

namespace lintel {

// StreamReactor: a call that is answered by a stream, as gRPC knows it.

// Made first by the method, which enters and then runs or refuses the call, and returns the reactor
// to gRPC; only after that come completed writes and cancellations. Deletes itself when gRPC
// has done with it.
//
// Threads: the method's until it returns, then any that writes or finishes, one at a time.
template <typename Response>
class StreamReactor : public RpcReactor {
 public:
  // The gate and the calls outlive the reactor, the context does not matter after the constructor.
  StreamReactor(const CallPolicy& gate, ActiveCalls& calls, RpcCall& context, Method method)
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
  void finish(const Response* last, grpc::Status status, TokenUse used) {
    status_ = copy_of(status);
    call_.finish(used);
    if (last != nullptr) {
      this->StartWriteAndFinish(last, std::move(status));
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

// Derived classes decide what to send next; this class sees to it that one write is in flight, that
// its message outlives it, and that Finish comes exactly once, last, also after cancellation. (What
// one request of the scheduler's produces goes through a TokenStream, which does so itself.)
//
// Lifetime: gRPC's reactor holds the stream until OnDone, and so do the TokenSinks that produce for
// it in the scheduler. The reactor is never touched after finish.
// Threads: any.
template <typename Response>
class ResponseStream : public std::enable_shared_from_this<ResponseStream<Response>> {
 public:
  class Reactor final : public StreamReactor<Response> {
   public:
    using StreamReactor<Response>::StreamReactor;

    // From here on the stream writes, and ends the call; null: it does not after all, and nothing
    // of it runs. By the method or, after it has returned, by another thread: a cancellation that
    // came before is reported now.
    void run(std::shared_ptr<ResponseStream> stream) EXCLUDES(mutex_) {
      if (stream != nullptr) stream->reactor_ = this;
      bool gone = false;
      {
        MutexLock lock(mutex_);
        stream_ = stream;
        gone = gone_;
      }
      if (gone && stream != nullptr) stream->on_gone();
    }

    void OnWriteDone(bool ok) override EXCLUDES(mutex_) {
      // A copy: the reactor may be gone as soon as it is finished.
      const std::shared_ptr<ResponseStream> stream = this->stream();
      if (stream != nullptr) stream->written(ok);
    }
    void OnCancel() override EXCLUDES(mutex_) {
      std::shared_ptr<ResponseStream> stream;
      {
        MutexLock lock(mutex_);
        gone_ = true;
        stream = stream_;
      }
      if (stream != nullptr) stream->on_gone();
    }

   private:
    std::shared_ptr<ResponseStream> stream() const EXCLUDES(mutex_) {
      MutexLock lock(mutex_);
      return stream_;
    }

    mutable Mutex mutex_;
    std::shared_ptr<ResponseStream> stream_ GUARDED_BY(mutex_);
    bool gone_ GUARDED_BY(mutex_) = false;
  };

  virtual ~ResponseStream() = default;

 protected:
  enum class Next { kNothing, kBegin, kWrite, kWriteAndFinish, kFinish };

  // What to do now that no write is in flight: fills the message to write (handed over cleared) or
  // the status to finish with. kBegin: the answer's headers go out; once, before all messages. What
  // it throws is on_lost()'s.
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
  virtual TokenUse tokens_used() const REQUIRES(mutex_) = 0;

  // Sends what there is to send. REQUIRES: the caller holds no mutex, for gRPC may call back at
  // once; the reactor runs this stream.
  void pump() EXCLUDES(mutex_) {
    Next action = Next::kNothing;
    grpc::Status status;
    TokenUse used;
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
      writing_ = action == Next::kBegin || action == Next::kWrite;
      finished_ = action == Next::kFinish || action == Next::kWriteAndFinish;
      if (finished_) used = tokens_used();
    }
    if (lost) return on_lost();
    // The flags keep every other thread from coming here until the operation is over.
    if (action == Next::kBegin) reactor_->StartSendInitialMetadata();
    if (action == Next::kWrite) reactor_->StartWrite(&message_);
    if (action == Next::kWriteAndFinish) reactor_->finish(&message_, std::move(status), used);
    if (action == Next::kFinish) reactor_->finish(nullptr, std::move(status), used);
  }

  mutable Mutex mutex_;

 private:
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

  Reactor* reactor_ = nullptr;  // constant since it runs this stream
  Response message_;            // owned by the write in flight, else by pump
  bool writing_ GUARDED_BY(mutex_) = false;
  bool finished_ GUARDED_BY(mutex_) = false;
};

}  // namespace lintel
