// GenerateStream: carries what one Generate request produces from the scheduler to the wire.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "lintel/v1/generation.pb.h"
#include "server/base/clock.h"
#include "server/call/active_calls.h"
#include "server/generation/generation.h"
#include "server/models/served_model.h"
#include "server/scheduler/scheduler.h"
#include "server/stream/response_stream.h"

namespace lintel {

// Between a scheduler that must not wait and a reader that may be slow. Values gather on the
// scheduler's side, without a lock, until a message is due: it is full, the interval has passed, it
// is the first, or a sample is over. Then they go to the outbox, which is written out message by
// message. More than `outbox_tokens` in both pause the request; below half of that it goes on.
class GenerateStream final : public ResponseStream<v1::GenerateResponse>, public TokenSink {
 public:
  struct Options {
    std::chrono::nanoseconds chunk_interval{};  // while few streams run
    int outbox_tokens = 4096;
    int max_tokens_per_message = 0;  // what the client asked for; 0: up to 1024
    int num_samples = 1;
    int top_log2_probs = 0;
    bool deadline_is_calls =
        false;               // kDeadline means the RPC's deadline, not the request's time limit
    std::string session_id;  // empty: one-shot
  };

  // `calls`: this one and all others, which share the machine's time for messages.
  GenerateStream(SharedModel model, const Clock& clock, const ActiveCalls& calls, Options options);

  // The request this stream belongs to. Called once, before the reactor is returned to gRPC: only
  // then are writes completed and cancellations told.
  void attach(RequestHandle handle) EXCLUDES(mutex_);

  bool on_token(const TokenEvent& event) override EXCLUDES(mutex_);
  void on_sample_finish(const SampleResult& result) override EXCLUDES(mutex_);
  void on_step_end() override EXCLUDES(mutex_);
  void on_finish(RequestOutcome outcome) override EXCLUDES(mutex_);

 private:
  // A value, or the end of a sample.
  struct Entry {
    std::int64_t position = 0;
    std::int32_t token = 0;
    int sample = 0;
    ValueSource source = ValueSource::kSampled;
    bool has_log2_prob = false;
    float log2_prob = 0;
    std::vector<TopValue> top;
    bool is_finish = false;
  };

  Next next(v1::GenerateResponse& message, grpc::Status& status) override REQUIRES(mutex_);
  void on_written() override EXCLUDES(mutex_);
  void on_gone() override EXCLUDES(mutex_);
  void on_lost() override EXCLUDES(mutex_);
  ValueUse tokens_used() const override REQUIRES(mutex_) { return used_; }

  // Nothing more is written, and the request ends; then the call does, with `status`, the first one
  // given.
  void abandon(grpc::Status status) EXCLUDES(mutex_);
  // Whether what has gathered is to be written.
  bool due();
  // Moves what has gathered to the outbox.
  void hand_over() REQUIRES(mutex_);
  void fill(v1::GenerateResponse& message) REQUIRES(mutex_);
  void append_value(const Entry& entry, v1::GenerateResponse& message) REQUIRES(mutex_);
  grpc::Status status_of(RequestOutcome outcome) const REQUIRES(mutex_);

  const Clock& clock_;
  const ActiveCalls& calls_;
  const Options options_;
  const std::size_t message_tokens_;  // most values of one message

  // Of the scheduler's calls, which come one at a time.
  std::vector<Entry> gathered_;
  std::size_t gathered_tokens_ = 0;  // values among them
  bool is_first_ = true;             // nothing was handed over yet
  bool sample_ended_ = false;        // gathered
  TimePoint last_handed_over_{};

  SharedModel model_ GUARDED_BY(mutex_);  // until the request is over
  RequestHandle handle_ GUARDED_BY(mutex_);
  std::vector<Entry> outbox_ GUARDED_BY(mutex_);
  std::size_t written_ GUARDED_BY(mutex_) = 0;           // entries at its beginning
  std::deque<SampleResult> results_ GUARDED_BY(mutex_);  // one for each end of a sample
  std::atomic<std::size_t> tokens_{0};  // values to be written; changed under the mutex
  ValueUse used_ GUARDED_BY(mutex_);    // by the samples that have finished
  bool paused_ GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> abandoned_ GUARDED_BY(mutex_);
  std::optional<RequestOutcome> outcome_ GUARDED_BY(mutex_);
  grpc::Status ended_ GUARDED_BY(mutex_);                // what the outcome means
  std::vector<int> chunk_of_sample_ GUARDED_BY(mutex_);  // in the message being filled; -1: none
};

// A result as the wire has it.
void write_result(const SampleResult& result, v1::SampleFinish& wire);

}  // namespace lintel
