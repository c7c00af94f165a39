// SPDX-License-Identifier: Apache-2.0
// RowPlanner: who has how many rows in a worker's next step.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "model/transformer.h"
#include "server/core/clock.h"
#include "server/engine/drafter.h"

namespace lintel {

// StepCost: what a step takes, as far as it decides whether a draft is worth its row.

// A step takes fixed + rows * row + sequences * state, in any unit: the weights are read once for
// any number of rows, and so is each sequence's state. Rows beyond few_rows, which the reading of
// the weights leaves time for, take more_row each.
struct StepCost {
  float fixed = 0.75f;
  float row = 0.25f;
  float state = 0.0f;
  int few_rows = 0;  // 0: all rows take as long
  float more_row = 0.0f;
  // A draft token of the model's draft head, and of each sequence beyond the first one more.
  float draft = 0.0f;
  float more_draft = 0.0f;

  float of(int rows, int sequences) const {
    const int few = few_rows == 0 ? rows : std::min(rows, few_rows);
    return fixed + row * static_cast<float>(few) + more_row * static_cast<float>(rows - few) +
           state * static_cast<float>(sequences);
  }
};

// The cost where nothing was measured: between the costs seen on machines without tiles.
StepCost assumed_step_cost(WeightType type);

// Measures this model on this machine: steps of one row, of several of one sequence, of as many
// sequences, and of max_rows of these, each the best of a few; all but a sequence's first row are
// drafts that stay. For a draft head, a token of one sequence, and of as many. Takes as long as
// some thousand rows, for a large model 27. The team, if there is one, shares the steps. Ends
// before the next step when `ends` is true; the result means nothing then.
StepCost measure_step_cost(
    const Transformer& model, int max_rows, const Clock& clock, StepThreadPool* team = nullptr,
    const std::function<bool()>& ends = [] { return false; });

// DraftHeadPlan: how many tokens ahead a model's draft head is asked for.

// Weighs what the head costs against how often it was right for a worker's sequences. Now and then
// it is asked for a token more than pays, as it may have become right. Used by one thread at a
// time.
class DraftHeadPlan {
 public:
  static constexpr int kMostAhead = 4;

  // most_rows: of a step with drafts. always: the head is asked for kMostAhead tokens after each
  // step, for tests.
  DraftHeadPlan(const StepCost& cost, int most_rows, bool always)
      : cost_(cost), most_rows_(most_rows), is_always_(always) {}

  void set_cost(const StepCost& cost) { cost_ = cost; }
  // The number of tokens to ask for after a step of so many sequences. 0: the head is not asked.
  int ahead(int sequences);
  // True if the head is to read the end of a prompt: with as many sequences as lately it is asked.
  bool reads_prompts() const;
  // Learns whether draft token i of a sequence, from 0, was right, given that those before it were.
  void learn(int i, bool right);
  // The probability that draft token i is right, given that those before it are.
  float probability(int i) const;

 private:
  // Drafts and how many of them were right, older ones weighing less. The first are a belief.
  struct Record {
    float drafts = 4.0f;
    float right = 2.8f;
  };

  int most(int sequences) const { return std::min(most_rows_ / sequences - 1, kMostAhead); }
  // The number of tokens ahead that pays, if so many are right as were so far.
  int best(int sequences) const;

  StepCost cost_;
  const int most_rows_;
  const bool is_always_;
  std::array<Record, kMostAhead> records_;
  int steps_ = 0;      // since it was last asked for a token more
  int sequences_ = 1;  // of the last step that had some
};

class SequenceGroup;
class Sequence;

// Consecutive rows of one sequence in a step.
struct BatchSlice {
  SequenceGroup* request = nullptr;
  const void* caller = nullptr;  // whose it is
  Sequence* sample = nullptr;
  DraftSource* drafts = nullptr;  // the sample's
  std::int64_t read = 0;          // tokens that its sample has had read so far
  int wanted = 0;                 // rows it could use
  bool is_decoding = false;       // has a row in every step; reading a prompt waits for a share
  bool samples_next = false;      // its next row's output is sampled: its client waits for it
  int rows = 0;                   // granted, drafts included
  std::size_t first_output = 0;
  std::size_t first_hidden = 0;  // of the step's rows that an output or a draft head needs
};

// Knows nothing of models and requests but what a BatchSlice says. Used by one thread at a time.
class RowPlanner {
 public:
  // The speed that answers keep while prompts are read.
  static constexpr float kSpeedKept = 0.7f;

  struct Options {
    int max_rows = 64;           // of a step, where a client waits for one
    int prefill_rows = 32;       // among them, for prompts; 0: as many as keep kSpeedKept
    int prompt_rows = 0;         // of a step for which no client waits; 0: max_rows
    int draft_rows = 0;          // of a step that has drafts, those included; 0: no drafts
    bool drafts_always = false;  // however unlikely they are to be right
    StepCost cost;
  };

  explicit RowPlanner(const Options& options);
  void set_cost(const StepCost& cost);

  // Sets `rows` of each run. REQUIRES: not more than max_rows runs decode, and each wants a row.
  //
  // Every run that decodes has its row. Prompts, and runs of given tokens, have the rest of the
  // step: as many as at least prompt_rows when no client waits for a row to be sampled, else
  // prefill_rows, or, where that is 0, as many as the step has time for. A row that it has no time
  // for waits until the time that steps leave adds up to it.
  //
  // The prompt that has had fewest tokens read goes first. Of each kTurns rows one goes to each of
  // the kWaiting others that have waited longest, one of each caller before a second one of any; a
  // prompt that wants fewer leaves its rows to the others.
  //
  // DraftTokens of what the samples will draw take rows that are left, the most likely first, as
  // long as they are worth it to a step without prompts.
  void plan(std::vector<BatchSlice>& runs);
  // Learns how long the step took that was planned last, and from it how long rows take now: those
  // of prompts longer the longer the prompt, where the model attends to all of it. 0: not measured.
  void learn(float seconds);

 private:
  static constexpr std::size_t kTurns = 8;
  static constexpr std::size_t kWaiting = 4;

  void grant_rows(std::vector<BatchSlice>& runs);
  // The time that prompts may take of this step beside answers, in units of the cost.
  float time_beside();
  // Sorts hungry_, and finds those that wait.
  void order_hungry();
  // Grants prompts at most `rows`, as long as these take no more than `time`.
  void share_rows(int rows, int decoding, float time);
  void grant_drafts(std::vector<BatchSlice>& runs);

  Options options_;
  std::size_t turn_ = 0;  // of the next row of a prompt
  float spare_ = 0.0f;    // time that steps had left for prompts

  // Learned: seconds of a unit of the cost (0: nothing yet), and how much longer a row of a prompt
  // takes than the cost says.
  float unit_ = 0.0f;
  float factor_ = 1.0f;
  std::uint32_t steps_beside_ = 0;  // with prompts and answers

  // Time of the current step, in units of the cost: of rows for prompts, and of all others.
  float of_prompts_ = 0.0f;
  float of_others_ = 0.0f;

  // Lists of the current step.
  std::vector<BatchSlice*> hungry_;    // could use more rows: which goes first comes first
  std::vector<BatchSlice*> waiting_;   // others that have turns, at most kWaiting
  std::vector<BatchSlice*> drafting_;  // have a draft in hand
};

}  // namespace lintel
