// ResponseStream: writes the messages that a derived class has ready, one at a time.
#pragma once

#include <memory>
#include <utility>

#include "server/api/stream_reactor.h"
#include "server/core/mutex.h"

namespace lintel {

// Derived classes decide what to send next; this class sees to it that one write is in flight, that
// its message outlives it, and that Finish comes exactly once, last, also after cancellation. (What
// one request of the scheduler's produces goes through a TokenOutbox, which does so itself.)
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
  // once; the reactor runs this stream.
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
      if (finished_) used = tokens_used();
    }
    if (lost) return on_lost();
    // The flags keep every other thread from coming here until the operation is over.
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
