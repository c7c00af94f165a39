// SPDX-License-Identifier: Apache-2.0
// The sums of linear attention over very long sequences: rounded by draws from kFirstDrawnPosition
// on (docs/attention.md has the table).
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "model/config/attention_spec.h"
#include "model/core/kernels.h"
#include "model/formats/weights.h"
#include "model/layers/attention/attention.h"
#include "model/layers/attention/common/sum_kernels.h"
#include "model/sequence.h"
#include "tests/model/support/instruction_sets.h"
#include "tests/support/case_share.h"
#include "tests/support/catch.h"
#include "tests/support/sanitized.h"

namespace lintel {
namespace {

std::vector<float> normal_values(std::size_t count, float deviation, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

bool have_same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// ---- What the kernel computes, number by number.

constexpr std::uint32_t kNextDraw = 0x9E3779B9;

std::uint32_t first_draw(std::int64_t position) {
  std::uint64_t z = static_cast<std::uint64_t>(position) + 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return static_cast<std::uint32_t>((z ^ (z >> 31)) >> 32);
}

// a * b + c, in one rounding where the instruction set has such a multiplication.
float multiply_add(float a, float b, float c) {
  const std::string target = kernel_target();
  return target == "EMU128" || target == "SCALAR" ? a * b + c : std::fma(a, b, c);
}

float add_drawn(float sum, float added, std::uint32_t draw, bool mirrored) {
  const float share = static_cast<float>(static_cast<std::int32_t>(draw)) * 0x1p-55f;
  const float power = std::bit_cast<float>(std::bit_cast<std::uint32_t>(sum) & 0x7f800000u);
  return sum + multiply_add(mirrored ? -share : share, power, added);
}

void drawn_sums_twin(const SumShape& shape, std::int64_t position, const std::vector<float>& phi_k,
                     const std::vector<float>& v, std::vector<float>& s, std::vector<float>& z) {
  const std::size_t d = shape.d_head;
  const auto width = static_cast<std::uint32_t>(v.size());
  const std::uint32_t first = first_draw(position);
  for (std::uint32_t i = 0; i < phi_k.size(); ++i) {
    z[i] = add_drawn(z[i], phi_k[i], first + (width + i) * kNextDraw, false);
  }
  for (std::size_t row = 0; row < phi_k.size(); ++row) {
    const std::size_t head = row / shape.n_features;
    for (std::size_t m = 0; m < d; ++m) {
      const std::uint32_t draw = first + static_cast<std::uint32_t>(head * d + m) * kNextDraw;
      float& sum = s[row * d + m];
      sum = add_drawn(sum, phi_k[row] * v[head * d + m], draw,
                      (row - head * shape.n_features) % 2 == 1);
    }
  }
}

TEST_CASE("sums rounded by draws have the bits of their formula at every head size", "[rows]") {
  testing::for_each_instruction_set([] {
    for (std::size_t d_head = 1; d_head <= 70; d_head += d_head < 20 ? 1 : 5) {
      // Features are as many as values, fewer and more.
      const std::size_t n_features = d_head + d_head % 4 * 7 - d_head % 5 % 2;
      const SumShape shape{.n_heads = 1 + d_head % 3,
                           .n_features = std::max<std::size_t>(n_features, 1),
                           .d_head = d_head,
                           .eps = 1e-6f};
      const std::size_t features = shape.n_heads * shape.n_features;
      const std::size_t width = shape.n_heads * d_head;
      std::vector<float> s = normal_values(features * d_head, 1e6f, 1);
      std::vector<float> z = normal_values(features, 1e6f, 2);
      s[0] = 0.0f;
      std::vector<float> expected_s = s, expected_z = z, out(width);
      for (unsigned t = 0; t < 4; ++t) {
        const std::int64_t position = kFirstDrawnPosition + (std::int64_t{t} << 31);
        const std::vector<float> phi_k = normal_values(features, 1.0f, 3 * t + 3);
        const std::vector<float> v = normal_values(width, 1.0f, 3 * t + 4);
        const std::vector<float> phi_q = normal_values(features, 1.0f, 3 * t + 5);
        linear_attention_step(shape, position, phi_q.data(), phi_k.data(), v.data(), s.data(),
                              z.data(), out.data());
        drawn_sums_twin(shape, position, phi_k, v, expected_s, expected_z);
      }
      CAPTURE(shape.n_heads, shape.n_features, d_head);
      CHECK(have_same_bits(s, expected_s));
      CHECK(have_same_bits(z, expected_z));
    }
  });
}

TEST_CASE("a sum is rounded up as often as makes it right in the mean", "[rows]") {
  constexpr float kSum = 0x1.8p24f;  // the next number is 2 more
  constexpr int kTimes = 100'000;
  const SumShape shape{.n_heads = 1, .n_features = 2, .d_head = 2, .eps = 0.0f};
  std::vector<float> s(4), z(2), out(2);
  const std::vector<float> q(2, 1.0f), v(2, 1.0f);
  for (const float added : {1.0f, 0.25f, 1.75f, 0.0f, -0.25f}) {
    double z_sum = 0.0, s_sum = 0.0, mirrored_sum = 0.0;
    const std::vector<float> phi_k(2, added);
    for (int i = 0; i < kTimes; ++i) {
      std::ranges::fill(s, kSum);
      std::ranges::fill(z, kSum);
      linear_attention_step(shape, kFirstDrawnPosition + i, q.data(), phi_k.data(), v.data(),
                            s.data(), z.data(), out.data());
      z_sum += z[0] - kSum;
      s_sum += s[0] - kSum;
      mirrored_sum += s[2] - kSum;
    }
    // One standard deviation is at most 1 / sqrt(kTimes), 0.003.
    CAPTURE(added);
    CHECK(z_sum / kTimes == Approx(added).margin(0.015));
    CHECK(s_sum / kTimes == Approx(added).margin(0.015));
    CHECK(mirrored_sum / kTimes == Approx(added).margin(0.015));
  }
}

TEST_CASE("a float sum keeps growing past powers of two", "[rows]") {
  const SumShape shape{.n_heads = 1, .n_features = 1, .d_head = 1, .eps = 0.0f};
  const float one = 1.0f, added = 0.0625f;
  for (const float sign : {1.0f, -1.0f}) {
    float s = sign * (0x1p24f - 100.0f * sign);
    float z = 0x1p24f - 100.0f, out = 0.0f;
    const float value = 1.0f;
    const float first = s;
    for (int i = 0; i < 32'000; ++i) {
      linear_attention_step(shape, kFirstDrawnPosition + i, &one, &added, &value, &s, &z, &out);
    }
    CHECK(z - (0x1p24f - 100.0f) == Approx(2000.0f).epsilon(0.1));
    CHECK(s - first == Approx(2000.0f).epsilon(0.1));
  }
}

// ---- Against sums in double.

constexpr std::size_t kWidth = 16;
constexpr int kPeriod = 61;

// Keys and values that come round again: the exact sums are a multiple of one period's.
struct Stream {
  Stream() {
    const std::vector<float> keys = normal_values(kPeriod * kWidth, 1.0f, 1);
    v = normal_values(kPeriod * kWidth, 1.0f, 2);
    const std::vector<float> mean = normal_values(kWidth, 0.5f, 3);
    for (std::size_t i = 0; i < v.size(); ++i) v[i] += mean[i % kWidth];
    phi_k.resize(keys.size());
    elu_plus_one(keys, phi_k);
  }
  const float* key(std::int64_t t) const { return &phi_k[row(t)]; }
  const float* value(std::int64_t t) const { return &v[row(t)]; }
  static std::size_t row(std::int64_t t) { return static_cast<std::size_t>(t % kPeriod) * kWidth; }

  // The occurrences of token t of the first period among the first `tokens`.
  static double times(std::int64_t tokens, std::int64_t t) {
    return static_cast<double>((tokens - t + kPeriod - 1) / kPeriod);
  }

  // After so many tokens, asked by a key.
  std::vector<double> output(std::int64_t tokens, const float* phi_q) const {
    std::vector<double> out(kWidth, 0.0);
    double denominator = 0.0;
    for (std::int64_t t = 0; t < kPeriod; ++t) {
      double weight = 0.0;
      for (std::size_t c = 0; c < kWidth; ++c) weight += double{phi_q[c]} * key(t)[c];
      weight *= times(tokens, t);
      denominator += weight;
      for (std::size_t m = 0; m < kWidth; ++m) out[m] += weight * value(t)[m];
    }
    for (double& x : out) x /= denominator;
    return out;
  }

  std::vector<float> phi_k, v;  // [kPeriod, kWidth]
};

// Root mean square of the errors of the output, in shares of its own.
double error_of(const Stream& stream, std::int64_t tokens, const float* phi_q, const float* out) {
  const std::vector<double> expected = stream.output(tokens, phi_q);
  double error = 0.0, size = 0.0;
  for (std::size_t m = 0; m < kWidth; ++m) {
    error += (out[m] - expected[m]) * (out[m] - expected[m]);
    size += expected[m] * expected[m];
  }
  return std::sqrt(error / size);
}

// Feeds the tokens from `begin` to `end` (exclusive) to sums that are exact up to there, and
// returns the error of the last output. Positions are as they are, or those of rounding to nearest.
double error_after(const Stream& stream, std::int64_t begin, std::int64_t end, bool nearest) {
  const SumShape shape{.n_heads = 1, .n_features = kWidth, .d_head = kWidth, .eps = 0.0f};
  std::vector<float> s(kWidth * kWidth), z(kWidth), out(kWidth);
  for (std::size_t i = 0; i < s.size(); ++i) {
    double s_sum = 0.0, z_sum = 0.0;
    for (std::int64_t t = 0; t < std::min<std::int64_t>(begin, kPeriod); ++t) {
      const double weight = Stream::times(begin, t) * double{stream.key(t)[i / kWidth]};
      s_sum += weight * stream.value(t)[i % kWidth];
      z_sum += weight;
    }
    s[i] = static_cast<float>(s_sum);
    z[i / kWidth] = static_cast<float>(z_sum);
  }
  for (std::int64_t t = begin; t < end; ++t) {
    linear_attention_step(shape, nearest ? 0 : t, stream.key(t + 7), stream.key(t), stream.value(t),
                          s.data(), z.data(), out.data());
  }
  const double error = error_of(stream, end, stream.key(end + 6), out.data());
  std::cout << "sums " << (nearest ? "rounded to nearest, " : "") << "from " << begin << " to "
            << end << " tokens: error " << error << std::endl;
  return error;
}

TEST_CASE("sums in f32 stay right over ten million and a hundred million tokens", "[slow]") {
  const Stream stream;
  CHECK(error_after(stream, 0, 100'000, false) < 1e-4);
  // But at night sums are exact before, as they are of what follows.
  const bool is_whole = testing::runs_every_case() && !testing::kSanitized;
  CHECK(error_after(stream, is_whole ? 0 : 9'000'000, 10'000'000, false) < 1e-4);
  CHECK(error_after(stream, is_whole ? 0 : 99'000'000, 100'000'000, false) < 5e-4);
  CHECK(error_after(stream, 900'000'000, 901'000'000, false) < 5e-4);
  // The error of rounding to nearest, where nothing is drawn, is larger.
  if (is_whole) CHECK(error_after(stream, 0, 10'000'000, true) > 1e-3);
  CHECK(error_after(stream, 100'000'000, 104'000'000, true) > 1e-2);
}

// ---- As a state: what is drawn depends on the sequence alone.

class LongStates {
 public:
  explicit LongStates(const std::string& spec) {
    const AttentionConfig config = attention_of(spec);
    const LayerDims dims{.n_heads = 2, .d_head = kHead};
    std::vector<Matrix> own;
    for (const OwnTensor& tensor : own_tensors(config, dims)) {
      own.push_back(TensorSpec{tensor.name, tensor.shape}.new_matrix());
      draw_tensor(own.back().values(), tensor, /*seed=*/1, /*layer=*/0, own.size() - 1);
    }
    backends_.push_back(make_attention({config, dims, own}));
    layouts_.push_back(backends_[0]);
  }

  SequenceState new_sequence() const { return SequenceState(layouts_, /*vocab_size=*/0); }

  // Feeds tokens first .. first + count - 1 in one step, the last `drafts` of them as drafts.
  // Returns the outputs.
  std::vector<float> feed(SequenceState& sequence, std::size_t first, std::size_t count,
                          std::size_t drafts = 0) {
    Matrix q(count, kRow), k(count, kRow), v(count, kRow), out(count, kRow);
    for (std::size_t r = 0; r < count; ++r) {
      for (std::size_t i = 0; i < kRow; ++i) {
        const std::size_t x = 37 * (first + r) + 11 * i;
        q.row(r)[i] = static_cast<float>(x % 7) - 3.0f;
        k.row(r)[i] = static_cast<float>(x % 5) - 1.7f;
        v.row(r)[i] = static_cast<float>(x % 9) - 2.3f;
      }
      sequence.advance();
    }
    if (drafts > 0) {
      // Drafts of the step before may still have to enter the sums.
      std::swap(draft_memory_, last_draft_memory_);
      draft_memory_.resize(backends_[0]->rollback_floats(drafts, sequence.position()));
      sequence.begin_drafts();
      sequence.layer(0)->begin_speculation(drafts, draft_memory_);
    }
    const std::vector<LayerState*> states(count, sequence.layer(0));
    const std::vector<MatrixView<const float>> inputs = {q.view(), k.view(), v.view()};
    backends_[0]->step(states, inputs, out.view(), scratch_);
    return {out.values().begin(), out.values().end()};
  }

  // Feeds as a prompt is fed, in steps of 1000 rows.
  void feed_to(SequenceState& sequence, std::size_t end) {
    while (static_cast<std::size_t>(sequence.position()) < end) {
      const auto first = static_cast<std::size_t>(sequence.position());
      feed(sequence, first, std::min<std::size_t>(1000, end - first));
    }
  }

  static constexpr int kHead = 3;
  static constexpr std::size_t kRow = 2 * kHead;

 private:
  std::vector<std::shared_ptr<const AttentionBackend>> backends_;
  std::vector<std::shared_ptr<const StateLayout>> layouts_;
  std::vector<float> draft_memory_, last_draft_memory_;
  AttentionScratch scratch_;
};

TEST_CASE("where sums are drawn, slices, copies and drafts taken back leave no trace") {
  const std::string spec = GENERATE("linear", "linear:feature_map=taylor2",
                                    "linear:feature_map=favor,features=5", "efficient");
  CAPTURE(spec);
  LongStates states(spec);
  constexpr auto kBorder = static_cast<std::size_t>(kFirstDrawnPosition);
  constexpr std::size_t kBegin = kBorder - 4, kEnd = kBorder + 400'000;
  SequenceState sequence = states.new_sequence();
  states.feed_to(sequence, kBegin);
  SequenceState copy = sequence.clone();
  SequenceState drafting = sequence.clone();
  SequenceState used = states.new_sequence();  // and reset
  states.feed_to(used, kBorder + 1000);
  used.reset();
  states.feed_to(used, kEnd);
  // Across the border in one step, in single ones, and with drafts of which some are taken back.
  states.feed(sequence, kBegin, 9);
  for (std::size_t t = kBegin; t < kBegin + 9; ++t) states.feed(copy, t, 1);
  states.feed(drafting, kBegin, 7, /*drafts=*/6);
  drafting.rollback(5);
  states.feed(drafting, kBegin + 2, 7, /*drafts=*/1);
  drafting.rollback(0);
  CHECK(drafting.position() == sequence.position());
  // Far beyond it, where what is drawn shows in every sum.
  states.feed_to(sequence, kEnd);
  states.feed_to(copy, kEnd);
  states.feed_to(drafting, kEnd);
  drafting.layer(0)->assign(*drafting.clone().layer(0));
  states.feed(drafting, kEnd, 5, /*drafts=*/5);
  drafting.rollback(5);
  SequenceState late_copy = sequence.clone();
  const std::vector<float> expected = states.feed(sequence, kEnd, 6);
  CHECK(have_same_bits(states.feed(copy, kEnd, 6), expected));
  CHECK(have_same_bits(states.feed(drafting, kEnd, 6), expected));
  CHECK(have_same_bits(states.feed(late_copy, kEnd, 6), expected));
  CHECK(have_same_bits(states.feed(used, kEnd, 6), expected));
}

}  // namespace
}  // namespace lintel
