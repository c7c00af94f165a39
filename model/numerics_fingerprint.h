// SPDX-License-Identifier: Apache-2.0
// NumericsFingerprint: which bits a machine computes with a model.
#pragma once

#include <cstddef>
#include <string>

#include "model/transformer.h"

namespace lintel {

// Two of one `hex` continue a sequence with the same bits, as far as a probe of 64 tokens can tell;
// where it differs both are right, and not the same.
struct NumericsFingerprint {
  // SHA-256 of the model, its attention, its weight type, the type of its KV caches and what the
  // probe gave.
  std::string hex;
  std::string text;  // for people: "int8 avx512_vnni, AVX3_ZEN4, lintel 0.3.0"
};

// Tokens of the probe; fewer where a sequence cannot hold as many.
inline constexpr std::size_t kNumericsTokens = 64;

// Reads the probe in slices of so many tokens: the hash is the same for all (promise 1). As one
// slice it takes as long as a prompt of 64 tokens. The team, if there is one, shares the steps.
NumericsFingerprint numerics_of(const Transformer& model, std::size_t slice = kNumericsTokens,
                                StepThreadPool* team = nullptr);

}  // namespace lintel
