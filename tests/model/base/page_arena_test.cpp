// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "model/core/tensor.h"
#include "tests/support/catch.h"

namespace lintel {
namespace {

constexpr std::size_t kSlab = PageArena::kSlabBytes;

struct Block {
  unsigned char* memory;
  std::size_t bytes;
  unsigned char mark;
};

bool is_whole(const Block& block) {
  for (std::size_t i = 0; i < block.bytes; ++i) {
    if (block.memory[i] != block.mark) return false;
  }
  return true;
}

// Allocates and frees blocks of any size in any order, of which each is to keep what was written to
// it. Returns whether all did.
bool take_and_give_back(PageArena& arena, unsigned seed, int turns) {
  bool all_whole = true;
  std::mt19937 random(seed);
  std::vector<Block> blocks;
  const auto give_back = [&](std::size_t i) {
    all_whole = all_whole && is_whole(blocks[i]);
    all_whole = arena.free(blocks[i].memory) && all_whole;
    blocks[i] = blocks.back();
    blocks.pop_back();
  };
  for (int turn = 0; turn < turns; ++turn) {
    if (blocks.size() > 40 || (!blocks.empty() && random() % 3 == 0)) {
      give_back(random() % blocks.size());
      continue;
    }
    const std::size_t most = random() % 20 == 0 ? 2 * kSlab : kSlab / 4;
    const std::size_t bytes = kLeastArenaBytes + random() % most;
    auto* const memory = static_cast<unsigned char*>(arena.allocate(bytes));
    all_whole = all_whole && reinterpret_cast<std::uintptr_t>(memory) % kAlignment == 0;
    blocks.push_back({memory, bytes, static_cast<unsigned char>(random())});
    std::memset(memory, blocks.back().mark, bytes);
  }
  while (!blocks.empty()) give_back(blocks.size() - 1);
  return all_whole;
}

}  // namespace

TEST_CASE("Blocks of any size keep what was written to them, and are freed whole") {
  PageArena arena;
  for (unsigned seed = 0; seed < 20; ++seed) CHECK(take_and_give_back(arena, seed, 300));
  CHECK(arena.used_bytes() == 0);
  CHECK(arena.mapped_bytes() == kSlab);  // the one that is kept
}

TEST_CASE("An arena serves many threads", "[threads]") {
  PageArena arena;
  std::atomic<int> whole{0};
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] { whole += take_and_give_back(arena, seed, 500) ? 1 : 0; });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(whole == 4);
  CHECK(arena.mapped_bytes() == kSlab);
}

TEST_CASE("Seven states of the paper's size share a slab, and the eighth begins the next") {
  constexpr std::size_t kState = 270'336;
  PageArena arena;
  std::vector<void*> states;
  for (int i = 0; i < 7; ++i) states.push_back(arena.allocate(kState));
  CHECK(arena.mapped_bytes() == kSlab);
  states.push_back(arena.allocate(kState));
  CHECK(arena.mapped_bytes() == 2 * kSlab);
  // A hole is used before anything new is mapped.
  CHECK(arena.bytes_of(states[3]) == kState);
  CHECK(arena.free(states[3]));
  CHECK_FALSE(arena.free(states[3]));
  CHECK(arena.allocate(kState) == states[3]);
  for (void* const state : states) arena.free(state);
  CHECK(arena.mapped_bytes() == kSlab);
}

TEST_CASE("A block that no slab holds has memory of its own") {
  PageArena arena;
  const std::size_t bytes = PageArena::kMostShared + 1;
  void* const block = arena.allocate(bytes);
  CHECK(reinterpret_cast<std::uintptr_t>(block) % kSlab == 0);  // a huge page can begin there
  CHECK(arena.mapped_bytes() >= bytes);
  CHECK(arena.mapped_bytes() < bytes + 4096);
  arena.free(block);
  CHECK(arena.mapped_bytes() == 0);
}

TEST_CASE("Memory that is freed and allocated again is zero") {
  constexpr std::size_t kCount = kLeastArenaBytes / sizeof(float);
  for (int turn = 0; turn < 3; ++turn) {
    const AlignedArray<float> array = make_aligned<float>(kCount);
    for (std::size_t i = 0; i < kCount; ++i) REQUIRE(array[i] == 0.0f);
    std::fill_n(array.get(), kCount, 1.0f);
  }
}

}  // namespace lintel
