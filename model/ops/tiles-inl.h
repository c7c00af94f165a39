// SPDX-License-Identifier: Apache-2.0
// Eight tiles of 16 rows of 64 bytes, as AMX has them and as plain C++: a kernel is written over
// either, so that what it computes can be tested where there is no AMX. And the blocks of outputs
// that use each loaded tile most often. Included by kernels once
// for every instruction set, after Highway's own headers: the guard toggles with the set.
#if defined(LINTEL_MODEL_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINTEL_MODEL_TILES_INL_H_
#undef LINTEL_MODEL_TILES_INL_H_
#else
#define LINTEL_MODEL_TILES_INL_H_
#endif

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "model/ops/packed_weights.h"
#include "model/ops/tile_scope.h"

HWY_BEFORE_NAMESPACE();
namespace lintel {
namespace HWY_NAMESPACE {
namespace {

// The instructions (Intel SDM, volume 2). Tile numbers are a part of them. Strides are in bytes.
// Assembly and not intrinsics: those want literals, and the whole file compiled for AMX.
#if HWY_ARCH_X86_64
class AmxTiles {
 public:
  AmxTiles() { configure_tiles(); }

  template <int kTile>
  HWY_INLINE void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  HWY_INLINE void load(const void* from, size_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(kTile), "r"(from), "r"(stride) : "memory");
  }
  template <int kTile>
  HWY_INLINE void store(void* to, size_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(kTile), "r"(to), "r"(stride) : "memory");
  }
  // Sums += unsigned bytes of a row of A times signed bytes of a column of B.
  template <int kSums, int kA, int kB>
  HWY_INLINE void add_int8() {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
  }
  // Sums += signed bytes of a row of A times unsigned bytes of a column of B.
  template <int kSums, int kA, int kB>
  HWY_INLINE void add_signed_int8() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
  }
  template <int kSums, int kA, int kB>
  HWY_INLINE void add_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
  }
};
#endif

// The results of those instructions, after their pseudocode. Functions of tile numbers, so that
// each is compiled once.
class TwinTiles {
 public:
  template <int kTile>
  void zero() {
    tiles_[kTile] = {};
  }
  template <int kTile>
  void load(const void* from, size_t stride) {
    load(kTile, from, stride);
  }
  template <int kTile>
  void store(void* to, size_t stride) {
    store(kTile, to, stride);
  }
  template <int kSums, int kA, int kB>
  void add_int8() {
    add_int8<uint8_t, int8_t>(kSums, kA, kB);
  }
  template <int kSums, int kA, int kB>
  void add_signed_int8() {
    add_int8<int8_t, uint8_t>(kSums, kA, kB);
  }
  template <int kSums, int kA, int kB>
  void add_bf16() {
    add_bf16(kSums, kA, kB);
  }

 private:
  HWY_NOINLINE void load(int tile, const void* from, size_t stride) {
    for (size_t r = 0; r < 16; ++r) {
      std::memcpy(&tiles_[tile][r], static_cast<const char*>(from) + r * stride, 64);
    }
  }
  HWY_NOINLINE void store(int tile, void* to, size_t stride) {
    for (size_t r = 0; r < 16; ++r) {
      std::memcpy(static_cast<char*>(to) + r * stride, &tiles_[tile][r], 64);
    }
  }

  template <typename ByteOfA, typename ByteOfB>
  HWY_NOINLINE void add_int8(int sums, int a_tile, int b_tile) {
    for (size_t m = 0; m < 16; ++m) {
      for (size_t k = 0; k < 16; ++k) {
        for (size_t n = 0; n < 16; ++n) {
          const uint32_t a = tiles_[a_tile][m][k], b = tiles_[b_tile][k][n];
          uint32_t& sum = tiles_[sums][m][n];  // wraps, as the instruction does
          for (int i = 0; i < 4; ++i) {
            sum += static_cast<uint32_t>(static_cast<ByteOfA>(a >> (8 * i)) *
                                         static_cast<ByteOfB>(b >> (8 * i)));
          }
        }
      }
    }
  }

  // Adds up the first ones of the 16 pairs of a row and a column by fused multiply-adds, and the
  // second ones likewise; then adds these two sums, and that to the earlier value. To nearest, ties
  // to even; denormals are zeros, read and written.
  HWY_NOINLINE void add_bf16(int sums, int a_tile, int b_tile) {
    for (size_t m = 0; m < 16; ++m) {
      std::array<float, 16> first = {}, second = {};
      for (size_t k = 0; k < 16; ++k) {
        const uint32_t a = tiles_[a_tile][m][k];
        for (size_t n = 0; n < 16; ++n) {
          const uint32_t b = tiles_[b_tile][k][n];
          first[n] = flushed(std::fma(float_of(a << 16), float_of(b << 16), first[n]));
          second[n] =
              flushed(std::fma(float_of(a & 0xffff0000u), float_of(b & 0xffff0000u), second[n]));
        }
      }
      for (size_t n = 0; n < 16; ++n) {
        uint32_t& sum = tiles_[sums][m][n];
        const float all = flushed(first[n] + second[n]);
        sum = std::bit_cast<uint32_t>(flushed(float_of(sum) + all));
      }
    }
  }

  static HWY_INLINE float float_of(uint32_t bits) {
    return std::bit_cast<float>((bits & 0x7f800000u) != 0 ? bits : bits & 0x80000000u);
  }
  static HWY_INLINE float flushed(float x) { return float_of(std::bit_cast<uint32_t>(x)); }

  std::array<std::array<std::array<uint32_t, 16>, 16>, 8> tiles_ = {};
};

// Addresses of a block's inputs and weights, cells of four bytes. Tiles 0 to 3 are its sums.
struct TileOperands {
  HWY_INLINE void next() {
    x += kTileCells;
    w += kTileCells * kGroupWidth;
  }

  const uint32_t* x = nullptr;
  const uint32_t* w = nullptr;  // 16 lines of kGroupWidth columns are a tile's
  size_t x_stride = 0;          // bytes
  static constexpr size_t kWStride = kGroupWidth * 4;
};

// 32 rows of 32 columns: each tile of inputs and of weights is used twice.
struct Square {
  static constexpr size_t kRows = 2 * kTileRows;
  static constexpr size_t kColumns = 2 * kTileCells;

  template <class Type, class Tiles>
  static HWY_INLINE void step(const TileOperands& at, Tiles& tiles) {
    tiles.template load<4>(at.x, at.x_stride);
    tiles.template load<6>(at.w, TileOperands::kWStride);
    Type::template add<0, 4, 6>(tiles);
    tiles.template load<7>(at.w + kTileCells, TileOperands::kWStride);
    Type::template add<1, 4, 7>(tiles);
    tiles.template load<5>(at.x + kTileRows * at.x_stride / 4, at.x_stride);
    Type::template add<2, 5, 6>(tiles);
    Type::template add<3, 5, 7>(tiles);
  }

  template <class Tiles>
  static HWY_INLINE void store(Tiles& tiles, uint32_t* to) {
    tiles.template store<0>(to, kColumns * 4);
    tiles.template store<1>(to + kTileCells, kColumns * 4);
    tiles.template store<2>(to + kTileRows * kColumns, kColumns * 4);
    tiles.template store<3>(to + kTileRows * kColumns + kTileCells, kColumns * 4);
  }
};

// 16 rows of a whole group: weights are read in the order they lie in, once.
struct Wide {
  static constexpr size_t kRows = kTileRows;
  static constexpr size_t kColumns = kGroupWidth;
  static_assert(kColumns == 4 * kTileCells);

  template <class Type, class Tiles>
  static HWY_INLINE void step(const TileOperands& at, Tiles& tiles) {
    tiles.template load<4>(at.x, at.x_stride);
    tiles.template load<5>(at.w, TileOperands::kWStride);
    Type::template add<0, 4, 5>(tiles);
    tiles.template load<6>(at.w + kTileCells, TileOperands::kWStride);
    Type::template add<1, 4, 6>(tiles);
    tiles.template load<7>(at.w + 2 * kTileCells, TileOperands::kWStride);
    Type::template add<2, 4, 7>(tiles);
    tiles.template load<5>(at.w + 3 * kTileCells, TileOperands::kWStride);
    Type::template add<3, 4, 5>(tiles);
  }

  template <class Tiles>
  static HWY_INLINE void store(Tiles& tiles, uint32_t* to) {
    tiles.template store<0>(to, kColumns * 4);
    tiles.template store<1>(to + kTileCells, kColumns * 4);
    tiles.template store<2>(to + 2 * kTileCells, kColumns * 4);
    tiles.template store<3>(to + 3 * kTileCells, kColumns * 4);
  }
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lintel
HWY_AFTER_NAMESPACE();

#endif  // LINTEL_MODEL_TILES_INL_H_
