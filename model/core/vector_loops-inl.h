// SPDX-License-Identifier: Apache-2.0
// Loops over rows of any length. Included by kernels once for every instruction set, after
// Highway's own headers: the guard toggles with the set.
#if defined(LINTEL_MODEL_VECTOR_LOOPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINTEL_MODEL_VECTOR_LOOPS_INL_H_
#undef LINTEL_MODEL_VECTOR_LOOPS_INL_H_
#else
#define LINTEL_MODEL_VECTOR_LOOPS_INL_H_
#endif

#include "hwy/highway.h"
#include "model/core/simd_targets.h"

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using Lanes = hn::ScalableTag<float>;
using OneLane = hn::CappedTag<float, 1>;

// Calls body(d, i) for whole vectors from 0 on, then lane by lane. Which lanes compute element i
// depends on i and n alone, and both kinds of lane do the same operations.
template <typename Body>
HWY_INLINE HWY_MAYBE_UNUSED void for_each_vector(size_t n, Body&& body) {
  const Lanes d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) body(d, i);
  for (; i < n; ++i) body(OneLane(), i);
}

// The sum of term(d, i) over n elements: pairs of vectors first, which do not wait for each other,
// then the rest one by one.
template <typename Term>
HWY_INLINE HWY_MAYBE_UNUSED float sum_of(size_t n, Term&& term) {
  const Lanes d;
  const size_t lanes = hn::Lanes(d);
  auto even = hn::Zero(d);
  auto odd = hn::Zero(d);
  size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    even = hn::Add(even, term(d, i));
    odd = hn::Add(odd, term(d, i + lanes));
  }
  for (; i + lanes <= n; i += lanes) even = hn::Add(even, term(d, i));
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
  for (; i < n; ++i) sum += hn::GetLane(term(OneLane(), i));
  return sum;
}

// The same of kRows rows at once, whose chains do not wait for each other: term(d, r, i) is of row
// r. The bits of a row are those of sum_of.
template <size_t kRows, typename Term>
HWY_INLINE HWY_MAYBE_UNUSED void sums_of(size_t n, Term&& term, float* sums) {
  const Lanes d;
  const size_t lanes = hn::Lanes(d);
  hn::Vec<Lanes> even[kRows], odd[kRows];
  LINTEL_UNROLL
  for (size_t r = 0; r < kRows; ++r) even[r] = odd[r] = hn::Zero(d);
  size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    LINTEL_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      even[r] = hn::Add(even[r], term(d, r, i));
      odd[r] = hn::Add(odd[r], term(d, r, i + lanes));
    }
  }
  for (; i + lanes <= n; i += lanes) {
    LINTEL_UNROLL
    for (size_t r = 0; r < kRows; ++r) even[r] = hn::Add(even[r], term(d, r, i));
  }
  LINTEL_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    sums[r] = hn::GetLane(hn::SumOfLanes(d, hn::Add(even[r], odd[r])));
  }
  for (; i < n; ++i) {
    for (size_t r = 0; r < kRows; ++r) sums[r] += hn::GetLane(term(OneLane(), r, i));
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lintel
HWY_AFTER_NAMESPACE();

#endif  // toggle
