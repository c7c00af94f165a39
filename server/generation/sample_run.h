// SampleRun: one sample of a request on its way through the sequence's positions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/network/transformer.h"
#include "server/base/clock.h"
#include "server/generation/drafter.h"
#include "server/generation/generation.h"
#include "server/generation/request_control.h"
#include "server/generation/stop_matcher.h"
#include "server/generation/work_metrics.h"

namespace lintel {

// What the samples of a request have in common. Constant once made.
struct RequestContext {
  // Makes the start token the prompt where there is nothing else to begin with; throws
  // std::invalid_argument where there is no start token either. most_values as
  // SessionLease::max_values.
  RequestContext(GenerationRequest given_request, const Transformer& transformer,
                 const SequenceState& sequence, std::int64_t most_values);

  GenerationRequest request;
  const Transformer& model;
  StopStrings stop_strings;
  const std::int64_t max_values;  // of the sequence: image, position table, session; 0: unbounded
  const std::int64_t first_position;  // of the prompt: values the sequence held before
  const bool is_bytes;
  const bool uses_penalties;

  // Position of the first new value.
  std::int64_t prompt_end() const {
    return first_position + static_cast<std::int64_t>(request.prompt.size());
  }
  // The value at a position if it is known beforehand, and whether it is the prompt's or given.
  std::optional<std::pair<std::int32_t, ValueSource>> known_value(std::int64_t position) const;
  // Whether the model's output for the value at a position is needed.
  bool needs_output(std::int64_t position) const;
};

// Passes events to a sink and notes when it is full. Used by the one thread that runs the request.
class Outlet {
 public:
  Outlet(TokenSink& sink, RequestControl& control, int num_samples)
      : sink_(sink), control_(control), num_samples_(num_samples) {}

  // Prompt values are read once and go to every sample.
  void emit(TokenEvent event);

  bool full = false;       // a call was refused: the request pauses after this step
  bool delivered = false;  // something since the last on_step_end

 private:
  TokenSink& sink_;
  RequestControl& control_;
  const int num_samples_;
};

// One worker's memory and counters for turning outputs into values.
struct StepContext {
  TimePoint now;
  std::uint64_t prompt_tokens = 0;  // read, since the counters were taken
  std::uint64_t generated_tokens = 0;
  std::uint64_t drafted_tokens = 0;
  std::uint64_t accepted_tokens = 0;
  int most_drafts = 0;  // of a sample in a step; constant
  WorkerMetrics metrics;
  SamplingScratch sampling;
  std::vector<double> log2_probs;  // [V]
  std::vector<std::int32_t> order;
  std::vector<TopValue> top;
};

// The rows of one sequence in one step, handed to its sample after the step.
class OutputRows {
 public:
  OutputRows(MatrixView<const float> outputs, std::size_t first)
      : outputs_(outputs), next_(first) {}
  std::span<const float> next() { return outputs_.row(next_++); }

 private:
  MatrixView<const float> outputs_;
  std::size_t next_;
};

// A sequence is empty or has a pending value, its last. A row feeds the pending value; the value at
// the next position is then known (prompt, given) or drawn from the row's output, and becomes the
// pending one. So a run of known values takes several rows of one step, and a sampled value ends
// the run.
//
// But for drafts: guesses of the values to be drawn may be fed in the same step. Each output is
// then drawn from as it would have been; as long as the guesses are right the next row's output is
// the one wanted, and from the first wrong one on the rows are taken back. A draw depends on the
// output, the seed and the position alone, so the values are the same bit for bit.
class SampleRun {
 public:
  // `context`, `outlet` and `sequence` outlive the run. All samples begin with one shared sequence;
  // the first reads the prompt, the others are forked from it.
  SampleRun(const RequestContext& context, Outlet& outlet, SequenceState& sequence, int index);

  // Takes the first prompt value of an empty sequence, which needs no row.
  void begin(StepContext& step);
  // Whether the prompt is read, but for feeding its last value.
  bool prompt_read() const { return sequence_->num_values() >= context_.prompt_end(); }
  // Goes on with a sequence of its own, a copy of the one `first` has read the prompt into.
  void fork(const SampleRun& first);
  // After the prompt (and fork): takes a given value at position 0; ends where nothing is to be
  // done.
  void begin_new_values(StepContext& step);

  // Rows it could use in this step, at most `limit`. REQUIRES: not finished.
  int rows_wanted(int limit) const;
  // Rows until the prompt is read, at most `limit`.
  int prompt_rows_wanted(int limit) const;
  // Whether the next row's output is sampled: somebody waits for this row.
  bool samples_next() const;

  // Drafts for this step, after its first `rows` rows, the last of which is sampled. Returns
  // whether there can be any.
  bool begin_drafts(int rows);
  // How likely the draft in hand is right, and all before it. REQUIRES: the last call of
  // begin_drafts or take_draft returned true.
  float draft_probability() const { return draft_probability_; }
  // It gets a row. Returns whether there can be one more.
  bool take_draft();

  // Lays out `count` rows, drafts included; returns how many outputs they will have. REQUIRES:
  // count <= rows wanted and drafts.
  int append_rows(int count, std::vector<StepRow>& rows) const;
  // Takes what those rows gave. Returns false when an output is not finite.
  bool absorb(int count, OutputRows outputs, StepContext& step);

  bool finished() const { return reason_.has_value(); }
  bool has_new_values() const { return generated_ > 0; }
  // Ends from outside; text held back is flushed. No effect when finished.
  void finish(FinishReason reason);
  // `started`: when the request joined a batch.
  SampleResult result(TimePoint submitted, std::optional<TimePoint> started, TimePoint now) const;
  // Frees the sequence of its own. After result().
  void release() {
    own_sequence_.reset();
    drafter_.reset();
  }

 private:
  struct HeldToken {
    TokenEvent event;
    std::vector<TopValue> top;
  };

  // A value fed before its turn.
  struct Draft {
    Drafter::Guess guess;
    bool is_known = false;  // given: not a guess
  };

  // Values it may still have.
  std::int64_t values_left() const;
  // Whether a draft is the value that came. Learns from it.
  bool is_right(const Draft& draft, StepContext& step);
  // Looks for a draft to have in hand.
  bool next_draft();

  // Makes a value the pending one. `output`: what the model said about its position; empty when
  // nobody asked or it is the first of the sequence.
  void place(std::int64_t position, std::int32_t value, ValueSource source,
             std::span<const float> output, StepContext& step);
  void place_sampled(const TokenEvent& event);
  // Lets go of held-back tokens but the last `keep`.
  void flush_held(std::size_t keep);
  // num_values: of the sequence, up to the value just placed.
  void check_end(std::int64_t num_values);

  const RequestContext& context_;
  Outlet& outlet_;
  SequenceState* sequence_;
  std::optional<SequenceState> own_sequence_;
  const int index_;
  const std::uint64_t seed_;

  std::unique_ptr<Drafter> drafter_;  // null: no speculation
  int most_drafts_ = 0;               // of a step
  std::vector<Draft> drafts_;         // of this step, taken
  Draft draft_;                       // in hand
  std::int64_t draft_position_ = 0;   // of draft_
  std::int64_t drafts_end_ = 0;       // no draft from this position on
  float draft_probability_ = 0;

  StopMatcher matcher_;
  std::vector<HeldToken> held_;
  std::optional<FinishReason> reason_;
  std::string stop_string_;
  std::int64_t generated_ = 0;  // sampled and given
  std::int64_t given_ = 0;
  std::int64_t drafted_ = 0;
  std::int64_t accepted_ = 0;
  std::optional<TimePoint> first_new_;
  TimePoint last_new_;
};

}  // namespace lintel
