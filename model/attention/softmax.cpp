// Softmax attention with a cache of keys and values (Vaswani et al. 2017): the state grows by one
// key and one value a head with every token.
#include <algorithm>
#include <cassert>
#include <cmath>

#include "model/attention/attention.h"
#include "model/attention/parts/attention_kernels.h"
#include "model/base/paged_array.h"

namespace lintel {
namespace {

// Keys and values of every position fed, in pages of kSoftmaxPage positions.
class SoftmaxState final : public AttentionState {
 public:
  explicit SoftmaxState(const SoftmaxShape& shape)
      : shape_(shape), pages_(softmax_page_floats(shape)) {}

  std::size_t bytes() const override { return pages_.bytes(); }

  void assign(const AttentionState& other) override {
    const auto& from = static_cast<const SoftmaxState&>(other);
    pages_.assign(from.pages_);
    length_ = from.length_;
  }

  void reset() override {
    pages_.clear();
    length_ = 0;
  }

  void expect_drafts(std::size_t /*num_rows*/, std::span<float> /*memory*/) override {}

  void rewind(std::size_t num_rows) override {
    assert(num_rows <= length_);
    for (; num_rows > 0; --num_rows) {
      --length_;
      softmax_erase(shape_, length_ % kSoftmaxPage, pages_.page(length_ / kSoftmaxPage));
    }
    pages_.shrink_to((length_ + kSoftmaxPage - 1) / kSoftmaxPage);
  }

  std::size_t length() const { return length_; }
  const float* page(std::size_t i) const { return pages_.page(i); }

  void append(const float* k, const float* v) {
    const std::size_t page = length_ / kSoftmaxPage;
    pages_.grow_to(page + 1);
    softmax_append(shape_, k, v, length_ % kSoftmaxPage, pages_.page(page));
    ++length_;
  }

 private:
  const SoftmaxShape& shape_;  // the backend's
  PagedArray<float> pages_;
  std::size_t length_ = 0;
};

class SoftmaxAttention final : public AttentionBackend {
 public:
  explicit SoftmaxAttention(const AttentionParams& params)
      : shape_{.n_heads = static_cast<std::size_t>(params.n_heads),
               .d_head = static_cast<std::size_t>(params.d_head)},
        scale_(static_cast<float>(params.config.scale != 0.0 ? params.config.scale
                                                             : 1.0 / std::sqrt(params.d_head))) {}

  std::size_t block_floats() const override { return 0; }

  std::unique_ptr<AttentionState> new_state(std::span<float> /*block*/) const override {
    return std::make_unique<SoftmaxState>(shape_);
  }

  std::size_t state_bytes(std::int64_t num_tokens) const override {
    if (num_tokens > INT32_MAX) return SIZE_MAX;  // the product below fits for what is less
    const auto pages = (static_cast<std::size_t>(num_tokens) + kSoftmaxPage - 1) / kSoftmaxPage;
    return PagedArray<float>::bytes_of(pages, softmax_page_floats(shape_));
  }

  bool constant_state() const override { return false; }
  std::size_t rewind_floats(std::size_t /*num_rows*/) const override { return 0; }

  void step(std::span<AttentionState* const> states, MatrixView<const float> q,
            MatrixView<const float> k, MatrixView<const float> v, MatrixView<float> out,
            AttentionScratch& scratch) const override {
    for (std::size_t r = 0; r < states.size();) {
      std::size_t count = 1;
      while (r + count < states.size() && states[r + count] == states[r]) ++count;
      auto& state = static_cast<SoftmaxState&>(*states[r]);
      const std::size_t first_position = state.length();
      for (std::size_t i = r; i < r + count; ++i) {
        state.append(k.row(i).data(), v.row(i).data());
      }
      attend(state, first_position, q.rows_from(r, count), out.rows_from(r, count), scratch);
      r += count;
    }
  }

 private:
  // Rows of one sequence, the first of them at first_position. Every page is read once for all of
  // them.
  void attend(const SoftmaxState& state, std::size_t first_position, MatrixView<const float> q,
              MatrixView<float> out, AttentionScratch& scratch) const {
    const std::size_t width = shape_.n_heads * shape_.d_head;
    const std::size_t floats = q.rows() * (width + 2 * shape_.n_heads);
    if (scratch.floats.size() < floats) scratch.floats.resize(floats);
    float* const scaled = scratch.floats.data();         // [rows, H*D]
    float* const max = scaled + q.rows() * width;        // [rows, H]
    float* const sum = max + q.rows() * shape_.n_heads;  // [rows, H]
    for (std::size_t r = 0; r < q.rows(); ++r) {
      std::ranges::transform(q.row(r), scaled + r * width, [this](float x) { return x * scale_; });
      std::ranges::fill(out.row(r), 0.0f);
    }
    std::fill(max, sum, softmax_least());
    std::fill_n(sum, q.rows() * shape_.n_heads, 0.0f);

    const auto rows_from = [&](std::size_t r) {
      return SoftmaxRows{.count = q.rows() - r,
                         .q = scaled + r * width,
                         .max = max + r * shape_.n_heads,
                         .sum = sum + r * shape_.n_heads,
                         .out = out.row(r).data(),
                         .out_stride = out.stride()};
    };
    for (std::size_t page = 0; page * kSoftmaxPage < state.length(); ++page) {
      const std::size_t begin = page * kSoftmaxPage;
      // Rows before `begin` see nothing of the page.
      const std::size_t r = begin > first_position ? begin - first_position : 0;
      softmax_add_page(shape_, rows_from(r), state.page(page), first_position + r + 1 - begin);
    }
    softmax_finish(shape_, rows_from(0));
  }

  const SoftmaxShape shape_;
  const float scale_;
};

}  // namespace

std::unique_ptr<AttentionBackend> make_softmax_attention(const AttentionParams& params) {
  return std::make_unique<SoftmaxAttention>(params);
}

}  // namespace lintel
