// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: a draw is a pure function of (seed, position, index), so a token
// sampled at a position is the same in any batch and each time it is computed again.
#pragma once

#include <array>
#include <cstdint>

namespace lintel {

// Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
// counter: 128 bits, key: 64 bits; returns 128 random bits.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key);

// The draws of one position of one sequence.
struct DrawSource {
  std::uint64_t seed = 0;
  std::int64_t position = 0;  // of the token being sampled

  // Uniform in the open interval (0, 1): an odd multiple of 2^-53. `index` counts the draws made at
  // this position.
  double uniform(std::uint32_t index) const;
};

}  // namespace lintel
