// SPDX-License-Identifier: Apache-2.0
// TokenStream: carries the tokens of one request from the scheduler to any protocol.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/engine/request.h"
#include "server/engine/token_sink.h"
#include "server/models/model_registry.h"
#include "server/rpc/call_scope.h"

namespace lintel {

class PersistentRequest;
class ReplayedResponse;

// A token, or the end of a sample.
struct OutboxEntry {
  std::int64_t position = 0;
  std::int32_t token = 0;
  int sample = 0;
  std::vector<TopToken> top;
  std::unique_ptr<const SampleResult> finished;  // null: a token
  float log2_prob = 0;
  bool has_log2_prob = false;
  TokenSource source = TokenSource::kSampled;
  std::int32_t cut_bytes = 0;  // as TokenEvent's
};

// The times of samples, see SampleResult: of several the longest.
struct SampleTimes {
  SampleTimes() = default;
  explicit SampleTimes(const SampleResult& result)
      : queued(result.queued),
        prompt(result.prompt),
        generation(result.generation),
        generated_tokens(result.generated_tokens) {}
  void add(const SampleTimes& other);

  Duration queued{}, prompt{}, generation{};
  std::int64_t generated_tokens = 0;
};

// Writes the messages of one protocol. Called by the stream, on any thread that has work for it:
// never under a mutex, one call at a time, and not any more after end() or gone(), whose thread may
// find the object deleted when they return. Entries are valid during the call only.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;
  // The request was accepted, with Options::begins_at_once: before all else. Begins to write the
  // answer's headers, or a message without entries; as write().
  virtual void accepted() { write({}); }
  // Begins to write a message; TokenStream::written is called when it is out. Throws
  // std::bad_alloc, and then nothing is being written.
  virtual void write(std::span<const OutboxEntry> entries) = 0;
  // The request is over, and these are its last entries; there are none with an error, for gRPC
  // sends no message with it. Throws as write(), and then gone() is called.
  virtual void end(std::span<const OutboxEntry> entries, grpc::Status status, TokenUse used) = 0;
  // The request is over, and nothing of it can be written: the client is gone, or there was no
  // memory for a message.
  virtual void gone(grpc::Status status, TokenUse used) noexcept = 0;
  // The request has given its session back: by the scheduler's thread, before end() or gone().
  virtual void over() noexcept {}
};

// Stands between a scheduler that must not wait and a reader that may be slow. The way of a token:
//
//   worker       on_token     -> gathered_, without a lock
//   worker       on_step_end  -> handed_over_, when a message is due: it is full, the interval has
//                               passed, it is the first, or a sample is over
//   either       pump         -> ResponseWriter::write, while no other message is in flight
//   gRPC         written      -> pump
//
// and of the pressure back: on_token returns false and the scheduler pauses the request when more
// than `outbox_tokens` tokens wait; written() resumes it when half of them are out. gone() drops
// what waits and cancels the request.
//
// Lifetime: the writer's owner holds the stream until end() or gone(), the scheduler until the
// request is over. The writer outlives the request. Threads: any.
class TokenStream final : public TokenSink, public std::enable_shared_from_this<TokenStream> {
 public:
  struct Options {
    std::chrono::nanoseconds chunk_interval{};  // while few streams run
    int outbox_tokens = 4096;
    int max_tokens_per_message = 0;  // 0: as many as there are
    int top_log2_probs = 0;
    bool tells_sample_ends = false;   // they are entries, and make a message due
    bool deadline_ends_well = false;  // kDeadline is a time limit of the request's own
    std::string session_id;           // empty: one-shot
    bool session_is_stored = false;   // it outlives the process
    bool begins_at_once = false;      // calls ResponseWriter::accepted
  };

  // `calls`: this one and all others, which share the machine's time for messages.
  TokenStream(ResponseWriter& writer, SharedModel model, const Clock& clock,
              const ActiveCalls& calls, Options options);

  // Runs a request; called once. Not OK, or an exception: nothing runs, the writer is not called.
  // durable: stands before the stream for a session that outlives the process; else null.
  grpc::Status submit(GenerationRequest request, SessionLease lease,
                      const std::shared_ptr<PersistentRequest>& durable = nullptr) EXCLUDES(mutex_);
  // Repeats the answer of a call that was run before; called once, in place of submit().
  void tell(std::shared_ptr<ReplayedResponse> past) EXCLUDES(mutex_);
  // The message is out; not `ok`: it never will be, the client is gone.
  void written(bool ok) EXCLUDES(mutex_);
  // The client is gone. Idempotent; may come before submit().
  void gone() noexcept EXCLUDES(mutex_);
  // The times of the samples that have finished, dropped ones included.
  SampleTimes times() const EXCLUDES(mutex_);
  // As RequestHandle's.
  std::int64_t cached_tokens() const { return handle_.cached_tokens(); }

  bool on_token(const TokenEvent& event) override EXCLUDES(mutex_);
  bool has_room() const override EXCLUDES(mutex_);
  void on_sample_finish(const SampleResult& result) override EXCLUDES(mutex_);
  void on_step_end() override EXCLUDES(mutex_);
  void on_finish(RequestOutcome outcome) override EXCLUDES(mutex_);

 private:
  // The next action of the writer.
  struct Turn {
    enum class Action { kNothing, kBegin, kWrite, kEnd, kGone, kLost };
    Action action = Action::kNothing;
    std::span<const OutboxEntry> entries;
    grpc::Status status;
    TokenUse used;
  };

  // True if gathered tokens are to be written.
  bool due() const;
  // Moves what has gathered to the stream.
  void hand_over() REQUIRES(mutex_);
  // Writes what there is to write. REQUIRES: the caller holds no mutex, for gRPC may call back at
  // once, and is an owner of the stream.
  void pump() EXCLUDES(mutex_);
  Turn next_turn() noexcept REQUIRES(mutex_);
  // Takes the entries of the next message. Throws std::bad_alloc, and then nothing has happened.
  std::span<const OutboxEntry> take_entries() REQUIRES(mutex_);
  bool is_empty() const REQUIRES(mutex_) {
    return taken_ == in_hand_.size() && handed_over_.empty();
  }
  // Writes nothing more, and ends the request; then the writer hears of it, with the first status
  // that was given. ends_turn: the caller is at the writer, and no other turn is between its turn
  // and this.
  void abandon(grpc::Status status, bool ends_turn) noexcept EXCLUDES(mutex_);
  grpc::Status status_of(RequestOutcome outcome) const REQUIRES(mutex_);

  ResponseWriter& writer_;
  const Clock& clock_;
  const ActiveCalls& calls_;
  const Options options_;
  const std::size_t message_tokens_;  // most tokens of one message
  const int workers_;                 // the model's
  const RequestHandle handle_;

  // State of the scheduler's calls, which come one at a time.
  std::vector<OutboxEntry> gathered_;
  std::size_t gathered_tokens_ = 0;  // tokens among them
  bool is_first_ = true;             // nothing was handed over yet
  bool sample_ended_ = false;        // gathered
  TimePoint last_handed_over_{};

  // Changed under the mutex, but their contents are read without it by the thread whose turn it is.
  std::vector<OutboxEntry> in_hand_;  // of the messages that are being written
  std::size_t taken_ = 0;             // at its beginning: written, or in the message in flight

  mutable Mutex mutex_;
  SharedModel model_ GUARDED_BY(mutex_);  // until the request is over: a slow reader keeps no model
  std::shared_ptr<ReplayedResponse> past_ GUARDED_BY(mutex_);  // that is repeated; until it is over
  std::vector<OutboxEntry> handed_over_ GUARDED_BY(mutex_);    // after those in hand
  std::atomic<std::size_t> waiting_{
      0};                             // tokens handed over and not taken; changed under the mutex
  TokenUse used_ GUARDED_BY(mutex_);  // by the samples that have finished
  SampleTimes times_ GUARDED_BY(mutex_);
  bool paused_ GUARDED_BY(mutex_) = false;
  bool is_busy_ GUARDED_BY(mutex_) = false;  // a message is in flight, or a thread is at the writer
  bool is_over_ GUARDED_BY(mutex_) = false;  // the writer has been called with the end
  bool has_begun_ GUARDED_BY(mutex_);        // or nothing comes before its entries
  std::optional<grpc::Status> abandoned_ GUARDED_BY(mutex_);
  std::optional<grpc::Status> ended_ GUARDED_BY(mutex_);  // what the request's outcome means
};

// The time that tokens of a stream gather when so many streams run, on so many workers: `interval`
// while they are few.
std::chrono::nanoseconds chunk_interval(std::chrono::nanoseconds interval, int streams,
                                        int workers);

}  // namespace lintel
