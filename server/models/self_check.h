// Self-check of batch invariance (promise 1): the same bits in any batch on this machine?
#pragma once

#include <functional>
#include <span>

#include "model/transformer.h"

namespace lintel {

// Steps sequences alone and together, in batches of several sizes up to `max_rows` (at most 256),
// and one sequence's tokens a few at a time, and compares the outputs bit by bit. Takes as long as
// some hundred rows.
bool rows_are_independent(const Transformer& model, int max_rows);

// The same of a step that is not the model's own: Transformer::step.
using StepFunction =
    std::function<MatrixView<const float>(std::span<const StepRow> rows, Workspace& workspace)>;
bool rows_are_independent(const Transformer& model, int max_rows, const StepFunction& step);

}  // namespace lintel
