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

// Adds up in eight chains by index, with the same bits on every machine.
double sum_of(std::span<const double> x);

// exp((x - offset) / divisor), to 2 ulp, into out: [x.size()], which may be x; 0 where x is minus
// infinity. REQUIRES: no x is above offset; divisor > 0.
void exponentials_of(std::span<const float> x, double offset, double divisor,
                     std::span<double> out);
void exponentials_of(std::span<const double> x, double offset, double divisor,
                     std::span<double> out);

// The sum_of() these, none of which is written.
double sum_of_exponentials(std::span<const float> x, double offset, double divisor);
double sum_of_exponentials(std::span<const double> x, double offset, double divisor);

}  // namespace lintel
