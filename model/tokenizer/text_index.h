// SPDX-License-Identifier: Apache-2.0
// Ids by text, and ranks by pairs of ids: hash tables over arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace lintel {

// Texts of other owners, by number. A file cannot make it slow: when many texts have neighbouring
// hashes, the table is filled again with another hash.
class TextIndex {
 public:
  // For up to so many texts.
  explicit TextIndex(std::size_t most_texts);

  // `text` outlives the index. The id that the text has already, if it has one; then nothing
  // changes. REQUIRES: fewer texts than given above.
  std::optional<std::int32_t> insert(std::string_view text, std::int32_t id);
  std::optional<std::int32_t> find(std::string_view text) const;

 private:
  struct Slot {
    const char* text = nullptr;  // null: empty
    std::uint32_t size = 0;
    std::int32_t id = 0;
  };
  std::uint64_t hash(std::string_view text) const;
  void fill_again();
  // False: too many lie before its place.
  bool place(const Slot& slot);

  std::vector<Slot> slots_;  // a power of two, at most half of them full
  std::uint64_t seed_ = 0;
};

// The pairs of tokens that BPE joins, and their order. Holds numbers only.
class PairRanks {
 public:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;

  explicit PairRanks(std::size_t most_pairs);

  // False: the pair is there already. REQUIRES: fewer pairs than given above, ids of 0 or more.
  bool insert(std::int32_t left, std::int32_t right, std::uint32_t rank);
  // kNone: the two are not joined.
  std::uint32_t rank_of(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = key_of(left, right);
    for (std::size_t i = first_slot(key);; i = (i + 1) & mask_) {
      const Slot& slot = slots_[i];
      if (slot.key == key) return slot.rank;
      if (slot.rank == kNone) return kNone;
    }
  }

 private:
  struct Slot {
    std::uint64_t key = ~std::uint64_t{0};  // of no pair: ids are not negative
    std::uint32_t rank = kNone;
  };
  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 |
           static_cast<std::uint32_t>(right);
  }
  std::size_t first_slot(std::uint64_t key) const {
    std::uint64_t h = (key ^ seed_) * 0x9E3779B97F4A7C15;
    h = (h ^ h >> 32) * 0xD6E8FEB86659FD93;
    return static_cast<std::size_t>(h >> 32) & mask_;
  }
  void fill_again();
  // False: too many lie before its place.
  bool place(const Slot& slot);

  std::vector<Slot> slots_;  // a power of two, at most half of them full
  std::size_t mask_;
  std::uint64_t seed_ = 0;
};

}  // namespace lintel
