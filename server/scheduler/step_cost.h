// StepCost: what a step takes, as far as it decides whether a draft is worth its row.
#pragma once

#include "model/network/transformer.h"
#include "server/base/clock.h"

namespace lintel {

// A step takes fixed + rows * row + sequences * state, in any unit: the weights are read once
// whatever the rows, and each sequence's state once whatever its rows.
struct StepCost {
  float fixed = 0.75f;
  float row = 0.25f;
  float state = 0.0f;

  float of(int rows, int sequences) const {
    return fixed + row * static_cast<float>(rows) + state * static_cast<float>(sequences);
  }
};

// For where nothing was measured: between what machines without tiles were seen to take.
StepCost assumed_step_cost(WeightType type);

// Of this model on this machine: steps of one row, of several of one sequence, and of as many
// sequences, each the best of a few. Takes as long as some hundred rows.
StepCost measure_step_cost(const Transformer& model, int max_rows, const Clock& clock);

}  // namespace lintel
