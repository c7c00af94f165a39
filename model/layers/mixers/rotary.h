// SPDX-License-Identifier: Apache-2.0
// Rotary: rotary positions of heads (Su et al. 2021).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lintel {

// Pairs (i, i + R/2), i < R/2, of a head's first R values turn by t theta^(-2i/R). Angles are
// formed in double.
class Rotary {
 public:
  // rotated: R, even; 0: nothing turns.
  Rotary(std::size_t rotated, double theta) : frequencies_(rotated / 2) {
    for (std::size_t i = 0; i < frequencies_.size(); ++i) {
      frequencies_[i] =
          std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotated));
    }
  }

  std::size_t rotated() const { return 2 * frequencies_.size(); }

  // turns: [R] cosine and sine of each pair at the position.
  void list_turns(std::int64_t position, std::span<float> turns) const {
    for (std::size_t i = 0; i < frequencies_.size(); ++i) {
      const double angle = static_cast<double>(position) * frequencies_[i];
      turns[2 * i] = static_cast<float>(std::cos(angle));
      turns[2 * i + 1] = static_cast<float>(std::sin(angle));
    }
  }

  static void turn(std::span<const float> turns, float* head) {
    const std::size_t half = turns.size() / 2;
    for (std::size_t i = 0; i < half; ++i) {
      const float cosine = turns[2 * i];
      const float sine = turns[2 * i + 1];
      const float a = head[i];
      const float b = head[i + half];
      head[i] = a * cosine - b * sine;
      head[i + half] = b * cosine + a * sine;
    }
  }

 private:
  std::vector<double> frequencies_;  // [R / 2]
};

}  // namespace lintel
