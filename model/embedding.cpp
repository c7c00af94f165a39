#include "model/embedding.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "model/formats/weights.h"

namespace lintel {

Embedding::Embedding(const ModelConfig& config, std::span<const float> values,
                     std::span<const float> positions)
    : concat_(config.embedding == EmbeddingKind::kValueConcatPosition),
      value_width_(static_cast<std::size_t>(value_width(config))),
      position_width_(static_cast<std::size_t>(position_width(config))),
      values_(values.begin(), values.end()),
      positions_(positions.begin(), positions.end()) {
  assert(values_.size() == static_cast<std::size_t>(config.vocab_size) * value_width_);
  if (!positions_.empty()) return;
  frequencies_.resize((position_width_ + 1) / 2);
  for (std::size_t i = 0; i < frequencies_.size(); ++i) {
    frequencies_[i] = std::pow(10000.0, -2.0 * static_cast<double>(i) / position_width_);
  }
}

// pe[p, 2i] = sin(p * 10000^(-2i/d)), pe[p, 2i+1] = cos of the same. The angle is a double: a float
// could not tell positions beyond 2^24 apart.
template <typename Body>
void Embedding::for_each_part(std::int64_t position, Body&& body) const {
  if (!positions_.empty()) {
    const float* const row =
        positions_.data() + static_cast<std::size_t>(position) * position_width_;
    for (std::size_t i = 0; i < position_width_; ++i) body(i, row[i]);
    return;
  }
  for (std::size_t i = 0; i < position_width_; ++i) {
    const double angle = static_cast<double>(position) * frequencies_[i / 2];
    body(i, static_cast<float>(i % 2 == 0 ? std::sin(angle) : std::cos(angle)));
  }
}

void Embedding::embed(std::int32_t token, std::int64_t position, std::span<float> out) const {
  assert(token >= 0 && position >= 0);
  const float* value = values_.data() + static_cast<std::size_t>(token) * value_width_;
  assert(value + value_width_ <= values_.data() + values_.size());
  std::copy(value, value + value_width_, out.begin());
  if (concat_) return position_row(position, out.subspan(value_width_));
  for_each_part(position, [&](std::size_t i, float part) { out[i] += part; });
}

void Embedding::position_row(std::int64_t position, std::span<float> out) const {
  assert(out.size() == position_width_);
  for_each_part(position, [&](std::size_t i, float part) { out[i] = part; });
}

}  // namespace lintel
