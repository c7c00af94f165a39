// SPDX-License-Identifier: Apache-2.0
#include "model/layers/mixers/gated_softmax.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

#include "model/layers/mixers/kv_cache.h"
#include "model/ops/kv_kernels.h"
#include "model/ops/mixer_kernels.h"

namespace lintel {
namespace {

// Queries times positions from which on several threads attend.
constexpr std::size_t kWorthSharing = 2048;
// Rows of a prompt that a thread of a large team takes at once.
constexpr std::size_t kRowsOfThread = 16;

// Queries of some heads of keys. The cache holds the positions up to the last row's.
void attend_pages(const KvShape& shape, const KvCache& cache, KvHeads heads,
                  const KvQueries& queries) {
  // No row sees what the first one does not.
  const std::size_t seen = queries.first_position + 1;
  const std::size_t least = seen > queries.window ? seen - queries.window : 0;
  const std::size_t end = queries.first_position + queries.count;
  kv_begin(shape, heads, queries);
  KvBlock block;
  for (block.first = least / kKvBlock * kKvBlock; block.first < end; block.first += kKvBlock) {
    for (std::size_t p = 0; p < block.pages.size(); ++p) {
      const std::size_t first = block.first + p * kKvPage;
      block.pages[p] = first < end && first + kKvPage > least ? cache.page_of(first) : nullptr;
    }
    kv_add_block(shape, heads, queries, block);
  }
  kv_finish(shape, heads, queries);
}

}  // namespace

GatedSoftmax::GatedSoftmax(const GatedSoftmaxShape& shape, GatedSoftmaxWeights weights)
    : shape_(shape),
      weights_(std::move(weights)),
      rotary_(shape.rotated, shape.rope_theta),
      layout_(std::make_shared<const KvCacheLayout>(
          KvShape{.heads = shape.kv_heads, .width = shape.head_width, .type = shape.kv_type},
          shape.window)) {}
GatedSoftmax::~GatedSoftmax() = default;

std::shared_ptr<const StateLayout> GatedSoftmax::layout() const { return layout_; }

std::vector<const Dense*> GatedSoftmax::products() const { return {&*weights_.in, &*weights_.out}; }

// Norms and rotates the queries and keys of row r in place, and moves the queries of a head to
// their places without gates: q is [H D] then, and the gates follow. work: room for as many floats
// as turn, and for the queries.
void GatedSoftmax::prepare(std::size_t r, const MixerRows& rows, std::span<float> row,
                           std::span<float> work) const {
  const std::size_t width = shape_.head_width;
  const std::span<float> turns = work.first(rotary_.rotated());
  const std::span<float> gates = work.subspan(turns.size(), shape_.queries());
  const auto norm = [&](float* heads, std::size_t count, const Matrix& gain) {
    if (gain.values().empty()) return;
    const MatrixView<float> view(heads, count, width, width);
    rms_norm(view, gain.values(), weights_.norm_eps, view);
  };
  rotary_.list_turns(rows.positions[r], turns);
  float* const q = row.data();
  float* k = q + shape_.queries();
  if (shape_.has_gate) {
    for (std::size_t h = 0; h < shape_.heads; ++h) {
      std::copy_n(q + (2 * h + 1) * width, width, gates.data() + h * width);
      std::copy_n(q + 2 * h * width, width, q + h * width);
    }
    std::ranges::copy(gates, k);
    k += shape_.queries();
  }
  norm(q, shape_.heads, weights_.query_norm);
  norm(k, shape_.kv_heads, weights_.key_norm);
  for (std::size_t h = 0; h < shape_.heads; ++h) Rotary::turn(turns, q + h * width);
  for (std::size_t h = 0; h < shape_.kv_heads; ++h) Rotary::turn(turns, k + h * width);
}

// Queries of the last rows of the cache. All that share keys read a page together, or, where a
// team has more threads than there are heads of keys, kRowsOfThread rows of them. max, sum:
// [rows, H] of working memory.
void GatedSoftmax::attend(const KvCache& cache, MatrixView<const float> q, MatrixView<float> max,
                          MatrixView<float> sum, MatrixView<float> out,
                          StepThreadPool* team) const {
  const std::size_t rows = q.rows();
  const std::size_t first_position = cache.length() - rows;
  const std::size_t seen = std::min(cache.length(), shape_.window);
  if (rows * seen < kWorthSharing) team = nullptr;
  const KvShape& shape = layout_->shape();
  const std::size_t heads = shape.heads;
  const bool shares_rows = team != nullptr && team->threads() > heads;
  const std::size_t of_part = shares_rows ? std::min(rows, kRowsOfThread) : rows;
  const std::size_t parts = (rows + of_part - 1) / of_part;
  split_among(team, heads * parts, [&](std::size_t begin, std::size_t end, bool /*is_leader*/) {
    for (std::size_t i = begin; i < end; ++i) {
      const std::size_t first = i / heads * of_part;
      const std::size_t head = i % heads;
      attend_pages(shape, cache, {.begin = head, .end = head + 1},
                   {.count = std::min(of_part, rows - first),
                    .first_position = first_position + first,
                    .members = shape_.heads / shape_.kv_heads,
                    .window = shape_.window,
                    .scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_width)),
                    .q = q.row(first).data(),
                    .q_stride = q.stride(),
                    .max = max.row(first).data(),
                    .sum = sum.row(first).data(),
                    .out = out.row(first).data(),
                    .out_stride = out.stride()});
    }
  });
}

void GatedSoftmax::step(const MixerRows& rows, MatrixView<float> add_to,
                        MixerScratch& scratch) const {
  const std::size_t count = rows.count();
  const std::size_t queries = shape_.queries();
  const std::size_t keys = shape_.keys();
  const MatrixView<float> in = scratch.matrix(0, count, weights_.in->out_features());
  const MatrixView<float> out = scratch.matrix(1, count, queries);
  rows.apply(*weights_.in, rows.input, rows.normed, in);
  const MatrixView<float> work = scratch.matrix(7, count, rotary_.rotated() + queries);
  split_among(count < kRowsWorthSharing ? nullptr : rows.team, count,
              [&](std::size_t begin, std::size_t end, bool /*is_leader*/) {
                for (std::size_t r = begin; r < end; ++r) {
                  prepare(r, rows, in.row(r), work.row(begin));  // few rows of work are used
                }
              });

  const std::size_t first_key = shape_.has_gate ? 2 * queries : queries;
  const MatrixView<float> max = scratch.matrix(8, count, shape_.heads);
  const MatrixView<float> sum = scratch.matrix(9, count, shape_.heads);
  const auto attend_run = [&](std::size_t first, std::size_t length, StepThreadPool* team) {
    auto& cache = static_cast<KvCache&>(*rows.states[first]);
    cache.begin_run(length);
    for (std::size_t r = first; r < first + length;) {
      // A window takes a page at a time, so that earlier pages can be released.
      const std::size_t left = first + length - r;
      const std::size_t of_page = kKvPage - cache.length() % kKvPage;
      const std::size_t fed = shape_.window == SIZE_MAX ? left : std::min(left, of_page);
      for (std::size_t i = r; i < r + fed; ++i) {
        const float* const k = in.row(i).data() + first_key;
        cache.append(k, k + keys);
      }
      attend(cache, in.cols_from(0, queries).rows_from(r, fed), max.rows_from(r, fed),
             sum.rows_from(r, fed), out.rows_from(r, fed), team);
      cache.release_unseen();
      r += fed;
    }
  };
  // Runs are shared out among the threads, whole. But one of more than half of a thread's part, as
  // a prompt is among rows that decode, or one of few runs, is first split by heads.
  const auto work_of = [&](std::size_t first, std::size_t length) {
    const auto& cache = static_cast<const KvCache&>(*rows.states[first]);
    return length * std::min(cache.length() + length, shape_.window);
  };
  std::size_t all = 0;
  for_each_run(rows.states,
               [&](std::size_t first, std::size_t length) { all += work_of(first, length); });
  const std::size_t threads = rows.team == nullptr ? 1 : rows.team->threads();
  const std::size_t most = all / (2 * threads);
  std::size_t shared = 0;
  std::vector<std::uint32_t>& firsts = scratch.numbers;
  firsts.clear();
  for_each_run(rows.states, [&](std::size_t first, std::size_t length) {
    const std::size_t of_run = work_of(first, length);
    if (threads == 1 || of_run > most) return attend_run(first, length, rows.team);
    firsts.push_back(static_cast<std::uint32_t>(first));
    shared += of_run;
  });
  split_among(shared < kWorthSharing ? nullptr : rows.team, firsts.size(),
              [&](std::size_t begin, std::size_t end, bool /*is_leader*/) {
                for (std::size_t i = begin; i < end; ++i) {
                  attend_run(firsts[i], run_length(rows.states.subspan(firsts[i])), nullptr);
                }
              });

  DenseInput& gated = scratch.input(0, weights_.out->weight_type(), count, queries);
  share_rows(rows.team, count, [&](std::size_t r) {
    if (shape_.has_gate) multiply_sigmoid(in.row(r).subspan(queries, queries), out.row(r));
    gated.assign(r, out.row(r));
  });
  rows.apply(*weights_.out, gated, out, add_to, Dense::Output::kAdd);
}

}  // namespace lintel
