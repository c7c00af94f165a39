// StepCost: what a step takes, as far as it decides whether a draft is worth its row.
#pragma once

#include <algorithm>

#include "model/transformer.h"
#include "server/core/clock.h"

namespace lintel {

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

}  // namespace lintel
