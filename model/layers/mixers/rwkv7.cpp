// SPDX-License-Identifier: Apache-2.0
#include "model/layers/mixers/rwkv7.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "model/core/kernels.h"
#include "model/layers/recurrent_state.h"

namespace lintel {
namespace {

// Rows of Rwkv7Weights::mix.
enum Mix : std::size_t { kOfR, kOfW, kOfK, kOfV, kOfA, kOfG, kMixes };

constexpr float kMostDecay = 0.60653065971263342f;  // exp(-1/2)

// The last row that a mixer saw, [E]: what the next row is mixed with. Drafts keep their rows.
class ShiftState final : public RecurrentState {
 public:
  explicit ShiftState(std::span<float> block) : RecurrentState(block, block.size()) {}

  std::span<const float> last() const { return block(); }
  void feed(MatrixView<const float> rows) {
    if (rows.rows() == 0) return;
    std::ranges::copy(rows.row(rows.rows() - 1), block().begin());
    advance(rows.rows());
  }

 protected:
  void feed_again(const float* kept, std::size_t count, std::span<float> /*work*/) override {
    feed({kept, count, kept_floats(), kept_floats()});
  }
};

// The row that row r is mixed with, the one before it in its sequence: another row of the step, or
// the state's last row. REQUIRES: no state has been fed.
template <typename State>
std::span<const float> row_before(const MixerRows& rows, std::size_t r) {
  if (r > 0 && rows.states[r] == rows.states[r - 1]) return rows.normed.row(r - 1);
  return static_cast<const State&>(*rows.states[r]).last();
}

// The inputs of the tokens to S, [E] each; those that are kept of a draft come first.
struct Tokens {
  static constexpr std::size_t kKept = 6;
  MatrixView<const float> h, decay, unit_key, key, erase, v;
  MatrixView<const float> r;
};

// S [H, D, D], then the last row [E].
class TimeState final : public RecurrentState {
 public:
  TimeState(std::span<float> block, std::size_t width, std::size_t head_width)
      : RecurrentState(block, Tokens::kKept * width), width_(width), head_width_(head_width) {}

  std::span<const float> last() const { return block().last(width_); }

  // out: [rows, E]; without rows: none is needed.
  void feed(const Tokens& tokens, MatrixView<float> out, StepThreadPool* team) {
    const std::size_t count = tokens.h.rows();
    if (count == 0) return;
    split_among(team, width_ / head_width_, [&](std::size_t begin, std::size_t end, bool) {
      for (std::size_t h = begin; h < end; ++h) feed_head(h, tokens, out);
    });
    std::ranges::copy(tokens.h.row(count - 1), block().last(width_).begin());
    advance(count);
  }

  void keep_row(const Tokens& tokens, std::size_t r) {
    float* to = keep();
    for (const auto* matrix :
         {&tokens.h, &tokens.decay, &tokens.unit_key, &tokens.key, &tokens.erase, &tokens.v}) {
      to = std::ranges::copy(matrix->row(r), to).out;
    }
  }

 protected:
  void feed_again(const float* kept, std::size_t count, std::span<float> /*work*/) override {
    const auto part = [&](std::size_t i) {
      return MatrixView<const float>(kept + i * width_, count, width_, kept_floats());
    };
    feed({.h = part(0),
          .decay = part(1),
          .unit_key = part(2),
          .key = part(3),
          .erase = part(4),
          .v = part(5),
          .r = {}},
         {}, nullptr);
  }

 private:
  void feed_head(std::size_t h, const Tokens& tokens, MatrixView<float> out) {
    const std::size_t at = h * head_width_;
    float* const s = block().data() + h * head_width_ * head_width_;
    std::array<RecurrenceToken, 32> batch;
    for (std::size_t first = 0; first < tokens.h.rows(); first += batch.size()) {
      const std::size_t count = std::min(batch.size(), tokens.h.rows() - first);
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t r = first + i;
        batch[i] = {.decay = tokens.decay.row(r).data() + at,
                    .read = tokens.unit_key.row(r).data() + at,
                    .write = tokens.key.row(r).data() + at,
                    .erase = tokens.erase.row(r).data() + at,
                    .v = tokens.v.row(r).data() + at,
                    .q = out.rows() == 0 ? nullptr : tokens.r.row(r).data() + at,
                    .out = out.rows() == 0 ? nullptr : out.row(r).data() + at};
      }
      feed_recurrence(head_width_, head_width_, s, std::span(batch.data(), count));
    }
  }

  const std::size_t width_;
  const std::size_t head_width_;
};

class TimeLayout final : public RecurrentLayout {
 public:
  TimeLayout(std::size_t width, std::size_t head_width)
      : RecurrentLayout(width * head_width + width, Tokens::kKept * width),
        width_(width),
        head_width_(head_width) {}

  std::unique_ptr<LayerState> new_state(std::span<float> block) const override {
    assert(block.size() == block_floats());
    return std::make_unique<TimeState>(block, width_, head_width_);
  }

 private:
  const std::size_t width_;
  const std::size_t head_width_;
};

class ShiftLayout final : public RecurrentLayout {
 public:
  explicit ShiftLayout(std::size_t width) : RecurrentLayout(width, width) {}
  std::unique_ptr<LayerState> new_state(std::span<float> block) const override {
    return std::make_unique<ShiftState>(block);
  }
};

// Rows mixed with the ones before them, as products read them.
struct Mixed {
  const Matrix* mix = nullptr;     // [1, E]
  DenseInput* served = nullptr;    // for r, k and v; else null
  DenseInput* low_rank = nullptr;  // for the pairs; else null
  MatrixView<float> values;        // [rows, E]
};

// A pair at work: out = second(between(first(x))).
struct PairTask {
  const LowRankPair* pair = nullptr;
  const Mixed* from = nullptr;
  void (*between)(std::span<float>) = nullptr;
  DenseInput* inner = nullptr;
  MatrixView<float> out;
};

}  // namespace

Rwkv7TimeMixer::Rwkv7TimeMixer(std::size_t head_width, bool is_first_layer, UnitLength unit,
                               Rwkv7Weights weights)
    : head_width_(head_width),
      is_first_layer_(is_first_layer),
      unit_(unit),
      weights_(std::move(weights)),
      layout_(std::make_shared<const TimeLayout>(weights_.k_k.cols(), head_width)) {}
Rwkv7TimeMixer::~Rwkv7TimeMixer() = default;

std::shared_ptr<const StateLayout> Rwkv7TimeMixer::layout() const { return layout_; }

std::vector<const Dense*> Rwkv7TimeMixer::products() const {
  std::vector<const Dense*> all = {&*weights_.r, &*weights_.k, &*weights_.v, &*weights_.out};
  for (const LowRankPair* pair :
       {&weights_.decay, &weights_.rate, &weights_.gate, &weights_.first_value}) {
    if (!pair->first.has_value()) continue;
    all.push_back(&*pair->first);
    all.push_back(&*pair->second);
  }
  return all;
}

// Values of the rows of a step, [rows, E] each.
struct Rwkv7TimeMixer::Values {
  MatrixView<float> r, w, k, v, a, g;
  MatrixView<float> first_value;  // not of layer 0
  MatrixView<float> unit_key, erase, out;
};

void Rwkv7TimeMixer::step(const MixerRows& rows, MatrixView<float> add_to,
                          MixerScratch& scratch) const {
  std::size_t place = kMixes;  // earlier places are of project()
  const auto matrix = [&] { return scratch.matrix(place++, rows.count(), rows.normed.cols()); };
  const Values values = {.r = matrix(),
                         .w = matrix(),
                         .k = matrix(),
                         .v = matrix(),
                         .a = matrix(),
                         .g = matrix(),
                         .first_value = matrix(),
                         .unit_key = matrix(),
                         .erase = matrix(),
                         .out = matrix()};
  project(rows, values, scratch);
  make_keys(rows, values);
  feed(rows, values, scratch);
  read_out(rows, values, add_to, scratch);
}

// r, k, v, and what w, a, g and first_value are computed from.
void Rwkv7TimeMixer::project(const MixerRows& rows, const Values& values,
                             MixerScratch& scratch) const {
  const std::size_t count = rows.count();
  const std::size_t width = rows.normed.cols();
  const WeightType served_type = weights_.r->weight_type();
  const WeightType low_rank_type = weights_.decay.first->weight_type();

  // One parallel region for all mixes and one for all products: each costs the team a wait.
  std::array<Mixed, kMixes> mixed;
  for (std::size_t i = 0; i < kMixes; ++i) {
    const bool is_served = i == kOfR || i == kOfK || i == kOfV;
    const bool is_low_rank = !is_served || (i == kOfV && !is_first_layer_);
    mixed[i] = {
        .mix = &weights_.mix[i],
        .served = is_served ? &scratch.input(i, served_type, count, width) : nullptr,
        .low_rank = is_low_rank ? &scratch.input(kMixes + i, low_rank_type, count, width) : nullptr,
        // Only adapters read these again.
        .values = scratch.matrix(rows.has_adapters() ? i : 0, count, width)};
  }
  share_rows(rows.team, count, [&](std::size_t i) {
    const std::span<const float> before = row_before<TimeState>(rows, i);
    for (const Mixed& one : mixed) {
      const std::span<float> row = one.values.row(i);
      interpolate(rows.normed.row(i), before, one.mix->values(), row);
      if (one.served != nullptr) one.served->assign(i, row);
      if (one.low_rank != nullptr) one.low_rank->assign(i, row);
    }
  });

  std::array<PairTask, 4> pairs = {
      {{&weights_.decay, &mixed[kOfW], hyperbolic_tangent, nullptr, values.w},
       {&weights_.rate, &mixed[kOfA], nullptr, nullptr, values.a},
       {&weights_.gate, &mixed[kOfG], sigmoid, nullptr, values.g},
       {&weights_.first_value, &mixed[kOfV], nullptr, nullptr, values.first_value}}};
  const std::span<PairTask> tasks = std::span(pairs).first(is_first_layer_ ? 3 : 4);

  std::array<Dense::Multiplication, 3 + pairs.size()> products;
  std::array<MatrixView<const float>, products.size()> inputs;
  std::size_t chosen = 0;
  const auto add = [&](const std::optional<Dense>& dense, const DenseInput& x,
                       MatrixView<const float> from, MatrixView<float> to) {
    products[chosen] = {&*dense, &x, to};
    inputs[chosen++] = from;
  };
  const auto multiply_all = [&] {
    rows.apply_all(std::span(products).first(chosen), std::span(inputs).first(chosen));
    chosen = 0;
  };
  add(weights_.r, *mixed[kOfR].served, mixed[kOfR].values, values.r);
  add(weights_.k, *mixed[kOfK].served, mixed[kOfK].values, values.k);
  add(weights_.v, *mixed[kOfV].served, mixed[kOfV].values, values.v);
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    PairTask& task = tasks[i];
    task.inner = &scratch.input(2 * kMixes + i, task.pair->second->weight_type(), count,
                                task.pair->first->out_features());
    add(task.pair->first, *task.from->low_rank, task.from->values,
        task.inner->values().rows_from(0, count));
  }
  multiply_all();
  share_rows(rows.team, count, [&](std::size_t i) {
    for (const PairTask& task : tasks) {
      if (task.between != nullptr) task.between(task.inner->values().row(i));
      task.inner->prepare(i, 1);
    }
  });
  for (const PairTask& task : tasks) {
    add(task.pair->second, *task.inner, task.inner->values().rows_from(0, count), task.out);
  }
  multiply_all();
}

// unit_key, k and erase; v mixed with that of layer 0.
void Rwkv7TimeMixer::make_keys(const MixerRows& rows, const Values& values) const {
  const std::span<const float> k_k = weights_.k_k.values();
  const std::span<const float> k_a = weights_.k_a.values();
  share_rows(rows.team, rows.count(), [&](std::size_t i) {
    if (is_first_layer_) {
      std::ranges::copy(values.v.row(i), rows.carry.row(i).begin());
    } else {
      const std::span<float> first = values.first_value.row(i);
      sigmoid(first);
      interpolate(values.v.row(i), rows.carry.row(i), first, values.v.row(i));
    }
    const std::span<float> unit = values.unit_key.row(i);
    exp_of_sigmoid(-kMostDecay, values.w.row(i));
    sigmoid(values.a.row(i));
    weigh_keys(k_k, k_a, values.a.row(i), values.k.row(i), unit);
    for (std::size_t at = 0; at < unit.size(); at += head_width_) {
      to_unit_length(unit.subspan(at, head_width_), unit_);
    }
    multiply_negated(values.a.row(i), unit, values.erase.row(i));
  });
}

// Feeds the states, and reads them by r.
void Rwkv7TimeMixer::feed(const MixerRows& rows, const Values& values,
                          MixerScratch& scratch) const {
  share_runs(rows, scratch, [&](std::size_t first, std::size_t length, StepThreadPool* team) {
    auto& state = static_cast<TimeState&>(*rows.states[first]);
    const auto from = [&](std::size_t begin, std::size_t n) {
      return Tokens{.h = rows.normed.rows_from(begin, n),
                    .decay = values.w.rows_from(begin, n),
                    .unit_key = values.unit_key.rows_from(begin, n),
                    .key = values.k.rows_from(begin, n),
                    .erase = values.erase.rows_from(begin, n),
                    .v = values.v.rows_from(begin, n),
                    .r = values.r.rows_from(begin, n)};
    };
    const std::size_t staying = state.begin_run(length);
    state.feed(from(first, staying), values.out.rows_from(first, staying), team);
    const Tokens drafts = from(first + staying, length - staying);
    for (std::size_t i = 0; i < drafts.h.rows(); ++i) state.keep_row(drafts, i);
    state.feed(drafts, values.out.rows_from(first + staying, length - staying), team);
  });
}

void Rwkv7TimeMixer::read_out(const MixerRows& rows, const Values& values, MatrixView<float> add_to,
                              MixerScratch& scratch) const {
  const std::size_t width = rows.normed.cols();
  DenseInput& read = scratch.input(0, weights_.out->weight_type(), rows.count(), width);
  const std::span<const float> r_k = weights_.r_k.values();
  const std::span<const float> gain = weights_.head_norm.gain.values();
  const std::span<const float> bias = weights_.head_norm.bias.values();
  share_rows(rows.team, rows.count(), [&](std::size_t i) {
    for (std::size_t at = 0; at < width; at += head_width_) {
      const auto of_head = [&](auto row) { return row.subspan(at, head_width_); };
      const std::span<float> y = of_head(values.out.row(i));
      const MatrixView<float> head(y.data(), 1, head_width_, head_width_);
      layer_norm(head, of_head(gain), of_head(bias), weights_.head_norm.eps, head);
      add_bonus(of_head(values.r.row(i)), of_head(values.k.row(i)), of_head(r_k),
                of_head(values.v.row(i)), of_head(values.g.row(i)), y);
    }
    read.assign(i, values.out.row(i));
  });
  rows.apply(*weights_.out, read, values.out, add_to, Dense::Output::kAdd);
}

Rwkv7ChannelMixer::Rwkv7ChannelMixer(Matrix mix, Dense key, Dense value)
    : mix_(std::move(mix)),
      key_(std::move(key)),
      value_(std::move(value)),
      layout_(std::make_shared<const ShiftLayout>(mix_.cols())) {}
Rwkv7ChannelMixer::~Rwkv7ChannelMixer() = default;

std::shared_ptr<const StateLayout> Rwkv7ChannelMixer::layout() const { return layout_; }

void Rwkv7ChannelMixer::step(const MixerRows& rows, MatrixView<float> add_to,
                             MixerScratch& scratch) const {
  const std::size_t count = rows.count();
  const std::size_t width = rows.normed.cols();
  const MatrixView<float> work = scratch.matrix(0, count, width);
  const MatrixView<float> hidden = scratch.matrix(1, count, key_.out_features());
  DenseInput& mixed = scratch.input(0, key_.weight_type(), count, width);
  share_rows(rows.team, count, [&](std::size_t r) {
    interpolate(rows.normed.row(r), row_before<ShiftState>(rows, r), mix_.values(), work.row(r));
    mixed.assign(r, work.row(r));
  });
  for_each_run(rows.states, [&](std::size_t first, std::size_t length) {
    auto& state = static_cast<ShiftState&>(*rows.states[first]);
    const std::size_t staying = state.begin_run(length);
    state.feed(rows.normed.rows_from(first, staying));
    for (std::size_t r = first + staying; r < first + length; ++r) {
      std::ranges::copy(rows.normed.row(r), state.keep());
    }
    state.feed(rows.normed.rows_from(first + staying, length - staying));
  });
  rows.apply(key_, mixed, work, hidden);
  DenseInput& squared = scratch.input(1, value_.weight_type(), count, key_.out_features());
  share_rows(rows.team, count, [&](std::size_t r) {
    squared_relu(hidden.row(r));
    squared.assign(r, hidden.row(r));
  });
  rows.apply(value_, squared, hidden, add_to, Dense::Output::kAdd);
}

}  // namespace lintel
