// ScoreStream: the sequences of one Score request, a window of them in the scheduler at a time,
// their results written in the order of the request.
#pragma once

#include <grpcpp/alarm.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "lintel/v1/generation.pb.h"
#include "server/generation/generation.h"
#include "server/models/served_model.h"
#include "server/requests/score_checks.h"
#include "server/scheduler/scheduler.h"
#include "server/sessions/session_store.h"
#include "server/stream/response_stream.h"

namespace lintel {

// A sequence joins when it is less than `window` ahead of what was written, so a slow reader holds
// up its own request only, and memory is bounded. A queue that is full when the request arrives
// refuses it; one that fills up later is waited for.
class ScoreStream final : public ResponseStream<v1::ScoreResponse> {
 public:
  struct Options {
    std::size_t window = 1;
    int max_queued_requests = 0;       // for the refusal's text
    std::size_t max_queued_bytes = 0;  // the same
    std::size_t held_bytes = 0;        // of the call, for each sequence
    std::shared_ptr<TokenAllowance> allowance;
    Owner owner;  // of the memory
    std::optional<TimePoint> deadline;
  };

  ScoreStream(SharedModel model, SessionStore& store, ScoreSequences sequences,
              const Options& options);

  // Submits what the window takes. Not OK when the first sequence found no place: nothing was
  // submitted and the stream has to be refused.
  grpc::Status begin() EXCLUDES(mutex_);

 private:
  class SequenceSink;

  // A sequence from its submission until it is written.
  struct Slot {
    RequestHandle handle;  // none yet while it is being submitted
    std::vector<float> log2_probs;
    bool done = false;
  };

  // Submits one sequence. Returns what stood in the way, and sets `full` when that may pass.
  grpc::Status submit(std::size_t index, RequestHandle* handle, bool* full) EXCLUDES(mutex_);
  // Submits while the window and the scheduler have room; tries again later when they have not.
  // Returns the refusal of the first sequence.
  grpc::Status advance() EXCLUDES(mutex_);
  // After submit(): keeps the handle, or sees to it that the sequence is tried again or the call
  // fails. Returns whether the next one may be submitted.
  bool settle(std::size_t index, grpc::Status status, bool full, const RequestHandle& handle)
      EXCLUDES(mutex_);
  grpc::Status set_alarm();  // for try_again()
  void try_again() EXCLUDES(mutex_);
  void sequence_done(std::size_t index, std::vector<float> log2_probs, RequestOutcome outcome)
      EXCLUDES(mutex_);
  // Ends everything with `status`; what runs is cancelled.
  void fail(grpc::Status status) EXCLUDES(mutex_);

  Next next(v1::ScoreResponse& message, grpc::Status& status) override REQUIRES(mutex_);
  void on_written() override { advance(); }
  void on_gone() override;
  void on_lost() override;
  ValueUse tokens_used() const override REQUIRES(mutex_) { return used_; }

  const SharedModel model_;
  SessionStore& store_;
  const ScoreSequences sequences_;
  const Options options_;

  std::deque<Slot> slots_ GUARDED_BY(mutex_);  // the first is next_write_'s; at most the window
  std::size_t next_submit_ GUARDED_BY(mutex_) = 0;
  std::size_t next_write_ GUARDED_BY(mutex_) = 0;
  std::size_t running_ GUARDED_BY(mutex_) = 0;
  ValueUse used_ GUARDED_BY(mutex_);            // by the sequences that were submitted
  bool submitting_ GUARDED_BY(mutex_) = false;  // a thread is in advance()
  bool alarm_set_ GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> failure_ GUARDED_BY(mutex_);
  grpc::Alarm alarm_;  // set by one thread at a time: alarm_set_
};

// The response of a sequence; bits/dim is minus the mean of the log2-probabilities, summed in
// double.
void write_score(std::size_t index, const std::vector<float>& log2_probs, v1::ScoreResponse& wire);

}  // namespace lintel
