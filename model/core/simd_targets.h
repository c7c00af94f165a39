// SPDX-License-Identifier: Apache-2.0
// Instruction sets our Highway code is compiled for. Include before anything of Highway's.
//
// Every set costs compile time: on x86-64 AVX-512, AVX2 and plain C++ for what is older remain.
// Scalable vectors are left out because kernels keep vectors in arrays.
#pragma once

#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

// Before a short loop over vectors in an array: they become registers once it is unrolled, which
// GCC at -O2 does not do by itself. Not with sanitizers, which take minutes to compile what comes
// of it.
#if defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define LINTEL_UNROLL _Pragma("GCC unroll 32")
#else
#define LINTEL_UNROLL
#endif
