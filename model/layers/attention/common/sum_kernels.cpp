// SPDX-License-Identifier: Apache-2.0
// Highway includes this file once per instruction set: the order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/layers/attention/common/sum_kernels.cpp"
#include "model/core/simd_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "model/layers/attention/common/weighted_rows-inl.h"
// clang-format on

#include "model/layers/attention/common/sum_kernels.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

// exp(x) for x <= 0 to 2 units in the last place (Cephes' polynomial); not for NaN. Below -86 it is
// exp(-86), 4.5e-38: what phi adds to there is never so small.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_of_non_positive(D d, V x) {
  const hn::RebindToSigned<D> i;
  // Adding and taking away 1.5 * 2^23 rounds to an integer, which stands in the sum's low bits.
  const auto rounder = hn::Set(d, 12582912.0f);
  const auto clamped = hn::Max(hn::Set(d, -86.0f), x);
  const auto shifted = hn::MulAdd(clamped, hn::Set(d, 1.44269504f), rounder);
  const auto exponent = hn::Sub(shifted, rounder);
  auto rest = hn::NegMulAdd(exponent, hn::Set(d, 0.693359375f), clamped);
  rest = hn::NegMulAdd(exponent, hn::Set(d, -2.12194440e-4f), rest);
  auto polynomial = hn::Set(d, 1.9875691500e-4f);
  polynomial = hn::MulAdd(polynomial, rest, hn::Set(d, 1.3981999507e-3f));
  polynomial = hn::MulAdd(polynomial, rest, hn::Set(d, 8.3334519073e-3f));
  polynomial = hn::MulAdd(polynomial, rest, hn::Set(d, 4.1665795894e-2f));
  polynomial = hn::MulAdd(polynomial, rest, hn::Set(d, 1.6666665459e-1f));
  polynomial = hn::MulAdd(polynomial, rest, hn::Set(d, 5.0000001201e-1f));
  const auto linear = hn::Add(rest, hn::Set(d, 1.0f));
  const auto value = hn::MulAdd(polynomial, hn::Mul(rest, rest), linear);
  // The rounder's own bits fall out at the top.
  const auto power = hn::ShiftLeft<23>(hn::BitCast(i, shifted));
  return hn::BitCast(d, hn::Add(hn::BitCast(i, value), power));
}

void EluPlusOne(const float* x, float* phi, size_t n) {
  for_each_vector(n, [=](auto d, size_t i) HWY_ATTR {
    const auto value = hn::LoadU(d, x + i);
    const auto zero = hn::Zero(d);
    const auto exponential = exp_of_non_positive(d, hn::Min(zero, value));
    const auto linear = hn::Add(value, hn::Set(d, 1.0f));
    // NaN goes the linear way: the other one works on bits.
    hn::StoreU(hn::IfThenElse(hn::Le(value, zero), exponential, linear), d, phi + i);
  });
}

// Draws of 32 bits for the sums of one position. The first is a hash of the position, the others
// are it plus a multiple of an odd number: over the positions each sum sees numbers that are
// uniform and independent, which keeps it right in the mean. At one position they need only be
// spread.
constexpr uint32_t kNextDraw = 0x9E3779B9;
constexpr size_t kMostLanes = 16;
constexpr std::array<uint32_t, kMostLanes> kLaneDraws = [] {  // multiples of kNextDraw
  std::array<uint32_t, kMostLanes> draws{};
  for (size_t i = 1; i < kMostLanes; ++i) draws[i] = draws[i - 1] + kNextDraw;
  return draws;
}();

uint32_t first_draw(int64_t position) {  // SplitMix64
  uint64_t z = static_cast<uint64_t>(position) + 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return static_cast<uint32_t>((z ^ (z >> 31)) >> 32);
}

// Draw i and those after it, from -1/2 to 1/2, in units of 2^-23: of the last place of a number
// from 1 to 2.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V draws_from(D d, uint32_t first, size_t i) {
  static_assert(hn::MaxLanes(d) <= kMostLanes);
  const hn::RebindToUnsigned<D> u;
  const hn::RebindToSigned<D> s;
  const uint32_t base = first + static_cast<uint32_t>(i) * kNextDraw;
  const auto draws = hn::Add(hn::Set(u, base), hn::LoadU(u, kLaneDraws.data()));
  return hn::Mul(hn::ConvertTo(d, hn::BitCast(s, draws)), hn::Set(d, 0x1p-55f));
}

// sum + added, rounded up or down with the probability that makes it right in the mean: before it
// is rounded to nearest, it is moved by up to half a unit in the last place of `sum` either way.
// Exact but where the sum's exponent changes. Nothing is drawn at 0. kMirrored: by the draws with
// the other sign.
template <bool kMirrored, class D, class V = hn::Vec<D>>
HWY_INLINE V add_drawn(D d, V sum, V added, V draws) {
  const hn::RebindToUnsigned<D> u;
  const V power = hn::BitCast(d, hn::And(hn::BitCast(u, sum), hn::Set(u, 0x7f800000u)));
  const V moved = kMirrored ? hn::NegMulAdd(draws, power, added) : hn::MulAdd(draws, power, added);
  return hn::Add(sum, moved);
}

void AddDrawn(const float* delta, uint32_t first, float* x, size_t n) {
  for_each_vector(n, [=](auto d, size_t i) HWY_ATTR {
    const auto draws = draws_from(d, first, i);
    hn::StoreU(add_drawn<false>(d, hn::LoadU(d, x + i), hn::LoadU(d, delta + i), draws), d, x + i);
  });
}

// Rounding of sums: to the nearest number, or by random draws. Draw i serves column i of all rows
// of S, mirrored in every other row. Draws of its own for each row would cost as much as all the
// rest.
struct Nearest {};
struct Drawn {
  uint32_t first;
};

struct HeadShape {
  size_t n_features;  // C, rows of S
  size_t d_head;      // D, columns of S
};

// kVectors vectors of columns of one head's S and of its output, with what they are computed from.
template <size_t kVectors, class Rounding, class D>
struct Columns {
  using V = hn::Vec<D>;

  HWY_INLINE Columns(D d, Rounding rounding, size_t column, const float* v) {
    LINTEL_UNROLL
    for (size_t j = 0; j < kVectors; ++j) {
      const size_t at = column + j * hn::Lanes(d);
      value[j] = hn::LoadU(d, v + at);
      sum[j] = hn::Zero(d);
      if constexpr (kDrawn) draws[j] = draws_from(d, rounding.first, at);
    }
  }

  // A row of S is read and written once.
  template <bool kMirrored>
  HWY_INLINE void update_and_read(D d, float phi_q, float phi_k, float* s) {
    const V k = hn::Set(d, phi_k);
    const V q = hn::Set(d, phi_q);
    LINTEL_UNROLL
    for (size_t j = 0; j < kVectors; ++j) {
      V updated = hn::LoadU(d, s + j * hn::Lanes(d));
      if constexpr (kDrawn) {
        updated = add_drawn<kMirrored>(d, updated, hn::Mul(k, value[j]), draws[j]);
      } else {
        updated = hn::MulAdd(k, value[j], updated);
      }
      hn::StoreU(updated, d, s + j * hn::Lanes(d));
      sum[j] = hn::MulAdd(q, updated, sum[j]);
    }
  }

  static constexpr bool kDrawn = std::is_same_v<Rounding, Drawn>;
  V value[kVectors];
  V sum[kVectors];
  V draws[kDrawn ? kVectors : 1];
};

// Updates and reads the columns of S from `column` on.
template <size_t kVectors, class Rounding, class D>
HWY_INLINE void update_and_read(D d, Rounding rounding, size_t column, const HeadShape& shape,
                                const float* phi_q, const float* phi_k, const float* v, float scale,
                                float* s, float* out) {
  const size_t d_head = shape.d_head;
  Columns<kVectors, Rounding, D> columns(d, rounding, column, v);
  s += column;
  size_t c = 0;
  for (; c + 2 <= shape.n_features; c += 2, s += 2 * d_head) {
    columns.template update_and_read<false>(d, phi_q[c], phi_k[c], s);
    columns.template update_and_read<true>(d, phi_q[c + 1], phi_k[c + 1], s + d_head);
  }
  if (c < shape.n_features) columns.template update_and_read<false>(d, phi_q[c], phi_k[c], s);
  LINTEL_UNROLL
  for (size_t j = 0; j < kVectors; ++j) {
    hn::StoreU(hn::Mul(columns.sum[j], hn::Set(d, scale)), d, out + column + j * hn::Lanes(d));
  }
}

// out [D] = scale phi_q^T S, with S [C, D] after phi_k v^T was added to it.
template <class Rounding>
HWY_INLINE void update_and_read_all(Rounding rounding, const HeadShape& shape, const float* phi_q,
                                    const float* phi_k, const float* v, float scale, float* s,
                                    float* out) {
  const Lanes d;
  const size_t lanes = hn::Lanes(d);
  const size_t d_head = shape.d_head;
  size_t m = 0;
  for (; m + 4 * lanes <= d_head; m += 4 * lanes) {
    update_and_read<4>(d, rounding, m, shape, phi_q, phi_k, v, scale, s, out);
  }
  for (; m + 2 * lanes <= d_head; m += 2 * lanes) {
    update_and_read<2>(d, rounding, m, shape, phi_q, phi_k, v, scale, s, out);
  }
  for (; m + lanes <= d_head; m += lanes) {
    update_and_read<1>(d, rounding, m, shape, phi_q, phi_k, v, scale, s, out);
  }
  for (; m < d_head; ++m) {
    update_and_read<1>(OneLane(), rounding, m, shape, phi_q, phi_k, v, scale, s, out);
  }
}

// Rounding of head h: `first` is that of S, with a draw for each value of the row.
Nearest of_head(Nearest rounding, size_t /*at*/) { return rounding; }
Drawn of_head(Drawn rounding, size_t at) {
  return {rounding.first + static_cast<uint32_t>(at) * kNextDraw};
}

template <class Rounding>
HWY_INLINE void linear_heads(const SumShape& shape, Rounding rounding, const float* phi_q,
                             const float* phi_k, const float* v, float* s, float* z, float* out) {
  const HeadShape head{shape.n_features, shape.d_head};
  for (size_t h = 0; h < shape.n_heads; ++h) {
    const size_t at = h * shape.d_head;
    const size_t feature = h * shape.n_features;
    const float denominator = shape.eps + dot(phi_q + feature, z + feature, shape.n_features);
    update_and_read_all(of_head(rounding, at), head, phi_q + feature, phi_k + feature, v + at,
                        1.0f / denominator, s + feature * shape.d_head, out + at);
  }
}

void LinearAttentionStep(const SumShape& shape, const float* phi_q, const float* phi_k,
                         const float* v, float* s, float* z, float* out) {
  add_to(phi_k, z, shape.n_heads * shape.n_features);
  linear_heads(shape, Nearest{}, phi_q, phi_k, v, s, z, out);
}

// The same with sums rounded by draws: those of S first, then those of Z.
void LinearAttentionStepDrawn(const SumShape& shape, int64_t position, const float* phi_q,
                              const float* phi_k, const float* v, float* s, float* z, float* out) {
  const Drawn rounding{first_draw(position)};
  const Drawn of_z = of_head(rounding, shape.n_heads * shape.d_head);
  AddDrawn(phi_k, of_z.first, z, shape.n_heads * shape.n_features);
  linear_heads(shape, rounding, phi_q, phi_k, v, s, z, out);
}

// exp(x) for x <= 0, as exp_of_non_positive, and NaN of NaN. That nothing is less than exp(-86)
// changes nothing here: it is a weight beside one of 1.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_or_nan(D d, V x) {
  return hn::IfThenElse(hn::Eq(x, x), exp_of_non_positive(d, x), x);
}
HWY_INLINE float exp_or_nan(float x) {
  return hn::GetLane(exp_or_nan(OneLane(), hn::Set(OneLane(), x)));
}

// The keys of one head: log phi(k) [C] becomes what is added to the sums, relative to the greatest
// so far, m. Where that rises, Z and the row of S are scaled down to it.
template <class Rounding>
HWY_INLINE void weigh_keys(const HeadShape& shape, Rounding rounding, float* log_k, float* s,
                           float* z, float* m) {
  for_each_vector(shape.n_features, [=](auto d, size_t c) HWY_ATTR {
    const auto one = hn::Set(d, 1.0f);
    const auto value = hn::LoadU(d, log_k + c);
    const auto greatest = hn::LoadU(d, m + c);
    const auto sum = hn::LoadU(d, z + c);
    const auto is_first = hn::Eq(sum, hn::Zero(d));
    const auto rises = hn::Or(is_first, hn::Gt(value, greatest));
    const auto difference = hn::Sub(value, greatest);
    const auto ratio = exp_or_nan(d, hn::IfThenElse(rises, hn::Neg(difference), difference));
    // exp(value - value): a key that is not finite is not, either, although it is the greatest.
    const auto own = hn::Add(one, hn::Sub(value, value));
    const auto weight = hn::IfThenElse(rises, own, ratio);
    const auto factor = hn::IfThenElse(rises, hn::IfThenZeroElse(is_first, ratio), one);
    hn::StoreU(weight, d, log_k + c);
    hn::StoreU(hn::IfThenElse(rises, value, greatest), d, m + c);
    if constexpr (std::is_same_v<Rounding, Drawn>) {
      const auto draws = draws_from(d, rounding.first, c);
      hn::StoreU(add_drawn<false>(d, hn::Mul(sum, factor), weight, draws), d, z + c);
    } else {
      hn::StoreU(hn::MulAdd(sum, factor, weight), d, z + c);
    }
    if (hn::AllFalse(d, rises)) return;
    float factors[kMostLanes];
    hn::StoreU(factor, d, factors);
    for (size_t i = 0; i < hn::Lanes(d); ++i) {
      float* const row = s + (c + i) * shape.d_head;
      if (factors[i] != 1.0f) scale_row(row, shape.d_head, factors[i], row);
    }
  });
}

// weights [C] = exp(log_weights - the greatest of them), in place. Returns that.
HWY_INLINE float relative_to_greatest(float* log_weights, size_t n) {
  const float greatest = largest_of(log_weights, n);
  for_each_vector(n, [=](auto d, size_t c) HWY_ATTR {
    const auto difference = hn::Sub(hn::LoadU(d, log_weights + c), hn::Set(d, greatest));
    hn::StoreU(exp_or_nan(d, difference), d, log_weights + c);
  });
  return greatest;
}

// The queries of one head: log phi(q) [C] becomes the weights of S's rows. Returns the factor of
// their sum. One of the weights is 1, and no Z is less than 1, so the denominator is at least 1.
// eps is in the scale of phi, of which the weights are exp(-greatest).
HWY_INLINE float weigh_queries(size_t n_features, float eps, float* log_q, const float* z,
                               const float* m) {
  for_each_vector(n_features, [=](auto d, size_t c) HWY_ATTR {
    hn::StoreU(hn::Add(hn::LoadU(d, log_q + c), hn::LoadU(d, m + c)), d, log_q + c);
  });
  const float greatest = relative_to_greatest(log_q, n_features);
  // exp(80) is about all that a float holds: beside it, eps leaves nothing.
  const float relative_eps =
      greatest > 0.0f ? eps * exp_or_nan(-greatest) : eps / exp_or_nan(std::max(greatest, -80.0f));
  return 1.0f / (relative_eps + dot(log_q, z, n_features));
}

// The same of Efficient Attention: each row of S is divided by its own sum, and the weights by
// theirs.
HWY_INLINE float weigh_channels(size_t n_features, float* q, const float* z) {
  relative_to_greatest(q, n_features);
  const float sum = sum_of(n_features, [=](auto d, size_t c) HWY_ATTR {
    const auto weight = hn::LoadU(d, q + c);
    hn::StoreU(hn::Div(weight, hn::LoadU(d, z + c)), d, q + c);
    return weight;
  });
  return 1.0f / sum;
}

template <class Rounding>
HWY_INLINE void relative_heads(const SumShape& shape, SumReading reading, Rounding rounding,
                               float* log_q, float* log_k, const float* v, float* s, float* z,
                               float* m, float* out) {
  const HeadShape head{shape.n_features, shape.d_head};
  const Rounding of_z = of_head(rounding, shape.n_heads * shape.d_head);
  for (size_t h = 0; h < shape.n_heads; ++h) {
    const size_t at = h * shape.d_head;
    const size_t feature = h * shape.n_features;
    float* const rows = s + feature * shape.d_head;
    weigh_keys(head, of_head(of_z, feature), log_k + feature, rows, z + feature, m + feature);
    const float scale =
        reading == SumReading::kByRow
            ? weigh_queries(head.n_features, shape.eps, log_q + feature, z + feature, m + feature)
            : weigh_channels(head.n_features, log_q + feature, z + feature);
    update_and_read_all(of_head(rounding, at), head, log_q + feature, log_k + feature, v + at,
                        scale, rows, out + at);
  }
}

void RelativeAttentionStep(const SumShape& shape, SumReading reading, float* log_q, float* log_k,
                           const float* v, float* s, float* z, float* m, float* out) {
  relative_heads(shape, reading, Nearest{}, log_q, log_k, v, s, z, m, out);
}

void RelativeAttentionStepDrawn(const SumShape& shape, SumReading reading, int64_t position,
                                float* log_q, float* log_k, const float* v, float* s, float* z,
                                float* m, float* out) {
  const Drawn rounding{first_draw(position)};
  relative_heads(shape, reading, rounding, log_q, log_k, v, s, z, m, out);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lintel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lintel {
namespace {
HWY_EXPORT(EluPlusOne);
HWY_EXPORT(LinearAttentionStep);
HWY_EXPORT(LinearAttentionStepDrawn);
HWY_EXPORT(RelativeAttentionStep);
HWY_EXPORT(RelativeAttentionStepDrawn);
}  // namespace

void elu_plus_one(std::span<const float> x, std::span<float> phi) {
  assert(x.size() == phi.size());
  HWY_DYNAMIC_DISPATCH(EluPlusOne)(x.data(), phi.data(), x.size());
}

void linear_attention_step(const SumShape& shape, std::int64_t position, const float* phi_q,
                           const float* phi_k, const float* v, float* s, float* z, float* out) {
  if (position < kFirstDrawnPosition) {
    HWY_DYNAMIC_DISPATCH(LinearAttentionStep)(shape, phi_q, phi_k, v, s, z, out);
  } else {
    HWY_DYNAMIC_DISPATCH(LinearAttentionStepDrawn)(shape, position, phi_q, phi_k, v, s, z, out);
  }
}

void relative_attention_step(const SumShape& shape, SumReading reading, std::int64_t position,
                             float* log_q, float* log_k, const float* v, float* s, float* z,
                             float* m, float* out) {
  if (position < kFirstDrawnPosition) {
    HWY_DYNAMIC_DISPATCH(RelativeAttentionStep)(shape, reading, log_q, log_k, v, s, z, m, out);
  } else {
    HWY_DYNAMIC_DISPATCH(RelativeAttentionStepDrawn)
    (shape, reading, position, log_q, log_k, v, s, z, m, out);
  }
}

}  // namespace lintel
#endif  // HWY_ONCE
