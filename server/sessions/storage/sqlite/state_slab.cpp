// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/storage/sqlite/state_slab.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <system_error>

namespace lintel {
namespace {

constexpr char kSlotMagic[] = "LNTLSLT1";
constexpr std::size_t kSlotHeadBytes = 64, kSlotChecksumAt = 48, kSlotAlignment = 4096;
constexpr std::uint32_t kSlotVersion = 1;

using SlotHead = std::array<std::byte, kSlotHeadBytes>;

struct SlotFields {
  char magic[8];
  std::uint32_t version, zero;
  std::uint64_t bytes;
  std::int64_t position;
  Digest session;
};
static_assert(sizeof(SlotFields) == kSlotChecksumAt);
static_assert(std::endian::native == std::endian::little);

Digest slot_checksum(const SlotHead& head, std::span<const std::byte> state) {
  return digest_of(std::span(head).first(kSlotChecksumAt), state);
}

}  // namespace

std::size_t StateSlab::slot_bytes_for(std::size_t state_bytes) {
  return (kSlotHeadBytes + state_bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

std::size_t StateSlab::state_bytes_of(std::size_t slot_bytes) {
  return slot_bytes - std::min(slot_bytes, kSlotHeadBytes);
}

StateSlab::StateSlab(std::unique_ptr<StorageFile> file, std::size_t slot_bytes,
                     std::uint64_t limit_bytes)
    : file_(std::move(file)), slot_bytes_(slot_bytes), slots_(limit_bytes / slot_bytes) {}

void StateSlab::mark(std::uint64_t index) {
  const std::size_t word = index / 64;
  if (word >= used_.size()) used_.resize(word + 1);
  used_[word] |= std::uint64_t{1} << (index % 64);
  ++in_use_;
}

void StateSlab::use(std::uint64_t index) {
  MutexLock lock(mutex_);
  const std::size_t word = index / 64;
  if (word < used_.size() && (used_[word] >> (index % 64) & 1) != 0) {
    ++shared_[index];
  } else {
    mark(index);
  }
}

void StateSlab::release(std::uint64_t index) {
  {
    MutexLock lock(mutex_);
    const auto shared = shared_.find(index);
    if (shared != shared_.end()) {
      if (--shared->second == 0) shared_.erase(shared);
      return;
    }
  }
  clear(index);
}

void StateSlab::clear(std::uint64_t index) {
  try {
    file_->punch(offset_of(index), slot_bytes_);
  } catch (const std::system_error&) {
    // The content stays until the next state is written there; a disk with such errors fails more
    // important writes, too.
  }
  MutexLock lock(mutex_);
  const std::size_t word = index / 64;
  used_[word] &= ~(std::uint64_t{1} << (index % 64));
  first_word_with_room_ = std::min(first_word_with_room_, word);
  --in_use_;
}

bool StateSlab::write(const std::string& session, std::int64_t position,
                      std::span<const std::byte> state, Slot* slot) {
  {
    MutexLock lock(mutex_);
    std::size_t& word = first_word_with_room_;
    while (word < used_.size() && used_[word] == ~std::uint64_t{0}) ++word;
    const int bit = word < used_.size() ? std::countr_one(used_[word]) : 0;
    slot->index = word * 64 + static_cast<std::uint64_t>(bit);
    if (slot->index >= slots_) return false;
    mark(slot->index);
  }
  SlotFields fields{.magic = {},
                    .version = kSlotVersion,
                    .zero = 0,
                    .bytes = state.size(),
                    .position = position,
                    .session = digest_of(std::as_bytes(std::span(session)))};
  std::memcpy(fields.magic, kSlotMagic, sizeof(fields.magic));
  SlotHead head{};
  std::memcpy(head.data(), &fields, sizeof(fields));
  slot->checksum = slot_checksum(head, state);
  std::ranges::copy(slot->checksum.bytes, head.begin() + kSlotChecksumAt);
  try {
    file_->write(offset_of(slot->index), head, state);
  } catch (const std::system_error& error) {
    clear(slot->index);
    const int code = error.code().value();
    if (code == ENOSPC || code == EDQUOT || code == EFBIG) return false;
    throw;
  }
  MutexLock lock(mutex_);
  written_ = true;
  return true;
}

bool StateSlab::read(const Slot& slot, std::int64_t position, std::span<std::byte> state) {
  SlotHead head;
  if (file_->read(offset_of(slot.index), head, state) != head.size() + state.size()) return false;
  SlotFields fields;
  std::memcpy(&fields, head.data(), sizeof(fields));
  return std::memcmp(fields.magic, kSlotMagic, sizeof(fields.magic)) == 0 &&
         fields.version == kSlotVersion && fields.bytes == state.size() &&
         fields.position == position &&
         std::ranges::equal(slot.checksum.bytes, std::span(head).subspan(kSlotChecksumAt)) &&
         slot_checksum(head, state) == slot.checksum;
}

void StateSlab::sync() {
  {
    MutexLock lock(mutex_);
    if (!written_) return;
    written_ = false;  // later writes are not covered
  }
  try {
    file_->sync();
  } catch (...) {
    MutexLock lock(mutex_);
    written_ = true;
    throw;
  }
}

std::size_t StateSlab::drop(std::uint64_t index) {
  {
    MutexLock lock(mutex_);
    const std::size_t word = index / 64;
    const bool is_used = word < used_.size() && (used_[word] >> (index % 64) & 1) != 0;
    if (!is_used || shared_.contains(index)) return 0;
  }
  if (!has_data(index)) return 0;
  return file_->give_back(offset_of(index), slot_bytes_) ? slot_bytes_ : 0;
}

bool StateSlab::is_full() const {
  MutexLock lock(mutex_);
  std::size_t word = first_word_with_room_;
  while (word < used_.size() && used_[word] == ~std::uint64_t{0}) ++word;
  const int bit = word < used_.size() ? std::countr_one(used_[word]) : 0;
  return word * 64 + static_cast<std::uint64_t>(bit) >= slots_;
}

bool StateSlab::has_data(std::uint64_t index) {
  return file_->has_data(offset_of(index), slot_bytes_);
}

void StateSlab::trim() {
  std::uint64_t end = 0;
  {
    MutexLock lock(mutex_);
    for (std::size_t word = used_.size(); word-- > 0 && end == 0;) {
      for (std::uint64_t bit = 64; bit-- > 0 && end == 0;) {
        const std::uint64_t index = word * 64 + bit;
        if ((used_[word] >> bit & 1) != 0 && has_data(index)) end = index + 1;
      }
    }
  }
  file_->cut(offset_of(end));
}

std::size_t StateSlab::slots_in_use() const {
  MutexLock lock(mutex_);
  return in_use_;
}

}  // namespace lintel
