// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/text_index.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

namespace lintel {
namespace {

// Half full, a slot has more before it with a probability below 1e-30.
constexpr std::size_t kMostProbes = 512;
constexpr std::uint64_t kNextSeed = 0xA0761D6478BD642F;

std::size_t num_slots_for(std::size_t entries) { return std::bit_ceil(2 * entries + kMostProbes); }

std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

}  // namespace

TextIndex::TextIndex(std::size_t most_texts) : slots_(num_slots_for(most_texts)) {}

// Eight bytes at a time, each product folded (as wyhash does it).
std::uint64_t TextIndex::hash(std::string_view text) const {
  std::uint64_t h = seed_ ^ 0x8EBC6AF09C88C6E3;
  std::size_t at = 0;
  for (; at < text.size(); at += 8) {
    std::uint64_t part = 0;
    std::memcpy(&part, text.data() + at, std::min<std::size_t>(8, text.size() - at));
    h = mixed(h ^ 0x589965CC75374CC3, part ^ seed_ ^ 0xE7037ED1A0B428DB);
  }
  return mixed(h ^ text.size(), 0x1D8E4E27C47D124F);
}

bool TextIndex::place(const Slot& slot) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = static_cast<std::size_t>(hash({slot.text, slot.size})) & mask;
  for (std::size_t probes = 0; probes < kMostProbes; ++probes, i = (i + 1) & mask) {
    if (slots_[i].text != nullptr) continue;
    slots_[i] = slot;
    return true;
  }
  return false;
}

void TextIndex::fill_again() {
  const std::vector<Slot> old = slots_;
  for (bool fits = false; !fits;) {
    slots_.assign(old.size(), {});
    seed_ += kNextSeed;
    fits = true;
    for (const Slot& slot : old) fits = fits && (slot.text == nullptr || place(slot));
  }
}

std::optional<std::int32_t> TextIndex::insert(std::string_view text, std::int32_t id) {
  if (const auto known = find(text)) return known;
  // An empty text has a place, too.
  const Slot slot{text.empty() ? "" : text.data(), static_cast<std::uint32_t>(text.size()), id};
  while (!place(slot)) fill_again();
  return std::nullopt;
}

std::optional<std::int32_t> TextIndex::find(std::string_view text) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = static_cast<std::size_t>(hash(text)) & mask;
  for (std::size_t probes = 0; probes < kMostProbes; ++probes, i = (i + 1) & mask) {
    const Slot& slot = slots_[i];
    if (slot.text == nullptr) return std::nullopt;
    if (std::string_view(slot.text, slot.size) == text) return slot.id;
  }
  return std::nullopt;
}

PairRanks::PairRanks(std::size_t most_pairs)
    : slots_(num_slots_for(most_pairs)), mask_(slots_.size() - 1) {}

bool PairRanks::place(const Slot& slot) {
  std::size_t i = first_slot(slot.key);
  for (std::size_t probes = 0; probes < kMostProbes; ++probes, i = (i + 1) & mask_) {
    if (slots_[i].rank != kNone) continue;
    slots_[i] = slot;
    return true;
  }
  return false;
}

void PairRanks::fill_again() {
  const std::vector<Slot> old = slots_;
  for (bool fits = false; !fits;) {
    slots_.assign(old.size(), {});
    seed_ += kNextSeed;
    fits = true;
    for (const Slot& slot : old) fits = fits && (slot.rank == kNone || place(slot));
  }
}

bool PairRanks::insert(std::int32_t left, std::int32_t right, std::uint32_t rank) {
  assert(left >= 0 && right >= 0 && rank != kNone);
  if (rank_of(left, right) != kNone) return false;
  const Slot slot{key_of(left, right), rank};
  while (!place(slot)) fill_again();
  return true;
}

}  // namespace lintel
