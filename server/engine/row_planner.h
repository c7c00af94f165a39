// SPDX-License-Identifier: Apache-2.0
// RowPlanner: who has how many rows in a worker's next step.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
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
  const void* caller = nullptr;  // whose it is: callers share rows for prompts
  Sequence* sample = nullptr;
  DraftSource* drafts = nullptr;  // the sample's
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
  struct Options {
    int max_rows = 64;           // of a step, where a client waits for one
    int prefill_rows = 32;       // among them, for prompts
    int prompt_rows = 0;         // of a step for which no client waits; 0: max_rows
    int draft_rows = 0;          // of a step that has drafts, those included; 0: no drafts
    bool drafts_always = false;  // however unlikely they are to be right
    StepCost cost;
  };

  explicit RowPlanner(const Options& options);
  void set_cost(const StepCost& cost) { options_.cost = cost; }

  // Sets `rows` of each run. REQUIRES: not more than max_rows runs decode, and each wants a row.
  //
  // Every run that decodes has its row. Prompts, and runs of given tokens, share the rest of the
  // step, of which prefill_rows at most when a client waits for a row to be sampled, and as many
  // at least when none does: callers equally, and those of a caller its share; each step another
  // one comes first. DraftTokens of what the samples will draw take rows that are left, the most
  // likely first, as long as they are worth it.
  void plan(std::vector<BatchSlice>& runs);

 private:
  // Hungry runs of one caller.
  struct Group {
    const void* caller = nullptr;
    std::size_t first = 0;  // in hungry_
    std::size_t size = 0;
  };

  void grant_rows(std::vector<BatchSlice>& runs);
  // Puts the hungry runs of each caller side by side, and those first that come first this time.
  void group_hungry();
  // Grants runs of a caller about as many rows each; returns how many it is left with.
  int grant(Group& group, int rows);
  void grant_drafts(std::vector<BatchSlice>& runs);

  Options options_;
  std::size_t turn_ = 0;  // whose prompt comes first when there are more of them than rows

  // Lists of the current step.
  std::vector<BatchSlice*> hungry_;  // could use more rows
  std::vector<BatchSlice*> grouped_;
  std::vector<Group> groups_;
  std::vector<BatchSlice*> drafting_;  // have a draft in hand
};

}  // namespace lintel
