// SPDX-License-Identifier: Apache-2.0
#include "model/ops/tile_scope.h"

#include <cassert>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace lintel {
namespace {

// Intel SDM, volume 1, chapter 18; Linux, Documentation/arch/x86/xstate.rst.
constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;  // CPUID 7, EDX
constexpr unsigned kOsXsave = 1u << 27;                                            // CPUID 1, ECX
constexpr unsigned kXcr0Tiles = 3u << 17;  // configuration and data
constexpr int kArchReqXcompPerm = 0x1023;
constexpr int kXfeatureTileData = 18;

bool processor_has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kOsXsave) == 0) return false;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kAll = kAmxBf16 | kAmxTile | kAmxInt8;
  if ((d & kAll) != kAll) return false;
  asm volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  return (a & kXcr0Tiles) == kXcr0Tiles;
}

struct ThreadTiles {
  int scopes = 0;
  bool configured = false;
};
thread_local ThreadTiles mine;

// The operand of ldtilecfg.
struct alignas(64) TileConfiguration {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfiguration) == 64);

}  // namespace

bool amx_available() {
  static const bool available =
      processor_has_amx() && syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTileData) == 0;
  return available;
}

TileScope::TileScope() { ++mine.scopes; }

TileScope::~TileScope() {
  if (--mine.scopes > 0 || !mine.configured) return;
  asm volatile("tilerelease");
  mine.configured = false;
}

void configure_tiles() {
  assert(mine.scopes > 0);
  if (mine.configured) return;
  static constexpr TileConfiguration kEight;
  asm volatile("ldtilecfg %0" : : "m"(kEight));
  mine.configured = true;
}

void forget_tiles() { mine.configured = false; }

}  // namespace lintel

#else

namespace lintel {

bool amx_available() { return false; }
TileScope::TileScope() = default;
TileScope::~TileScope() = default;
void configure_tiles() {}
void forget_tiles() {}

}  // namespace lintel

#endif
