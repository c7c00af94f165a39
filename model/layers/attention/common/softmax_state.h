// SPDX-License-Identifier: Apache-2.0
// SoftmaxState: a cache of keys and values, for layers that attend with softmax over a history.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>

#include "model/layers/attention/common/history.h"
#include "model/layers/attention/common/softmax_kernels.h"
#include "model/layers/layer_state.h"

namespace lintel {

static_assert(History::kPage == kSoftmaxPage);

// Keys and values of every position fed, in pages that softmax_add_page reads.
class SoftmaxState final : public LayerState {
 public:
  // `shape` outlives the state.
  explicit SoftmaxState(const SoftmaxShape& shape)
      : shape_(shape), history_(softmax_page_floats(shape)) {}

  std::size_t bytes() const override { return history_.bytes(); }
  // The same after num_tokens tokens, as StateLayout::state_bytes.
  static std::size_t bytes_of(const SoftmaxShape& shape, std::int64_t num_tokens) {
    return History::bytes_of(num_tokens, softmax_page_floats(shape));
  }

  void assign(const LayerState& other) override {
    history_.assign(static_cast<const SoftmaxState&>(other).history_);
  }
  void reset() override { history_.clear(); }

  void begin_speculation(std::size_t /*num_rows*/, std::span<float> /*memory*/) override {}
  void rollback(std::size_t num_rows) override {
    assert(num_rows <= history_.length());
    for (; num_rows > 0; --num_rows) {
      const std::size_t position = history_.remove_last();
      softmax_erase(shape_, History::slot_of(position), history_.page_of(position));
    }
    history_.shrink();
  }

  void save(std::int64_t since, StateWriter& writer) const override {
    history_.save(static_cast<std::size_t>(since), writer);
  }
  void load(std::int64_t position, StateReader& reader) override {
    history_.load(static_cast<std::size_t>(position), reader);
  }

  const History& history() const { return history_; }
  void append(const float* k, const float* v) {
    const std::size_t position = history_.append();
    softmax_append(shape_, k, v, History::slot_of(position), history_.page_of(position));
  }

 private:
  const SoftmaxShape& shape_;
  History history_;
};

}  // namespace lintel
