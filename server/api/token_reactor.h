// SPDX-License-Identifier: Apache-2.0
// TokenReactor: a call that is answered by the tokens of one request.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "server/api/prepare_generation.h"
#include "server/api/response_stream.h"
#include "server/api/streaming_options.h"
#include "server/api/token_stream.h"
#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/core/request_memory.h"
#include "server/rpc/active_calls.h"
#include "server/rpc/status.h"

namespace lintel {

// Derived classes say what a message has of the entries of a TokenStream.
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
  // Of a message, which is cleared. is_last: the request has ended well.
  virtual void fill(std::span<const OutboxEntry> entries, bool is_last, Response& message) = 0;
  // Whether fill() makes the first message as soon as the request is accepted, without entries;
  // else the answer's headers go out then.
  virtual bool has_first_message() const { return false; }
  // Asked after fill(): whether the call ends with this message, though the request runs.
  virtual bool ends_early() const { return false; }
  // Of the last message of a call that ended early: what the request had used.
  virtual void add_use(TokenUse /*used*/, Response& /*message*/) noexcept {}
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

  // What OnCancel finds, which may come before run() does.
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
