// SPDX-License-Identifier: Apache-2.0
// Highway includes this file once per instruction set: the order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/layers/attention/common/feature_map.cpp"
#include "model/core/simd_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "model/layers/attention/common/weighted_rows-inl.h"
// clang-format on

#include "model/layers/attention/common/feature_map.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numbers>

#include "model/layers/attention/common/sum_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

using Options = FeatureMap::Options;

// u [features] = omega^T x, with omega [D, features].
void project(const float* x, const float* omega, const Options& options, float* u) {
  const Lanes d;
  const size_t lanes = hn::Lanes(d);
  const size_t n = options.features;
  size_t f = 0;
  for (; f + 4 * lanes <= n; f += 4 * lanes) {
    multiply_columns<4>(d, x, options.d_head, omega + f, n, u + f);
  }
  for (; f + lanes <= n; f += lanes) {
    multiply_columns<1>(d, x, options.d_head, omega + f, n, u + f);
  }
  for (; f < n; ++f) {
    multiply_columns<1>(OneLane(), x, options.d_head, omega + f, n, u + f);
  }
}

// u of the maps that have an omega or not. omega has c in it.
void scale_or_project(const float* x, const float* omega, const Options& options, float* u) {
  if (options.features > 0) return project(x, omega, options, u);
  scale_row(x, options.d_head, options.scale, u);
}

// NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V positive_part(D d, V x) {
  return hn::IfThenElse(hn::Le(x, hn::Zero(d)), hn::Zero(d), x);
}

void relu_features(float addend, bool is_squared, size_t n, float* u) {
  for_each_vector(n, [=](auto d, size_t i) HWY_ATTR {
    auto value = positive_part(d, hn::LoadU(d, u + i));
    if (is_squared) value = hn::Mul(value, value);
    hn::StoreU(hn::Add(value, hn::Set(d, addend)), d, u + i);
  });
}

// work: 4 D floats.
void dpfp(const float* x, const Options& options, float* phi, float* work) {
  const size_t width = 2 * options.d_head;
  // y twice, so that y from any place on lies without a break.
  for_each_vector(options.d_head, [=](auto d, size_t i) HWY_ATTR {
    const auto value = hn::LoadU(d, x + i);
    const auto positive = positive_part(d, value);
    const auto negative = positive_part(d, hn::Neg(value));
    hn::StoreU(positive, d, work + i);
    hn::StoreU(negative, d, work + width / 2 + i);
    hn::StoreU(positive, d, work + width + i);
    hn::StoreU(negative, d, work + width + width / 2 + i);
  });
  for (size_t j = 1; j <= options.nu; ++j, phi += width) {
    const float* const rolled = work + width - j % width;
    for_each_vector(width, [=](auto d, size_t i) HWY_ATTR {
      hn::StoreU(hn::Mul(hn::LoadU(d, work + i), hn::LoadU(d, rolled + i)), d, phi + i);
    });
  }
}

float squared_length(const float* x, size_t n) {
  return sum_of(n, [=](auto d, size_t i) HWY_ATTR {
    const auto value = hn::LoadU(d, x + i);
    return hn::Mul(value, value);
  });
}

void taylor1(const float* x, size_t d_head, float* phi) {
  phi[0] = 1.0f;
  // This order of operands keeps NaN.
  scale_row(x, d_head, 1.0f / std::max(std::sqrt(squared_length(x, d_head)), 1e-12f), phi + 1);
}

// work: D + kSlack floats. Vectors of a row of the triangle go beyond its end, where the next row
// is written after it.
void taylor2(const float* x, const Options& options, float* phi, float* work) {
  const Lanes d;
  const size_t d_head = options.d_head;
  phi[0] = 1.0f;
  scale_row(x, d_head, options.scale, phi + 1);
  std::copy_n(phi + 1, d_head, work);
  std::fill_n(work + d_head, FeatureMap::kSlack, 0.0f);
  float* row = phi + 1 + d_head;
  for (size_t i = 0; i < d_head; row += d_head - i, ++i) {
    const auto factor = hn::Set(d, work[i]);
    for (size_t j = i; j < d_head; j += hn::Lanes(d)) {
      hn::StoreU(hn::Mul(factor, hn::LoadU(d, work + j)), d, row + (j - i));
    }
    row[0] = work[i] * work[i] * static_cast<float>(1.0 / std::numbers::sqrt2);
  }
}

// Highway's sine and cosine hold up to here: beyond it the reduced angle is of any size.
constexpr float kLargestAngle = 30000.0f;

void fourier(const float* x, const float* omega, const Options& options, float* phi, float* work) {
  const size_t n = options.features;
  const float size = 1.0f / std::sqrt(static_cast<float>(n));
  project(x, omega, options, work);
  if (std::any_of(work, work + n, [](float u) { return std::abs(u) > kLargestAngle; })) {
    for (size_t i = 0; i < n; ++i) {
      phi[i] = std::cos(work[i]) * size;
      phi[n + i] = std::sin(work[i]) * size;
    }
  } else {
    for_each_vector(n, [=](auto d, size_t i) HWY_ATTR {
      const auto u = hn::LoadU(d, work + i);
      hn::StoreU(hn::Mul(hn::Cos(d, u), hn::Set(d, size)), d, phi + i);
      hn::StoreU(hn::Mul(hn::Sin(d, u), hn::Set(d, size)), d, phi + n + i);
    });
  }
  if (options.smoothing > 0.0f) phi[2 * n] = options.smoothing;
}

// log phi. work: `features` floats.
void favor(const float* x, const float* omega, const Options& options, size_t num_features,
           float* phi, float* work) {
  const size_t n = options.features;
  project(x, omega, options, work);
  const float taken = 0.5f * (options.scale * options.scale * squared_length(x, options.d_head) +
                              std::log(static_cast<float>(num_features)));
  const bool is_hyperbolic = options.is_hyperbolic;
  for_each_vector(n, [=](auto d, size_t i) HWY_ATTR {
    const auto u = hn::LoadU(d, work + i);
    hn::StoreU(hn::Sub(u, hn::Set(d, taken)), d, phi + i);
    if (is_hyperbolic) hn::StoreU(hn::Sub(hn::Neg(u), hn::Set(d, taken)), d, phi + n + i);
  });
}

// One head.
void ApplyToHead(const Options& options, size_t num_features, const float* omega, const float* x,
                 float* phi, float* work) {
  switch (options.kind) {
    case FeatureMapKind::kEluPlusOne:
      return;  // FeatureMap::apply does all heads at once
    case FeatureMapKind::kRelu:
    case FeatureMapKind::kSquaredRelu:
      scale_or_project(x, omega, options, phi);
      return relu_features(options.addend, options.kind == FeatureMapKind::kSquaredRelu,
                           num_features, phi);
    case FeatureMapKind::kDpfp:
      return dpfp(x, options, phi, work);
    case FeatureMapKind::kTaylor1:
      return taylor1(x, options.d_head, phi);
    case FeatureMapKind::kTaylor2:
      return taylor2(x, options, phi, work);
    case FeatureMapKind::kFourier:
      return fourier(x, omega, options, phi, work);
    case FeatureMapKind::kExp:
      return scale_row(x, options.d_head, options.scale, phi);
    case FeatureMapKind::kFavor:
      return favor(x, omega, options, num_features, phi, work);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lintel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lintel {
namespace {

HWY_EXPORT(ApplyToHead);

}  // namespace

std::size_t FeatureMap::num_features(const Options& options) {
  const std::size_t d_head = options.d_head;
  switch (options.kind) {
    case FeatureMapKind::kEluPlusOne:
    case FeatureMapKind::kExp:
      return d_head;
    case FeatureMapKind::kRelu:
    case FeatureMapKind::kSquaredRelu:
      return options.features > 0 ? options.features : d_head;
    case FeatureMapKind::kDpfp:
      return 2 * d_head * options.nu;
    case FeatureMapKind::kTaylor1:
      return d_head + 1;
    case FeatureMapKind::kTaylor2:
      return 1 + d_head + d_head * (d_head + 1) / 2;
    case FeatureMapKind::kFourier:
      return 2 * options.features + (options.smoothing > 0.0f ? 1 : 0);
    case FeatureMapKind::kFavor:
      return (options.is_hyperbolic ? 2 : 1) * options.features;
  }
  return 0;
}

FeatureMap::FeatureMap(const Options& options, std::span<const float> omega)
    : options_(options),
      num_features_(num_features(options)),
      work_floats_(std::max(4 * options.d_head + kSlack, options.features)),
      omega_(options.d_head, options.features) {
  assert(omega.size() == omega_.values().size());
  std::ranges::transform(omega, omega_.values().begin(),
                         [&](float value) { return value * options.scale; });
}

bool FeatureMap::is_logarithmic() const {
  return options_.kind == FeatureMapKind::kExp || options_.kind == FeatureMapKind::kFavor;
}

void FeatureMap::apply(std::span<const float> x, float* phi, float* work) const {
  assert(x.size() == options_.n_heads * options_.d_head);
  if (options_.kind == FeatureMapKind::kEluPlusOne) {
    return elu_plus_one(x, {phi, x.size()});  // a head is like another
  }
  const auto apply_to_head = HWY_DYNAMIC_DISPATCH(ApplyToHead);
  for (std::size_t h = 0; h < options_.n_heads; ++h) {
    apply_to_head(options_, num_features_, omega_.values().data(), x.data() + h * options_.d_head,
                  phi + h * num_features_, work);
  }
}

}  // namespace lintel
#endif  // HWY_ONCE
