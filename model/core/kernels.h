// SPDX-License-Identifier: Apache-2.0
// Kernels of a layer between its matrix products. SIMD by Highway, chosen at run time.
//
// Every function is a pure function of the values it reads: the bits of a row do not depend on how
// many rows there are, on alignment or on the stride (promise 1). They do depend on the instruction
// set. Nothing allocates. None of the pointers needs any alignment.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "model/core/tensor.h"

namespace lintel {

// y = (x - mean) / sqrt(variance + eps) * gain + bias for every row; the biased variance. y may be
// x. x, y: [rows, E]; gain, bias: [E].
void layer_norm(MatrixView<const float> x, std::span<const float> gain, std::span<const float> bias,
                float eps, MatrixView<float> y);

// Activations in place: max(x, 0); and x/2 (1 + erf(x/sqrt(2))), to 5e-7 absolute on [-10, 10].
void relu(std::span<float> x);
void gelu(std::span<float> x);

// Neither NaN nor infinity among x.
bool all_finite(std::span<const float> x);

// The instruction set in use, e.g. "AVX2".
std::string kernel_target();

}  // namespace lintel
