// SPDX-License-Identifier: Apache-2.0
// Sequence: one sample of a request on its way through the sequence's positions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/core/tensor.h"
#include "model/sampling/head.h"
#include "model/tokenizer/stop_matcher.h"
#include "model/transformer.h"
#include "server/core/clock.h"
#include "server/engine/drafter.h"
#include "server/engine/grammar_constraint.h"
#include "server/engine/reasoning_budget.h"
#include "server/engine/request.h"
#include "server/engine/token_sink.h"
#include "server/engine/work_metrics.h"
#include "server/sessions/session_history.h"

namespace lintel {

// StepContext: what a worker's step lends the samples that take tokens from its outputs.

// One worker's memory and counters for turning outputs into tokens.
struct StepContext {
  TimePoint now;
  std::uint64_t prompt_tokens = 0;  // read, since the counters were taken
  std::uint64_t generated_tokens = 0;
  std::uint64_t drafted_tokens = 0;
  std::uint64_t accepted_tokens = 0;
  int most_drafts = 0;                  // of a sample in a step; constant
  DraftHeadPlan* draft_plan = nullptr;  // null: the model has no draft head, or is not to draft
  // Work that masks of grammars may still take in this step, and that of one row (constant).
  std::size_t mask_budget_left = 0;
  std::size_t row_mask_budget = 0;
  std::uint64_t empty_masks = 0;  // since the counters were taken
  WorkerMetrics metrics;
  SamplingScratch sampling;
  grammar::MaskWords mask;
  grammar::MaskWords unending_mask;
  std::vector<double> log2_probs;  // [V]
  std::vector<std::int32_t> order;
  std::vector<TopToken> top;
};

// The reason why a request's grammar ends it: kGrammarWork or kNoToken.
struct GrammarFailure {
  RequestOutcome outcome;
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

// StopCriteria: ends a sample at stop tokens and strings, and passes its other tokens on.

// Tokens that may turn out to be the beginning of an excluded stop string are held back until that
// is known. A token in whose middle the stop string begins comes out cut to the bytes before it.
// `tail` is the sequence's generated_tail: what a match may begin in. Used by the one thread that
// runs the request.
class StopCriteria {
 public:
  // The references outlive the object.
  StopCriteria(const RequestContext& context, SampleEvents& outlet)
      : context_(context), outlet_(outlet), matcher_(context.stop_strings) {}

  // Takes the text that the sequence begins with, in place of what there was.
  void replay(const std::string& tail);
  // Takes the next sampled token, and its bytes into the tail. Returns why the sample ends, if it
  // does. may_match: false before min_tokens: a stop string that this token completes is ignored.
  std::optional<FinishReason> pass(TokenEvent event, bool may_match, std::string& tail);
  // A token that was not sampled comes next: nothing is held back, and no match reaches across it.
  void interrupt(std::string& tail);
  // Lets go of held text, for nothing comes any more that could complete a match.
  void flush() { flush(0); }

  const std::string& stop_string() const { return stop_string_; }  // the match; empty: none
  std::int32_t cut_bytes() const { return cut_bytes_; }  // of the last token that it let go
  // Tokens that it does not let go: the text of the match.
  const std::vector<std::int32_t>& omitted() const { return omitted_; }

 private:
  // Lets go of held-back tokens but those with any of the last `keep` bytes.
  void flush(std::size_t keep);
  // Lets go of held-back tokens but for the last `bytes` bytes, which are dropped.
  void drop(std::size_t bytes);
  void emit(const TokenEvent& event);

  const RequestContext& context_;
  SampleEvents& outlet_;
  StopMatcher matcher_;
  std::vector<HeldToken> held_;
  std::string stop_string_;
  std::vector<std::int32_t> omitted_;
  std::int32_t cut_bytes_ = 0;
};

// A sequence is empty or has a pending token, its last. A row feeds the pending token; the token at
// the next position is then known (prompt, given) or drawn from the row's output, and becomes the
// pending one. So a run of known tokens takes several rows of one step, and a sampled token ends
// the run.
//
// Draft tokens, however, may be fed in the same step, before they are drawn. Each output is then
// drawn from as it would have been; as long as the drafts are right the next row's output is the
// one wanted, and from the first wrong one on the rows are taken back. A draw depends on the
// output, the seed and the position alone, so the tokens are the same bit for bit.
//
// The state may lag behind the sequence: it lacks tokens (GenerationRequest::replay), or a window
// was full and it was reset. Tokens of the sequence are then read again as a prompt is, and nothing
// else comes of it.
class Sequence final : public DraftSource {
 public:
  // `context`, `outlet`, `sequence` and `log` outlive the run. All samples begin with one shared
  // sequence; the first reads the prompt, the others are forked from it. log: receives each token
  // that the sequence takes in this call, but for the replay; null: no log.
  Sequence(const RequestContext& context, SampleEvents& outlet, SequenceState& sequence, int index,
           TokenLog* log);

  // Takes the first `cached` tokens of the prompt as the sequence's without reading them. The
  // prompt is read up to its token `keep_at` in one step and on in another (0: it need not).
  // REQUIRES: called before begin().
  void begin_behind(std::int64_t cached, std::int64_t keep_at);
  // A step of its prompt ends where it has so many tokens; 0: it does not.
  void stop_at(std::int64_t keep_at) { keep_at_ = keep_at; }
  // Takes the tokens that need no row: those that a window skips, and the first one of an empty
  // sequence, if it is the replay's or prompt's. False: the outlet is full of an echo, and it is to
  // be called again where it has room.
  bool begin(StepContext& step);
  // True if the prompt is read, but for feeding its last token.
  bool prompt_read() const { return sequence_->next_position() >= context_.prompt_end(); }
  // Continues with a sequence of its own, a copy of the one `first` has read the prompt into.
  void fork(const Sequence& first);
  // Begins the new tokens after the prompt (and fork): takes a given token at position 0; ends if
  // there is nothing to do.
  void begin_new_tokens(StepContext& step);

  // True if a particle waits: known tokens have weighed it, and a token is drawn next once all
  // particles have come as far.
  bool waits() const { return waits_; }
  void go_on() { waits_ = false; }
  // Becomes what the particle `other` is. REQUIRES: both wait.
  void become(const Sequence& other);
  // Tokens of the sequence.
  std::int64_t num_tokens() const { return num_tokens_; }

  // Makes the mask of the next new token, if it needs one, within the step's budget. Where the mask
  // is not ready then, the row waits: rows_wanted() is 0.
  void prepare_mask(StepContext& step);
  // Rows it could use in this step, at most `limit`; 0: it waits for its mask. REQUIRES: neither
  // finished nor waiting.
  int rows_wanted(int limit) const;
  // Rows until the prompt is read, at most `limit`.
  int prompt_rows_wanted(int limit) const;
  // Tokens that were fed as they were known, past and given ones included.
  std::int64_t num_read() const { return read_; }
  // True if the next row's output is sampled: the client waits for this row.
  bool samples_next() const { return !known(sequence_->next_position()); }

  bool begin_drafts(int rows) override;
  float draft_probability() const override { return drafts_.probability(); }
  bool take_draft() override { return drafts_.take(); }

  // Lays out `count` rows, drafts included. REQUIRES: count <= rows wanted and drafts.
  void append_rows(int count, std::vector<BatchRow>& rows) const;
  // True if draw_ahead() may be called for such a run: of one row, whose output is drawn from and
  // depends on nothing that absorb() changes before.
  bool can_draw_ahead(int count) const;
  // Draws from the output of the step, which absorb() then takes. Threads: any, one for a sequence,
  // between the step and absorb().
  void draw_ahead(std::span<const float> output, SamplingScratch& scratch);
  // Takes what those rows gave. Returns false when an output is not finite, or what was drawn
  // before cannot be the request's. Throws GrammarFailure when its grammar permits no token.
  bool absorb(int count, OutputRows outputs, StepContext& step);

  // Called before each step that it has rows in. plan: null: there is no draft head.
  void begin_step(const DraftHeadPlan* plan);
  // True if drafts of a draft head would be fed. REQUIRES: called after absorb().
  bool takes_head_drafts() const {
    return drafts_.has_begun() && !finished() && tokens_left() > 1 &&
           !known(sequence_->next_position());
  }
  // Calls SampleDrafts::ask_head after absorb(), for no drafts where none would be fed.
  bool ask_head(std::size_t first_hidden, int ahead, const DraftHeadPlan& plan,
                DraftRequest& request) {
    return !finished() &&
           drafts_.ask_head(first_hidden, takes_head_drafts() ? ahead : 0, plan, request);
  }
  void stop_head() { drafts_.stop_head(); }

  bool finished() const { return reason_.has_value(); }
  bool has_new_tokens() const { return generated_ > 0; }
  // Ends from outside; text held back is flushed. No effect when finished.
  void finish(FinishReason reason);
  // `started`: when the request joined a batch.
  SampleResult result(TimePoint submitted, std::optional<TimePoint> started, TimePoint now) const;
  // Settles the sequence, for a next step in which it has no rows.
  void settle() {
    if (sequence_ != nullptr) sequence_->settle();
  }
  // Lets go of its sequence, and frees one of its own. REQUIRES: called after result().
  void release() {
    if (sequence_ != nullptr) std::exchange(sequence_, nullptr)->settle();
    own_sequence_.reset();
    constraint_.reset();
    drafts_.release();
  }

 private:
  // A token at a position.
  struct Placed {
    std::int64_t position = 0;
    std::int32_t token = 0;
    TokenSource source = TokenSource::kSampled;
  };

  // Tokens its state may still take; up to its next reset.
  std::int64_t tokens_left() const;
  // The number of tokens that it may take of the next `left` ones.
  std::int64_t bounded(std::int64_t left) const;

  // Like RequestContext::known_token, and also for tokens that the sequence has already.
  std::optional<std::pair<std::int32_t, TokenSource>> known(std::int64_t position) const;
  bool needs_output(std::int64_t position) const {
    return position >= num_tokens_ && context_.needs_output(position);
  }
  // True if the draft head reads the row before this token of the prompt: not where the sequence
  // had it before.
  bool is_read_by_head(std::int64_t position) const;
  // A token that the sequence has: of the replay, or recent.
  std::int32_t past(std::int64_t position) const;
  // Does what reading the cached tokens would have done.
  void pass_cached();
  // The counts of the tokens that penalties are for.
  std::span<const std::uint32_t> penalty_counts(SamplingScratch& scratch) const;
  void begin_first(StepContext& step);
  void begin_penalty_window();
  // Begins the ring of recent tokens, and the state where the prompt's last tokens are read.
  void begin_window(StepContext& step);
  // Tokens of the prompt up to skip_end_, where the state is reset, are the sequence's without
  // being read. False: the outlet is full.
  bool skip(StepContext& step);
  // Resets the state, which continues from the token at `origin` of those that the sequence has.
  void begin_anew(std::int64_t origin, StepContext& step);

  // The walk's steps, for each position in turn. `output`: what the model said about the position;
  // empty where needs_output says so, and for the first of the sequence.
  //
  // The known token, or one drawn from the output.
  Placed decide(std::int64_t position, std::span<const float> output, StepContext& step);
  std::int32_t draw(std::int64_t position, std::span<const float> output, StepContext& step);
  // The position of the token that is drawn after a step of one row, before absorb().
  std::int64_t position_to_draw() const;
  std::int32_t sample(std::int64_t position, std::span<const float> output,
                      std::span<const std::uint64_t> allowed, SamplingScratch& scratch) const;
  // The tokens of `allowed` (empty: all) that do not stop the sample while it has fewer than
  // StopOptions::min_tokens: in `memory`, or the request's mask. All of `allowed` if there are no
  // others.
  std::span<const std::uint64_t> without_stops(std::span<const std::uint64_t> allowed,
                                               grammar::MaskWords& memory) const;
  // True if the mask is made for a token that is sampled after `rows` known ones.
  bool has_mask_after(int rows) const;
  // Makes a token the pending one: notes it in the sequence, counts it, emits it, and ends the
  // sample if it was the last.
  void place(const Placed& placed, std::span<const float> output, StepContext& step);
  void note(const Placed& placed);
  // The same for a token that the sequence had before, and all that becomes of it.
  void place_past(const Placed& placed, StepContext& step);
  void count(const Placed& placed, StepContext& step);
  void emit(const Placed& placed, std::span<const float> output, StepContext& step);
  // num_tokens: of the sequence, up to the token just placed.
  void check_end(std::int64_t num_tokens);
  // True if draft i is the pending token.
  bool accept(int i, StepContext& step);

  const RequestContext& context_;
  SampleEvents& outlet_;
  SequenceState* sequence_;
  std::optional<SequenceState> own_sequence_;
  const int index_;
  TokenLog* const log_;
  const std::uint64_t seed_;

  std::int64_t num_tokens_;               // of the sequence: the state may have fewer
  std::int64_t read_ = 0;                 // see num_read()
  std::int64_t cached_ = 0;               // of the prompt
  std::int64_t skipped_ = 0;              // of the prompt, in a window
  std::optional<std::int64_t> skip_end_;  // up to there they are to be; none: they are
  bool has_begun_ = false;
  std::int64_t keep_at_ = 0;
  RecentTokens recent_;         // with a window: those a state reads again after a reset
  RecentCounts recent_counts_;  // with a window of penalties
  SampleDrafts drafts_;
  std::optional<ConstraintState> constraint_;  // none: any token may come
  std::optional<ReasoningBudgetState> reasoning_;
  StopCriteria stops_;
  std::optional<std::int32_t> drawn_ahead_;
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
