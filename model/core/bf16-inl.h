// SPDX-License-Identifier: Apache-2.0
// Floats as bf16. Included by kernels once for every instruction set, after Highway's own headers:
// the guard toggles with the set.
#if defined(LINTEL_MODEL_BF16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINTEL_MODEL_BF16_INL_H_
#undef LINTEL_MODEL_BF16_INL_H_
#else
#define LINTEL_MODEL_BF16_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// A vector of floats as so many bf16, to nearest, ties to even; NaN stays NaN.
template <class V>
HWY_INLINE HWY_MAYBE_UNUSED void store_bf16(V value, uint16_t* to) {
  using D = hn::DFromV<V>;
  const hn::RebindToUnsigned<D> u;
  const hn::Rebind<uint16_t, D> half;
  const auto bits = hn::BitCast(u, value);
  // Half an ulp less one, and one more when the kept part is odd: ties go to even.
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1));
  const auto rounded = hn::Add(bits, hn::Add(hn::Set(u, 0x7fff), odd));
  const auto quiet_nan = hn::Or(bits, hn::Set(u, 0x400000));
  const auto is_nan = hn::RebindMask(u, hn::IsNaN(value));
  const auto kept = hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet_nan, rounded));
  hn::StoreU(hn::DemoteTo(half, hn::BitCast(hn::RebindToSigned<D>(), kept)), half, to);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lintel
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
