// SPDX-License-Identifier: Apache-2.0
// max(x, 0). Included by kernels once for every instruction set, after Highway's own headers: the
// guard toggles with the set.
#if defined(LINTEL_MODEL_RELU_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINTEL_MODEL_RELU_INL_H_
#undef LINTEL_MODEL_RELU_INL_H_
#else
#define LINTEL_MODEL_RELU_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

// max(x, 0) that keeps NaN, which would go unnoticed as 0, and -0, on every instruction set.
template <class V>
HWY_INLINE HWY_MAYBE_UNUSED V relu_of(V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  const V zero = hn::Zero(hn::DFromV<V>());
#if HWY_ARCH_X86
  return hn::Max(zero, x);  // the second where one is NaN, or both are zeros
#else
  return hn::IfThenElse(hn::Lt(x, zero), zero, x);
#endif
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lintel
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
