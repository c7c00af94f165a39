// SPDX-License-Identifier: Apache-2.0
#include "model/core/random.h"

namespace lintel {
namespace {

// Constants of the Philox paper: multipliers and Weyl increments of the key.
constexpr std::uint32_t kMultiplier0 = 0xD2511F53;
constexpr std::uint32_t kMultiplier1 = 0xCD9E8D57;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9;
constexpr std::uint32_t kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{kMultiplier0} * counter[0];
    const std::uint64_t product1 = std::uint64_t{kMultiplier1} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

double DrawSource::uniform(std::uint32_t index) const {
  const auto where = static_cast<std::uint64_t>(position);
  const auto bits = philox4x32(
      {static_cast<std::uint32_t>(where), static_cast<std::uint32_t>(where >> 32), index, 0},
      {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  // 52 bits and a half: an odd multiple of 2^-53, so neither 0 nor 1 can come out.
  const std::uint64_t high_bits = (std::uint64_t{bits[1]} << 32 | bits[0]) >> 12;
  return (static_cast<double>(high_bits) + 0.5) * 0x1p-52;
}

}  // namespace lintel
