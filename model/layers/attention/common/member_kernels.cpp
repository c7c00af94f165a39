// SPDX-License-Identifier: Apache-2.0
// Highway includes this file once per instruction set: the order matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/layers/attention/common/member_kernels.cpp"
#include "model/core/simd_targets.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "model/layers/attention/common/weighted_rows-inl.h"
// clang-format on

#include "model/layers/attention/common/member_kernels.h"

#include <algorithm>
#include <cassert>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

using LaneVector = hn::Vec<Lanes>;

// A vector whose lanes sum to q . k.
HWY_INLINE LaneVector products(const float* q, const float* k, size_t d_head) {
  const Lanes d;
  const size_t lanes = hn::Lanes(d);
  LaneVector sum = hn::Zero(d);
  size_t c = 0;
  for (; c + lanes <= d_head; c += lanes) {
    sum = hn::MulAdd(hn::LoadU(d, q + c), hn::LoadU(d, k + c), sum);
  }
  if (c < d_head) {
    const auto rest = hn::FirstN(d, d_head - c);
    sum = hn::MulAdd(hn::MaskedLoad(rest, d, q + c), hn::MaskedLoad(rest, d, k + c), sum);
  }
  return sum;
}

// Lanes [i * lanes / kMembers, (i + 1) * lanes / kMembers) sum to the score of member i: two halves
// as wide are made one vector by adding neighbours.
template <size_t kMembers>
HWY_INLINE LaneVector scores_of(const float* q, const float* const* members, size_t d_head) {
  if constexpr (kMembers == 1) {
    return products(q, *members, d_head);
  } else {
#if HWY_TARGET != HWY_SCALAR  // which has one lane, and no such operations
    const Lanes d;
    const auto low = scores_of<kMembers / 2>(q, members, d_head);
    const auto high = scores_of<kMembers / 2>(q, members + kMembers / 2, d_head);
    return hn::Add(hn::ConcatEven(d, high, low), hn::ConcatOdd(d, high, low));
#endif
  }
}

void AddMembers(MemberSums& sums, const float* const* members, size_t n) {
  constexpr size_t kLanes = hn::MaxLanes(Lanes());
  static_assert(kMemberBlock % kLanes == 0);
  const size_t d_head = sums.d_head;
  HWY_ALIGN float p[kMemberBlock];
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(scores_of<kLanes>(sums.q, members + i, d_head), Lanes(), p + i);
  }
  if (i < n) {
    // The last one again and again, to fill the vector.
    const float* rest[kLanes];
    for (size_t j = 0; j < kLanes; ++j) rest[j] = members[std::min(i + j, n - 1)];
    hn::StoreU(scores_of<kLanes>(sums.q, rest, d_head), Lanes(), p + i);
    i += kLanes;
  }
  add_softmax_block(
      p, n, /*computed=*/i, d_head, [members, d_head](size_t m) { return members[m] + d_head; },
      &sums.max, &sums.sum, sums.out);
}

void Finish(const MemberSums& sums) { scale_row(sums.out, sums.d_head, 1.0f / sums.sum, sums.out); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lintel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lintel {
namespace {
HWY_EXPORT(AddMembers);
HWY_EXPORT(Finish);
}  // namespace

float members_least() { return std::numeric_limits<float>::lowest(); }

void add_members(MemberSums& sums, std::span<const float* const> members) {
  assert(!members.empty() && members.size() <= kMemberBlock);
  HWY_DYNAMIC_DISPATCH(AddMembers)(sums, members.data(), members.size());
}

void finish_members(const MemberSums& sums) { HWY_DYNAMIC_DISPATCH(Finish)(sums); }

}  // namespace lintel
#endif  // HWY_ONCE
