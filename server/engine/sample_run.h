// SampleRun: one sample of a request on its way through the sequence's positions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "model/transformer.h"
#include "server/core/clock.h"
#include "server/engine/outlet.h"
#include "server/engine/recent_values.h"
#include "server/engine/request_context.h"
#include "server/engine/sample_drafts.h"
#include "server/engine/speculation.h"
#include "server/engine/step_context.h"
#include "server/engine/stop_gate.h"
#include "server/sessions/value_log.h"

namespace lintel {

// A sequence is empty or has a pending value, its last. A row feeds the pending value; the value at
// the next position is then known (prompt, given) or drawn from the row's output, and becomes the
// pending one. So a run of known values takes several rows of one step, and a sampled value ends
// the run.
//
// But for drafts: guesses of the values to be drawn may be fed in the same step. Each output is
// then drawn from as it would have been; as long as the guesses are right the next row's output is
// the one wanted, and from the first wrong one on the rows are taken back. A draw depends on the
// output, the seed and the position alone, so the values are the same bit for bit.
//
// The state may lag behind the sequence: it lacks values (GenerationRequest::replay), or a window
// was full and it began anew. What the sequence had is then read again as a prompt is, and nothing
// else comes of it.
class SampleRun final : public DraftSource {
 public:
  // `context`, `outlet`, `sequence` and `log` outlive the run. All samples begin with one shared
  // sequence; the first reads the prompt, the others are forked from it. log: is told each value
  // that the sequence takes in this call, but for the replay; null: nobody is.
  SampleRun(const RequestContext& context, Outlet& outlet, SequenceState& sequence, int index,
            ValueLog* log);

  // Before begin(): the sequence has the first `cached` values of the prompt, which nobody has
  // read, and the prompt is read up to its value `keep_at` in one step and on in another (0: it
  // need not).
  void begin_behind(std::int64_t cached, std::int64_t keep_at);
  // A step of its prompt ends where it has so many values; 0: it does not.
  void stop_at(std::int64_t keep_at) { keep_at_ = keep_at; }
  // Takes the values that need no row: those that a window skips, and the first one of an empty
  // sequence, if it is the replay's or prompt's. False: the outlet is full of an echo, and it is to
  // be called again where it has room.
  bool begin(StepContext& step);
  // Whether the prompt is read, but for feeding its last value.
  bool prompt_read() const { return sequence_->next_position() >= context_.prompt_end(); }
  // Goes on with a sequence of its own, a copy of the one `first` has read the prompt into.
  void fork(const SampleRun& first);
  // After the prompt (and fork): takes a given value at position 0; ends where nothing is to be
  // done.
  void begin_new_values(StepContext& step);

  // Of a particle: known values have weighed it, and a value is drawn next, for which it waits
  // until all particles have come as far.
  bool waits() const { return waits_; }
  void go_on() { waits_ = false; }
  // Becomes what the particle `other` is. REQUIRES: both wait.
  void become(const SampleRun& other);
  // Values of the sequence.
  std::int64_t num_values() const { return num_values_; }

  // Rows it could use in this step, at most `limit`. REQUIRES: neither finished nor waiting.
  int rows_wanted(int limit) const;
  // Rows until the prompt is read, at most `limit`.
  int prompt_rows_wanted(int limit) const;
  // Whether the next row's output is sampled: the client waits for this row.
  bool samples_next() const { return !known(sequence_->next_position()); }

  bool begin_drafts(int rows) override;
  float draft_probability() const override { return drafts_.probability(); }
  bool take_draft() override { return drafts_.take(); }

  // Lays out `count` rows, drafts included; returns how many outputs they will have. REQUIRES:
  // count <= rows wanted and drafts.
  int append_rows(int count, std::vector<StepRow>& rows) const;
  // Takes what those rows gave. Returns false when an output is not finite, or what was drawn
  // before cannot be the request's.
  bool absorb(int count, OutputRows outputs, StepContext& step);

  bool finished() const { return reason_.has_value(); }
  bool has_new_values() const { return generated_ > 0; }
  // Ends from outside; text held back is flushed. No effect when finished.
  void finish(FinishReason reason);
  // `started`: when the request joined a batch.
  SampleResult result(TimePoint submitted, std::optional<TimePoint> started, TimePoint now) const;
  // For when it has no rows in the next step.
  void settle() {
    if (sequence_ != nullptr) sequence_->settle();
  }
  // Is done with its sequence, and frees one of its own. After result().
  void release() {
    if (sequence_ != nullptr) std::exchange(sequence_, nullptr)->settle();
    own_sequence_.reset();
    drafts_.release();
  }

 private:
  // What comes at a position.
  struct Placed {
    std::int64_t position = 0;
    std::int32_t value = 0;
    ValueSource source = ValueSource::kSampled;
  };

  // Values its state may still take; up to where it begins anew.
  std::int64_t values_left() const;
  // Of the first `left` values from now on, those that it may take.
  std::int64_t bounded(std::int64_t left) const;

  // As RequestContext::known_value, and of what the sequence has already.
  std::optional<std::pair<std::int32_t, ValueSource>> known(std::int64_t position) const;
  bool needs_output(std::int64_t position) const {
    return position >= num_values_ && context_.needs_output(position);
  }
  // A value that the sequence has: of the replay, or recent.
  std::int32_t past(std::int64_t position) const;
  // What would have come of the values that were not read.
  void pass_cached();
  // The counts of the values that penalties are for.
  std::span<const std::uint32_t> penalty_counts() const;
  void begin_first(StepContext& step);
  void begin_penalty_window();
  // Begins the ring of recent values, and the state where the prompt's last values are read.
  void begin_window(StepContext& step);
  // Values of the prompt up to skip_end_, where the state begins anew, are the sequence's without
  // being read. False: the outlet is full.
  bool skip(StepContext& step);
  // The state goes on from the value at `origin` of those that the sequence has.
  void begin_anew(std::int64_t origin, StepContext& step);

  // The walk's steps, for each position in turn. `output`: what the model said about the position;
  // empty where needs_output says so, and for the first of the sequence.
  //
  // The known value, or one drawn from the output.
  Placed decide(std::int64_t position, std::span<const float> output, StepContext& step) const;
  // Makes a value the pending one: notes it in the sequence, counts it, emits it, and ends the
  // sample if it was the last.
  void place(const Placed& placed, std::span<const float> output, StepContext& step);
  void note(const Placed& placed);
  // The same for a value that the sequence had before, and all that becomes of it.
  void place_past(const Placed& placed, StepContext& step);
  void count(const Placed& placed, StepContext& step);
  void emit(const Placed& placed, std::span<const float> output, StepContext& step);
  // num_values: of the sequence, up to the value just placed.
  void check_end(std::int64_t num_values);
  // Whether draft i is the pending value.
  bool accept(int i, StepContext& step);

  const RequestContext& context_;
  Outlet& outlet_;
  SequenceState* sequence_;
  std::optional<SequenceState> own_sequence_;
  const int index_;
  ValueLog* const log_;
  const std::uint64_t seed_;

  std::int64_t num_values_;               // of the sequence: the state may have fewer
  std::int64_t cached_ = 0;               // of the prompt
  std::int64_t skipped_ = 0;              // of the prompt, in a window
  std::optional<std::int64_t> skip_end_;  // up to there they are to be; none: they are
  bool has_begun_ = false;
  std::int64_t keep_at_ = 0;
  RecentValues recent_;         // with a window: those a state may begin anew from
  RecentCounts recent_counts_;  // with a window of penalties
  SampleDrafts drafts_;
  StopGate gate_;
  std::optional<FinishReason> reason_;
  bool waits_ = false;
  std::int64_t generated_ = 0;  // sampled and given
  std::int64_t given_ = 0;
  std::int64_t replayed_ = 0;
  std::int64_t drafted_ = 0;
  std::int64_t accepted_ = 0;
  std::optional<TimePoint> first_new_;
  TimePoint last_new_;
};

}  // namespace lintel
