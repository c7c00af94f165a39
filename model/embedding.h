// Embedding: a token and its position -> the row that enters the first layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/config/config.h"

namespace lintel {

// Const and shareable between threads. Keeps copies of what it is made from.
class Embedding {
 public:
  // values: [V, value width]; positions: [max_length, position width], row-major. Empty positions
  // where the model has some: sinusoidal ones, computed at every call.
  Embedding(const ModelConfig& config, std::span<const float> values,
            std::span<const float> positions);

  // Concat: [value, position]; add: value + position; value: the value alone. out: [E].
  // REQUIRES: token in 0 .. V-1; 0 <= position, and < max_length where that is not 0.
  void embed(std::int32_t token, std::int64_t position, std::span<float> out) const;
  // The part of the position alone. out: [position width].
  void position_row(std::int64_t position, std::span<float> out) const;

 private:
  // Calls body(i, value i of the position's row).
  template <typename Body>
  void for_each_part(std::int64_t position, Body&& body) const;

  bool concat_ = false;
  std::size_t value_width_ = 0;
  std::size_t position_width_ = 0;
  std::vector<float> values_;
  std::vector<float> positions_;     // [max_length, position_width]; empty: computed
  std::vector<double> frequencies_;  // [position_width / 2, rounded up] when computed
};

}  // namespace lintel
