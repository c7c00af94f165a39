// SPDX-License-Identifier: Apache-2.0
// Exponentials of whole distributions, in double. SIMD by Highway, chosen at run time.
//
// As in kernels.h: pure functions; the bits depend on the values read and the instruction set, not
// on alignment. Nothing allocates.
#pragma once

#include <span>

namespace lintel {

// The largest of x. REQUIRES: x is not empty; no NaN.
double largest_of(std::span<const double> x);
float largest_of(std::span<const float> x);

// In eight chains by index, the same bits on every machine.
double sum_of(std::span<const double> x);

// In place: exp((x - offset) / divisor), to 2 ulp; 0 where x is minus infinity. REQUIRES: no x is
// above offset; divisor > 0.
void exponentials(std::span<double> x, double offset, double divisor);
// The same of floats, into out: [x.size()].
void exponentials_of(std::span<const float> x, double offset, double divisor,
                     std::span<double> out);

// The sum of exp(x - offset). REQUIRES: no x is above offset.
double sum_of_exponentials(std::span<const float> x, double offset);

}  // namespace lintel
