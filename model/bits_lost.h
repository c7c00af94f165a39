// What a model loses by the type that its matrices are computed in.
#pragma once

#include "model/transformer.h"

namespace lintel {

// Bits that `narrow` loses for each value against `exact`, the same model in f32: the mean
// Kullback-Leibler divergence of what they expect next, along sequences that `exact` draws.
// Bits/dim of data that the model was made for rise by about as much. A pure function of both;
// takes as long as drawing some hundred values. NaN where one of them is not finite. REQUIRES:
// neither recomputes.
double bits_lost(const Transformer& exact, const Transformer& narrow);

}  // namespace lintel
