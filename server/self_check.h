// Self-check: does this machine keep promise 1, the same bits whoever shares the batch?
#pragma once

#include "model/transformer.h"

namespace lintel {

// Steps sequences alone and together, in batches of several sizes up to `max_rows`, and compares
// the outputs bit by bit. Takes milliseconds.
bool rows_are_independent(const Transformer& model, int max_rows);

}  // namespace lintel
