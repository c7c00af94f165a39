// SPDX-License-Identifier: Apache-2.0
// Calls that are answered by a stream: ResponseStream writes the messages that a derived class has
// ready, one at a time, TokenReactor those that a derived class makes of the tokens of one request.
#pragma once

#include <grpcpp/support/status.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "server/api/prepare_generation.h"
#include "server/api/streaming_options.h"
#include "server/api/token_stream.h"
#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/core/request_memory.h"
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

    // Lets the stream write and end the call from here on; null: it does not after all, and nothing
    // of it runs. Called by the method or, after it has returned, by another thread: a cancellation
    // that came before is reported now.
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

  // The next step, now that no write is in flight: fills the message to write (handed over cleared)
  // or the status to finish with. kBegin: the answer's headers are sent; once, before all messages.
  // If it throws, on_lost() is called.
  virtual Next next(Response& message, grpc::Status& status) REQUIRES(mutex_) = 0;
  // A message went out. Called without the mutex.
  virtual void on_written() {}
  // The client is gone or cancelled; called without the mutex, once or twice. The producer for this
  // stream has to end; then next() says kFinish.
  virtual void on_gone() = 0;
  // There was no memory for the next message; called without the mutex. The producer has to end,
  // and then next() says kFinish, without asking for memory.
  virtual void on_lost() = 0;
  // The tokens that the call read and produced, asked when next() has given its status.
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

// TokenReactor: derived classes say what a message has of the entries of a TokenStream.
template <typename Response>
class TokenReactor : public StreamReactor<Response>, protected ResponseWriter {
 public:
  using StreamReactor<Response>::StreamReactor;

  // Submits the request; then the call ends with it, and the reactor may be gone when this returns.
  // Once, by the method or, after it has returned, by another thread. Not OK, or an exception:
  // nothing runs.
  grpc::Status run(PreparedGeneration prepared, const StreamingOptions& streaming,
                   const Clock& clock) EXCLUDES(mutex_) {
    constexpr int kDefaultMessageTokens = 1024;  // of a client that does not say how many it wants
    GenerationRequest& request = prepared.checked.request;
    memory_ = std::move(prepared.memory);
    TokenStream::Options options;
    options.chunk_interval = streaming.chunk_interval_ms;
    options.outbox_tokens = streaming.outbox_tokens;
    options.max_tokens_per_message =
        prepared.checked.max_tokens_per_message > 0
            ? prepared.checked.max_tokens_per_message
            : std::max(kDefaultMessageTokens / (1 + request.top_log2_probs), 1);
    options.top_log2_probs = request.top_log2_probs;
    options.tells_sample_ends = true;
    options.begins_at_once = true;
    options.deadline_ends_well = !prepared.deadline_is_calls;
    if (prepared.lease) options.session_id = prepared.lease.session_id();
    options.session_is_stored = prepared.durable != nullptr;
    const auto outbox =
        std::make_shared<TokenStream>(static_cast<ResponseWriter&>(*this), prepared.model, clock,
                                      this->calls(), std::move(options));
    // Before it runs: a write may be out, and the stream with it, before submit() returns.
    if (!set_outbox(outbox)) return cancelled();
    if (prepared.past) {  // it has been run
      outbox->tell(std::move(prepared.past));
      return grpc::Status::OK;
    }
    grpc::Status submitted = catch_exceptions([&] {
      return outbox->submit(std::move(request), std::move(prepared.lease), prepared.durable);
    });
    if (!submitted.ok()) set_outbox(nullptr);
    return submitted;
  }

  void OnWriteDone(bool ok) override EXCLUDES(mutex_) {
    // A copy: the reactor may be gone as soon as it is finished.
    const std::shared_ptr<TokenStream> outbox = this->outbox();
    if (outbox != nullptr) outbox->written(ok);
  }
  void OnCancel() override EXCLUDES(mutex_) {
    std::shared_ptr<TokenStream> outbox;
    {
      MutexLock lock(mutex_);
      gone_ = true;
      outbox = outbox_;
    }
    if (outbox != nullptr) outbox->gone();
  }

 protected:
  // Fills a message that has been cleared. is_last: the request has ended well.
  virtual void fill(std::span<const OutboxEntry> entries, bool is_last, Response& message) = 0;
  // True if fill() makes the first message, without entries, as soon as the request is accepted.
  // Otherwise the answer's headers are sent then.
  virtual bool has_first_message() const { return false; }
  // True after fill() if the call ends with this message, though the request runs.
  virtual bool ends_early() const { return false; }
  // Adds what the request had used to the last message of a call that ended early.
  virtual void add_use(TokenUse /*used*/, Response& /*message*/) noexcept {}
  // Tokens of the prompt that were not read, known from the first token on. REQUIRES: run().
  std::int64_t cached_tokens() const { return outbox()->cached_tokens(); }
  // The times of the samples that have finished. REQUIRES: run().
  SampleTimes times() const { return outbox()->times(); }
  // The request is over: ends the call by finish(), now or later. `last`: the message that is to be
  // sent, empty where the status is not OK; null: the client is gone.
  virtual void conclude(Response* last, grpc::Status status, TokenUse used) noexcept {
    const bool is_empty = last == nullptr || !status.ok() || last->ByteSizeLong() == 0;
    this->finish(is_empty ? nullptr : last, std::move(status), used);
  }

 private:
  void accepted() override { has_first_message() ? write({}) : this->StartSendInitialMetadata(); }
  void write(std::span<const OutboxEntry> entries) override {
    message_.Clear();
    fill(entries, /*is_last=*/false, message_);
    if (!ends_early()) return this->StartWrite(&message_);
    has_ended_ = true;
    // Cancels the request: gone() comes when it is over.
    outbox()->written(/*ok=*/false);
  }
  void end(std::span<const OutboxEntry> entries, grpc::Status status, TokenUse used) override {
    message_.Clear();
    if (status.ok()) fill(entries, /*is_last=*/true, message_);
    conclude(&message_, std::move(status), used);
  }
  void gone(grpc::Status status, TokenUse used) noexcept override {
    if (has_ended_) {
      add_use(used, message_);
      return conclude(&message_, grpc::Status::OK, used);
    }
    conclude(nullptr, std::move(status), used);
  }

  // The stream that OnCancel() finds; null if that comes before run().
  std::shared_ptr<TokenStream> outbox() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return outbox_;
  }
  // False where the client is gone.
  bool set_outbox(std::shared_ptr<TokenStream> outbox) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    outbox_.swap(outbox);  // what was there goes without the mutex
    return !gone_;
  }

  mutable Mutex mutex_;
  std::shared_ptr<TokenStream> outbox_ GUARDED_BY(mutex_);  // null: nothing runs
  bool gone_ GUARDED_BY(mutex_) = false;
  bool has_ended_ = false;
  RequestMemory::Charge memory_;  // of the request, until the call is gone
  Response message_;              // the write in flight's, else of whose turn it is
};

}  // namespace lintel
