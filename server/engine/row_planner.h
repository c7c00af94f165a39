// SPDX-License-Identifier: Apache-2.0
// RowPlanner: who has how many rows in a worker's next step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "model/transformer.h"
#include "server/core/clock.h"
#include "server/engine/drafter.h"

namespace lintel {

// StepCost: what a step takes, as far as it decides whether a draft is worth its row.

// A step takes fixed + rows * row + sequences * state, in any unit: the weights are read once for
// any number of rows, and so is each sequence's state. Of more rows than few_rows,
// which the reading of the weights leaves time for, each takes more_row.
struct StepCost {
  float fixed = 0.75f;
  float row = 0.25f;
  float state = 0.0f;
  int few_rows = 0;  // 0: all rows take as long
  float more_row = 0.0f;

  float of(int rows, int sequences) const {
    const int few = few_rows == 0 ? rows : std::min(rows, few_rows);
    return fixed + row * static_cast<float>(few) + more_row * static_cast<float>(rows - few) +
           state * static_cast<float>(sequences);
  }
};

// For where nothing was measured: between what machines without tiles were seen to take.
StepCost assumed_step_cost(WeightType type);

// Of this model on this machine: steps of one row, of several of one sequence, of as many
// sequences, and of max_rows of these, each the best of a few; all but a sequence's first row are
// drafts that stay. Takes as long as some thousand rows.
StepCost measure_step_cost(const Transformer& model, int max_rows, const Clock& clock);

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

  const Options options_;
  std::size_t turn_ = 0;  // whose prompt comes first when there are more of them than rows

  // Of the current step.
  std::vector<BatchSlice*> hungry_;  // could use more rows
  std::vector<BatchSlice*> grouped_;
  std::vector<Group> groups_;
  std::vector<BatchSlice*> drafting_;  // have a draft in hand
};

}  // namespace lintel
