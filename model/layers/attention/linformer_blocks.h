// Linformer in mode blocks: a state that grows by `rank` summaries with every block.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "model/core/paged_array.h"
#include "model/layers/attention/attention.h"
#include "model/layers/attention/common/history.h"
#include "model/layers/attention/common/linformer_kernels.h"
#include "model/layers/attention/common/saved_state.h"
#include "model/layers/attention/common/softmax_kernels.h"
#include "model/layers/attention/linformer_slots.h"

namespace lintel {

static_assert(History::kPage == kSoftmaxPage);

// Mode blocks: the summaries of all blocks before the own one, and that one's keys and values, both
// in pages of softmax_kernels.h. Position t of the sequence is position t % B of its block, and
// takes the place that position t - B had: a block that is complete stays until the next one
// begins.
class LinformerBlocksState final : public AttentionState {
 public:
  explicit LinformerBlocksState(const LinformerShape& shape)
      : shape_(shape),
        summaries_(softmax_page_floats(shape.pages())),
        own_(softmax_page_floats(shape.pages())) {}

  static std::size_t most_bytes(const LinformerShape& shape, std::int64_t num_tokens) {
    if (num_tokens > INT32_MAX) return SIZE_MAX;
    const auto n = static_cast<std::size_t>(num_tokens);
    const std::size_t page = softmax_page_floats(shape.pages());
    const std::size_t summaries =
        History::bytes_of(static_cast<std::int64_t>(num_summaries(shape, n)), page);
    if (summaries == SIZE_MAX) return SIZE_MAX;
    return summaries + PagedArray<float>::bytes_of(own_pages(shape, n), page);
  }

  std::size_t bytes() const override { return summaries_.bytes() + own_.bytes(); }

  void assign(const AttentionState& other) override {
    const auto& from = static_cast<const LinformerBlocksState&>(other);
    summaries_.assign(from.summaries_);
    own_.assign(from.own_);
    position_ = from.position_;
  }

  void reset() override {
    summaries_.clear();
    own_.clear();
    position_ = 0;
  }

  // The memory holds the key and value that each draft takes the place of.
  void announce(std::size_t num_rows, std::span<float> memory) override {
    assert(memory.size() >= num_rows * 2 * shape_.width());
    announced_ = num_rows;
    replaced_ = memory.data();
  }

  void take_back(std::size_t num_rows) override {
    for (; num_rows > 0; --num_rows) {
      --position_;
      const float* const replaced = replaced_ + (position_ - first_draft_) * 2 * shape_.width();
      softmax_append(shape_.pages(), replaced, replaced + shape_.width(), own_slot(), own_page());
      if (position_ == 0 || in_block() != 0) continue;
      // It had the block before it summarised.
      for (std::size_t m = 0; m < shape_.rank; ++m) {
        const std::size_t summary = summaries_.remove_last();
        softmax_erase(shape_.pages(), History::slot_of(summary), summaries_.page_of(summary));
      }
    }
    summaries_.shrink();
    own_.shrink_to(own_pages(shape_, position_));
    zero_memory(std::span(replaced_, std::exchange(num_drafts_, 0) * 2 * shape_.width()));
  }

  // The own block is written whole, for every `since`.
  void save(std::int64_t since, StateWriter& writer) const override {
    writer.value<std::uint64_t>(position_);
    summaries_.save(num_summaries(shape_, static_cast<std::size_t>(since)), writer);
    for (std::size_t p = 0; p < saved_pages(); ++p) {
      writer.values(std::span<const float>(own_.page(p), softmax_page_floats(shape_.pages())));
    }
  }
  void load(std::int64_t position, StateReader& reader) override {
    const auto length = static_cast<std::size_t>(position);
    check_saved("position", reader.value<std::uint64_t>(), length);
    if (length < position_ || length > INT32_MAX) {
      throw ModelError("saved state: found position " + std::to_string(position) + ", expected " +
                       std::to_string(position_) + " to " + std::to_string(INT32_MAX));
    }
    summaries_.load(num_summaries(shape_, length), reader);
    position_ = length;
    for (std::size_t p = 0; p < saved_pages(); ++p) {
      own_.grow_to(p + 1);
      read_finite(reader, std::span(own_.page(p), softmax_page_floats(shape_.pages())));
    }
    own_.grow_to(own_pages(shape_, position_));
  }

  // A run of num_rows rows is about to be fed.
  void begin_run(std::size_t num_rows) {
    assert(announced_ <= num_rows);
    num_drafts_ = std::exchange(announced_, 0);
    first_draft_ = position_ + num_rows - num_drafts_;
  }

  // Position of the next token in its block.
  std::size_t in_block() const { return position_ % shape_.block_size; }
  // Whether the next token begins a block that is not the first.
  bool has_complete_block() const { return position_ > 0 && in_block() == 0; }

  void append(const float* k, const float* v) {
    own_.grow_to(own_pages(shape_, position_ + 1));
    if (position_ >= first_draft_) {
      float* const replaced = replaced_ + (position_ - first_draft_) * 2 * shape_.width();
      softmax_read(shape_.pages(), own_slot(), own_page(), replaced, replaced + shape_.width());
    }
    softmax_append(shape_.pages(), k, v, own_slot(), own_page());
    ++position_;
  }
  void append_summary(const float* k, const float* v) {
    const std::size_t at = summaries_.append();
    softmax_append(shape_.pages(), k, v, History::slot_of(at), summaries_.page_of(at));
  }

  const History& summaries() const { return summaries_; }
  // Of positions kSoftmaxPage * i of the block, and those after it.
  const float* own_page(std::size_t i) const { return own_.page(i); }

 private:
  // Of a sequence of n tokens.
  static std::size_t num_summaries(const LinformerShape& shape, std::size_t n) {
    return n == 0 ? 0 : (n - 1) / shape.block_size * shape.rank;
  }
  static std::size_t own_pages(const LinformerShape& shape, std::size_t n) {
    return (std::min(n, shape.block_size) + kSoftmaxPage - 1) / kSoftmaxPage;
  }
  // Pages that hold something of the last token's block.
  std::size_t saved_pages() const {
    return position_ == 0 ? 0 : (position_ - 1) % shape_.block_size / kSoftmaxPage + 1;
  }
  std::size_t own_slot() const { return in_block() % kSoftmaxPage; }
  float* own_page() { return own_.page(in_block() / kSoftmaxPage); }

  const LinformerShape& shape_;  // the backend's
  History summaries_;
  PagedArray<float> own_;
  std::size_t position_ = 0;  // tokens fed

  // Valid from one step to the next.
  std::size_t announced_ = 0;    // drafts of the next run
  std::size_t num_drafts_ = 0;   // of the last run, until they are judged
  std::size_t first_draft_ = 0;  // position of the last run's first draft, or where it ended
  float* replaced_ = nullptr;    // [drafts, k H*D | v H*D]
};

class LinformerBlocks final : public AttentionBackend {
 public:
  explicit LinformerBlocks(const AttentionParams& params) : shape_(params), projected_(params) {}

  std::size_t block_floats() const override { return 0; }

  std::unique_ptr<AttentionState> new_state(std::span<float> /*block*/) const override {
    return std::make_unique<LinformerBlocksState>(shape_);
  }

  std::size_t state_bytes(std::int64_t num_tokens) const override {
    return LinformerBlocksState::most_bytes(shape_, num_tokens);
  }
  std::int64_t tokens_until_full() const override { return kNeverFull; }
  std::size_t take_back_floats(std::size_t num_rows, std::int64_t /*end*/) const override {
    return num_rows * 2 * shape_.width();
  }

  void step(std::span<AttentionState* const> states, AttentionInputs inputs, MatrixView<float> out,
            AttentionScratch& scratch) const override {
    const MatrixView<const float> q = inputs[0];
    const MatrixView<const float> k = inputs[1];
    const MatrixView<const float> v = inputs[2];
    for (std::size_t r = 0; r < states.size();) {
      const std::size_t end = r + run_length(states.subspan(r));
      auto& state = static_cast<LinformerBlocksState&>(*states[r]);
      state.begin_run(end - r);
      while (r < end) {  // rows of one block
        if (state.has_complete_block()) summarise(state, scratch);
        const std::size_t first = state.in_block();
        const std::size_t count = std::min(end - r, shape_.block_size - first);
        for (std::size_t i = r; i < r + count; ++i) {
          state.append(k.row(i).data(), v.row(i).data());
        }
        attend(state, first, q.rows_from(r, count), out.rows_from(r, count), scratch);
        r += count;
      }
    }
  }

 private:
  void summarise(LinformerBlocksState& state, AttentionScratch& scratch) const {
    const std::size_t width = shape_.width();
    const std::size_t floats = shape_.slots_floats() + 2 * width;
    if (scratch.floats.size() < floats) scratch.floats.resize(floats);
    float* const sums = scratch.floats.data();
    float* const k = sums + shape_.slots_floats();  // [H*D] of one slot
    float* const v = k + width;
    std::fill_n(sums, shape_.slots_floats(), 0.0f);
    const std::size_t head_floats = 2 * kSoftmaxPage * shape_.d_head;  // of a page
    for (std::size_t first = 0; first < shape_.block_size; first += kSoftmaxPage) {
      for (std::size_t h = 0; h < shape_.n_heads; ++h) {
        const float* const keys = state.own_page(first / kSoftmaxPage) + h * head_floats;
        linformer_add_block(shape_.slots(h, sums), projected_.of_keys(h, first),
                            projected_.of_values(h, first), keys, kSoftmaxPage,
                            keys + kSoftmaxPage * shape_.d_head,
                            std::min(kSoftmaxPage, shape_.block_size - first));
      }
    }
    for (std::size_t m = 0; m < shape_.rank; ++m) {
      for (std::size_t h = 0; h < shape_.n_heads; ++h) {
        const LinformerSlots slots = shape_.slots(h, sums);
        for (std::size_t c = 0; c < shape_.d_head; ++c) {
          k[h * shape_.d_head + c] = slots.keys[c * shape_.rank + m];
          v[h * shape_.d_head + c] = slots.values[m * shape_.d_head + c];
        }
      }
      state.append_summary(k, v);
    }
  }

  // Rows of one block, the first of them at position `first` of it.
  void attend(const LinformerBlocksState& state, std::size_t first, MatrixView<const float> q,
              MatrixView<float> out, AttentionScratch& scratch) const {
    const std::size_t width = shape_.width();
    const std::size_t floats = q.rows() * (width + 2 * shape_.n_heads);
    if (scratch.floats.size() < floats) scratch.floats.resize(floats);
    float* const scaled = scratch.floats.data();         // [rows, H*D]
    float* const max = scaled + q.rows() * width;        // [rows, H]
    float* const sum = max + q.rows() * shape_.n_heads;  // [rows, H]
    for (std::size_t r = 0; r < q.rows(); ++r) {
      std::ranges::transform(q.row(r), scaled + r * width,
                             [this](float x) { return x * shape_.scale; });
      std::ranges::fill(out.row(r), 0.0f);
    }
    std::fill(max, sum, softmax_least());
    std::fill_n(sum, q.rows() * shape_.n_heads, 0.0f);

    const SoftmaxShape pages = shape_.pages();
    const auto rows = [&](std::size_t r, std::size_t count) {
      return SoftmaxRows{.count = count,
                         .q = scaled + r * width,
                         .max = max + r * shape_.n_heads,
                         .sum = sum + r * shape_.n_heads,
                         .out = out.row(r).data(),
                         .out_stride = out.stride()};
    };
    // All rows see all summaries.
    const History& summaries = state.summaries();
    for (std::size_t begin = 0; begin < summaries.length(); begin += kSoftmaxPage) {
      const std::size_t visible = std::min(kSoftmaxPage, summaries.length() - begin);
      for (std::size_t r = 0; r < q.rows(); ++r) {
        softmax_add_page(pages, rows(r, 1), summaries.page_of(begin), visible);
      }
    }
    // Of the own block each row sees one position more than the row before it.
    for (std::size_t begin = 0; begin < first + q.rows(); begin += kSoftmaxPage) {
      const std::size_t r = begin > first ? begin - first : 0;
      softmax_add_page(pages, rows(r, q.rows() - r), state.own_page(begin / kSoftmaxPage),
                       first + r + 1 - begin);
    }
    softmax_finish(pages, rows(0, q.rows()));
  }

  const LinformerShape shape_;
  const LinformerProjections projected_;
};

}  // namespace lintel
