// SPDX-License-Identifier: Apache-2.0
// The pages of a KV cache: shared and copied on write, saved and loaded, counted and zeroed.
#include "model/layers/mixers/kv_cache.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "model/core/errors.h"
#include "model/core/state_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/watched_memory.h"

namespace lintel {
namespace {

constexpr std::size_t kAll = SIZE_MAX;  // no window

// Caches of one layer, and tokens for them.
struct Caches {
  explicit Caches(KvType type, std::size_t of_window = kAll)
      : shape{.heads = 2, .width = 24, .type = type}, layout(shape, of_window), window(of_window) {}

  std::unique_ptr<KvCache> make() const {
    return std::make_unique<KvCache>(layout.shape(), window);
  }

  // Feeds positions up to `end` of a text.
  void feed(KvCache& cache, std::size_t end, unsigned text = 0) const {
    const std::size_t width = shape.heads * shape.width;
    while (cache.length() < end) {
      std::mt19937 random(1000 * text + static_cast<unsigned>(cache.length()));
      std::normal_distribution<float> normal;
      std::vector<float> row(2 * width);
      for (float& value : row) value = normal(random);
      cache.begin_run(1);
      cache.append(row.data(), row.data() + width);
      cache.release_unseen();
    }
  }

  std::size_t page_bytes() const { return SharedBlock::bytes_of(kv_page_bytes(shape)); }

  const KvShape shape;
  const KvCacheLayout layout;
  const std::size_t window;
};

std::vector<std::byte> bytes_of(const KvCache& cache, std::int64_t since = 0) {
  std::vector<std::byte> bytes;
  StateByteWriter writer(bytes);
  cache.save(since, writer);
  return bytes;
}

void load(KvCache& cache, std::int64_t position, std::span<const std::byte> bytes) {
  StateByteReader reader(bytes);
  cache.load(position, reader);
  if (reader.bytes_left() > 0) throw ModelError("bytes are left");
}

TEST_CASE("KV cache: a copy shares every page until one of the two writes it") {
  const KvType type = GENERATE(from_range(kKvTypes));
  CAPTURE(to_string(type));
  const Caches caches(type);
  const auto source = caches.make();
  caches.feed(*source, 100);  // 6 full pages, and 4 positions of the next
  const std::vector<std::byte> at_fork = bytes_of(*source);
  const auto fork = caches.make();
  fork->assign(*source);
  CHECK(source->shared_pages() == 7);
  CHECK(fork->page_of(0) == source->page_of(0));
  CHECK(bytes_of(*fork) == at_fork);

  caches.feed(*fork, 101, /*text=*/1);
  CHECK(fork->shared_pages() == 6);
  CHECK(fork->page_of(96) != source->page_of(96));
  CHECK(fork->page_of(95) == source->page_of(95));
  CHECK(bytes_of(*source) == at_fork);
  const std::vector<std::byte> of_fork = bytes_of(*fork);
  // The other one is the only owner of the page that was copied.
  const std::byte* const own = source->page_of(96);
  caches.feed(*source, 130);
  CHECK(source->page_of(96) == own);
  CHECK(bytes_of(*fork) == of_fork);

  const auto alone = caches.make();
  caches.feed(*alone, 130);
  CHECK(bytes_of(*alone) == bytes_of(*source));
  source->reset();
  CHECK(source->bytes() == 0);
  CHECK(fork->shared_pages() == 0);
  CHECK(bytes_of(*fork) == of_fork);
}

TEST_CASE("KV cache: drafts on a copy leave its source as it was") {
  const Caches caches(GENERATE(from_range(kKvTypes)));
  const auto source = caches.make();
  caches.feed(*source, 37);
  const std::vector<std::byte> before = bytes_of(*source);
  const auto fork = caches.make();
  fork->assign(*source);
  fork->begin_speculation(20, {});
  fork->begin_run(21);
  const std::vector<float> row(96, 0.5f);
  for (int i = 0; i < 21; ++i) fork->append(row.data(), row.data() + 48);
  fork->rollback(20);
  CHECK(fork->length() == 38);
  CHECK(bytes_of(*source) == before);
}

TEST_CASE("KV cache: a fork of 4,000 tokens takes at most one page") {
  const Caches caches(GENERATE(from_range(kKvTypes)));
  const auto source = caches.make();
  caches.feed(*source, 4000 - 5);
#ifdef LINTEL_WATCHED_MEMORY
  const auto fork = caches.make();
  testing::AlignedBlocks made(kv_page_bytes(caches.shape));
  fork->assign(*source);
  CHECK(made.contents().empty());
  caches.feed(*fork, 4000 - 4, 1);
  caches.feed(*source, 4000 - 4, 2);
  CHECK(made.contents().size() == 1);
#endif
}

TEST_CASE("KV cache: bytes are what the layout says, page by page") {
  const KvType type = GENERATE(from_range(kKvTypes));
  const std::size_t window = GENERATE(values<std::size_t>({kAll, 1, 16, 17, 40}));
  CAPTURE(to_string(type), window);
  const Caches caches(type, window);
  CHECK(kv_page_bytes(caches.shape) == 16 * 2 * 2 *
                                           (type == KvType::kF32    ? 24 * 4
                                            : type == KvType::kBf16 ? 24 * 2
                                                                    : 24 + 4));
  const auto cache = caches.make();
  CHECK(cache->bytes() == 0);
  CHECK(caches.layout.state_bytes(0) == 0);
  std::size_t most = 0;
  for (std::size_t n = 1; n <= 400; ++n) {
    caches.feed(*cache, n);
    const auto tokens = static_cast<std::int64_t>(n);
    REQUIRE(cache->bytes() <= caches.layout.state_bytes(tokens));
    if (window == kAll) REQUIRE(cache->bytes() == caches.layout.state_bytes(tokens));
    most = std::max(most, cache->bytes());
  }
  const std::int64_t full = caches.layout.tokens_until_full();
  CHECK(caches.layout.block_floats() == 0);
  if (window == kAll) {
    CHECK(full == kNeverFull);
    CHECK(caches.layout.state_bytes(INT64_MAX) == SIZE_MAX);
    return;
  }
  CHECK(caches.layout.state_bytes(full) == caches.layout.state_bytes(INT64_MAX));
  CHECK(caches.layout.state_bytes(full) - most <= 2 * caches.page_bytes());
}

TEST_CASE("KV cache: a saved cache has its bits again, whole and in parts") {
  const KvType type = GENERATE(from_range(kKvTypes));
  const std::size_t window = GENERATE(values<std::size_t>({kAll, 1, 20}));
  CAPTURE(to_string(type), window);
  const Caches caches(type, window);
  const auto source = caches.make();
  const auto follower = caches.make();
  for (const std::size_t end : {0, 1, 15, 16, 17, 32, 33, 90, 90, 200}) {
    CAPTURE(end);
    const auto since = static_cast<std::int64_t>(source->length());
    caches.feed(*source, end);
    const std::vector<std::byte> whole = bytes_of(*source);
    const auto loaded = caches.make();
    load(*loaded, static_cast<std::int64_t>(end), whole);
    CHECK(bytes_of(*loaded) == whole);
    CHECK(loaded->bytes() == source->bytes());
    load(*follower, static_cast<std::int64_t>(end), bytes_of(*source, since));
    CHECK(bytes_of(*follower) == whole);
    caches.feed(*loaded, end + 40);
    const auto continued = caches.make();
    continued->assign(*source);
    caches.feed(*continued, end + 40);
    CHECK(bytes_of(*loaded) == bytes_of(*continued));
  }
}

// The values of a position as a page of the format has them: keys [HKV D], then values.
std::vector<float> row_of(const KvShape& shape, const std::byte* page, std::size_t slot) {
  const std::size_t width = shape.heads * shape.width;
  const auto cell = [&]<typename Cell>(Cell value, std::size_t at) {
    std::memcpy(&value, page + at * sizeof(Cell), sizeof(Cell));
    return value;
  };
  std::vector<float> row(2 * width);
  for (std::size_t h = 0; h < shape.heads; ++h) {
    const std::size_t of_head = h * 2 * kKvPage * shape.width;
    for (std::size_t c = 0; c < 2 * shape.width; ++c) {
      const bool is_key = c < shape.width;
      const std::size_t at = of_head + (is_key ? c * kKvPage + slot
                                               : (kKvPage + slot) * shape.width + c - shape.width);
      float& value = row[(is_key ? 0 : width - shape.width) + h * shape.width + c];
      if (shape.type == KvType::kF32) {
        value = cell(0.0f, at);
      } else if (shape.type == KvType::kBf16) {
        value = std::bit_cast<float>(std::uint32_t{cell(std::uint16_t{0}, at)} << 16);
      } else {
        const std::size_t scales = shape.heads * 2 * kKvPage * shape.width / sizeof(float);
        value = cell(0.0f, scales + (2 * h + (is_key ? 0 : 1)) * kKvPage + slot) *
                static_cast<float>(cell(std::int8_t{0}, at));
      }
    }
  }
  return row;
}

TEST_CASE("KV cache: one that was saved in another type is converted cell by cell") {
  const KvType from = GENERATE(from_range(kKvTypes));
  const KvType to = GENERATE(from_range(kKvTypes));
  const std::size_t window = GENERATE(values<std::size_t>({kAll, 1, 20}));
  if (from == to) return;
  CAPTURE(to_string(from), to_string(to), window);
  const Caches before(from, window), after(to, window);
  const auto source = before.make();
  const auto expected = after.make();
  const auto follower = after.make();
  for (const std::size_t end : {0, 1, 15, 16, 33, 90}) {
    CAPTURE(end);
    const auto since = static_cast<std::int64_t>(source->length());
    before.feed(*source, end);
    while (expected->length() < end) {
      // Pages that have left the window are gone from the source, and from what is expected.
      const std::size_t at = expected->length();
      const bool is_seen = at / kKvPage >= (end + 1 > window ? (end + 1 - window) / kKvPage : 0);
      const std::vector<float> row =
          is_seen ? row_of(before.shape, source->page_of(at), at % kKvPage)
                  : std::vector<float>(2 * after.shape.heads * after.shape.width);
      expected->begin_run(1);
      expected->append(row.data(), row.data() + row.size() / 2);
      expected->release_unseen();
    }
    const auto loaded = after.make();
    load(*loaded, static_cast<std::int64_t>(end), bytes_of(*source));
    CHECK(bytes_of(*loaded) == bytes_of(*expected));
    CHECK(loaded->bytes() == expected->bytes());
    load(*follower, static_cast<std::int64_t>(end), bytes_of(*source, since));
    CHECK(bytes_of(*follower) == bytes_of(*expected));
    // The converted cache continues as one of its own type.
    after.feed(*loaded, end + 40);
    const auto continued = after.make();
    continued->assign(*expected);
    after.feed(*continued, end + 40);
    CHECK(bytes_of(*loaded) == bytes_of(*continued));
  }
}

TEST_CASE("KV cache: the reader knows if a cache was converted") {
  const Caches f32(KvType::kF32), bf16(KvType::kBf16);
  const auto source = f32.make();
  f32.feed(*source, 20);
  const std::vector<std::byte> bytes = bytes_of(*source);
  StateByteReader same(bytes), other(bytes);
  f32.make()->load(20, same);
  bf16.make()->load(20, other);
  CHECK_FALSE(same.has_converted());
  CHECK(other.has_converted());
}

TEST_CASE("KV cache: numbers that are infinite in the other type are refused") {
  const float largest = std::numeric_limits<float>::max();
  const auto refused = [](KvType from, KvType to, std::size_t at, float value) {
    const Caches before(from), after(to);
    const auto source = before.make();
    before.feed(*source, 16);
    std::vector<std::byte> bytes = bytes_of(*source);
    std::memcpy(bytes.data() + bytes.size() - kv_page_bytes(before.shape) + at, &value,
                sizeof value);
    try {
      load(*after.make(), 16, bytes);
    } catch (const ModelError& error) {
      CHECK_THAT(error.what(), Catch::Contains("not finite"));
      return true;
    }
    return false;
  };
  CHECK(refused(KvType::kF32, KvType::kBf16, 0, largest));
  CHECK_FALSE(refused(KvType::kF32, KvType::kBf16, 0, 1e38f));
  CHECK_FALSE(refused(KvType::kF32, KvType::kInt8, 0, largest));
  // The first scale of an int8 page, after its cells.
  const std::size_t scales = 2 * 2 * kKvPage * 24;
  CHECK(refused(KvType::kInt8, KvType::kF32, scales, largest));
  CHECK(refused(KvType::kInt8, KvType::kBf16, scales, largest));
  CHECK_FALSE(refused(KvType::kInt8, KvType::kF32, scales, 1e30f));
}

TEST_CASE("KV cache: loading into a copy leaves what it shares as it was") {
  const Caches caches(KvType::kInt8);
  const auto source = caches.make();
  caches.feed(*source, 20);
  const std::vector<std::byte> before = bytes_of(*source);
  const auto longer = caches.make();
  longer->assign(*source);
  caches.feed(*longer, 50);
  const auto copy = caches.make();
  copy->assign(*source);
  load(*copy, 50, bytes_of(*longer, 20));
  CHECK(bytes_of(*copy) == bytes_of(*longer));
  CHECK(bytes_of(*source) == before);
}

TEST_CASE("KV cache: what is saved in the process shares its pages") {
  const Caches caches(GENERATE(from_range(kKvTypes)));
  const auto source = caches.make();
  caches.feed(*source, 70);
  SharedState state;
  SharedStateWriter writer(state);
  source->save(0, writer);
  CHECK(state.blocks.size() == 5);
  CHECK(state.bytes.size() < 64);
  CHECK(source->shared_pages() == 5);
  const auto loaded = caches.make();
  SharedStateReader reader(state);
  loaded->load(70, reader);
  CHECK(loaded->page_of(0) == source->page_of(0));
  const std::vector<std::byte> before = bytes_of(*source);
  caches.feed(*loaded, 75, 1);
  CHECK(bytes_of(*source) == before);
  const auto again = caches.make();
  SharedStateReader second(state);
  again->load(70, second);
  CHECK(bytes_of(*again) == before);
  const auto surplus = caches.make();
  CHECK_THROWS_AS(surplus->load(70, second), ModelError);
}

// The error of load() for the bytes, or nothing.
std::string refusal(const Caches& caches, std::int64_t position,
                    const std::vector<std::byte>& bytes) {
  const auto cache = caches.make();
  try {
    load(*cache, position, bytes);
  } catch (const ModelError& error) {
    cache->reset();
    CHECK(cache->bytes() == 0);
    return error.what();
  }
  return "";
}

TEST_CASE("KV cache: hostile bytes are refused by what is wrong with them", "[threat-7]") {
  const KvType type = GENERATE(from_range(kKvTypes));
  CAPTURE(to_string(type));
  const Caches caches(type);
  const auto source = caches.make();
  caches.feed(*source, 40);
  const std::vector<std::byte> good = bytes_of(*source);
  REQUIRE(refusal(caches, 40, good).empty());
  constexpr std::size_t kHeader = 24;
  const auto with = [&](std::size_t at, auto value) {
    std::vector<std::byte> bytes = good;
    std::memcpy(bytes.data() + at, &value, sizeof value);
    return refusal(caches, 40, bytes);
  };
  using Catch::Contains;
  for (const std::size_t size : {std::size_t{0}, std::size_t{3}, kHeader, good.size() - 1}) {
    CAPTURE(size);
    const std::vector<std::byte> cut(good.begin(),
                                     good.begin() + static_cast<std::ptrdiff_t>(size));
    CHECK_THAT(refusal(caches, 40, cut), Contains("bytes more"));
  }
  CHECK_THAT(with(0, std::uint32_t{7}), Contains("a KV cache of format 7"));
  // Cells of another type would be of another size.
  CHECK_FALSE(with(4, (static_cast<std::uint32_t>(type) + 1) % 3).empty());
  CHECK_THAT(with(4, std::uint32_t{3}), Contains("a KV cache of type 3"));
  CHECK_THAT(with(8, std::uint64_t{16}), Contains("positions from"));
  CHECK_THAT(with(16, std::uint64_t{41}), Contains("positions up to"));
  CHECK_THAT(refusal(caches, 39, good), Contains("positions up to"));
  // Lengths beyond the bytes that follow.
  std::vector<std::byte> lie = good;
  const std::uint64_t many = INT32_MAX;
  std::memcpy(lie.data() + 16, &many, sizeof many);
  CHECK_THAT(refusal(caches, INT32_MAX, lie), Contains("bytes more"));
  const std::uint64_t too_many = std::uint64_t{1} << 40;
  std::memcpy(lie.data() + 16, &too_many, sizeof too_many);
  CHECK_THAT(refusal(caches, std::int64_t{1} << 40, lie), Contains("positions 0 to"));

  const std::size_t last_page = good.size() - kv_page_bytes(caches.shape);
  constexpr const char* kNotFinite = "not finite";
  const float infinity = std::numeric_limits<float>::infinity();
  if (type == KvType::kF32) {
    CHECK_THAT(with(kHeader, infinity), Contains(kNotFinite));
    CHECK_THAT(with(last_page, std::numeric_limits<float>::quiet_NaN()), Contains(kNotFinite));
  } else if (type == KvType::kBf16) {
    CHECK_THAT(with(kHeader, std::uint16_t{0x7f80}), Contains(kNotFinite));
    CHECK_THAT(with(good.size() - 2, std::uint16_t{0xffc1}), Contains(kNotFinite));
    CHECK(with(kHeader, std::uint16_t{0xff7f}).empty());
  } else {
    CHECK_THAT(with(good.size() - 4, infinity), Contains(kNotFinite));
    CHECK_THAT(with(good.size() - 4, -1.0f), Contains(kNotFinite));
    CHECK(with(kHeader, std::int8_t{-128}).empty());
  }
}

#ifdef LINTEL_WATCHED_MEMORY
TEST_CASE("KV cache: pages are zeroed with their last owner, and before it", "[threat-7]") {
  const Caches caches(GENERATE(from_range(kKvTypes)));
  const std::size_t page = kv_page_bytes(caches.shape);
  auto source = caches.make();
  caches.feed(*source, 40);
  auto fork = caches.make();
  fork->assign(*source);
  {
    const testing::FreedMemory freed(page);
    source.reset();
    CHECK(freed.blocks() == 0);
  }
  const testing::FreedMemory freed(page);
  fork.reset();
  CHECK(freed.blocks() == 3);
  CHECK(freed.dirty() == 0);
}

TEST_CASE("KV cache: pages that left the window are zeroed and freed", "[threat-7]") {
  const Caches caches(GENERATE(from_range(kKvTypes)), /*window=*/16);
  const auto cache = caches.make();
  caches.feed(*cache, 30);
  const testing::FreedMemory freed(kv_page_bytes(caches.shape));
  caches.feed(*cache, 31);  // position 31 sees 16 and what follows
  CHECK(freed.blocks() == 1);
  CHECK(freed.dirty() == 0);
}
#endif

TEST_CASE("KV cache: forks on many threads have the bits of one alone", "[threads]") {
  const KvType type = GENERATE(from_range(kKvTypes));
  const Caches caches(type);
  auto source = caches.make();
  caches.feed(*source, 71);
  constexpr unsigned kThreads = 4;
  std::vector<std::vector<std::byte>> expected;
  for (unsigned i = 0; i < kThreads; ++i) {
    const auto alone = caches.make();
    caches.feed(*alone, 71);
    caches.feed(*alone, 100 + i, /*text=*/i);
    expected.push_back(bytes_of(*alone));
  }
  for (int turn = 0; turn < 8; ++turn) {
    // Forks are made on all threads from one source, which goes meanwhile.
    auto held = caches.make();
    held->assign(*source);
    std::vector<std::unique_ptr<KvCache>> forks;
    for (unsigned i = 0; i < kThreads; ++i) {
      forks.push_back(caches.make());
      forks.back()->assign(*held);
    }
    std::vector<std::vector<std::byte>> found(kThreads);
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        KvCache& fork = *forks[i];
        const auto mine = caches.make();
        mine->assign(*source);  // copies of one handle on several threads
        caches.feed(*mine, 100 + i, i);
        caches.feed(fork, 100 + i, i);
        found[i] = bytes_of(fork);
        if (bytes_of(*mine) != found[i]) found[i].clear();
        forks[i].reset();
      });
    }
    held.reset();
    for (std::thread& thread : threads) thread.join();
    CHECK(found == expected);
  }
  CHECK(source->shared_pages() == 0);
}

}  // namespace
}  // namespace lintel
