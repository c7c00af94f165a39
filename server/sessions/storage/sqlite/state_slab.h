// SPDX-License-Identifier: Apache-2.0
// StateSlab: a file of slots of one size, each with the state of a session, or free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/core/mutex.h"
#include "server/sessions/digest.h"
#include "server/sessions/storage/sqlite/storage_file.h"

namespace lintel {

// A slot is, little-endian: "LNTLSLT1", u32 version, u32 0, u64 bytes of the state, i64 position,
// the digest of the session's id (16 bytes), XXH3-128 of those 48 bytes and the state (16 bytes),
// the state. The next one begins at a multiple of 4 KiB.
//
// Which slots are in use the file does not say: its owner does, once, with use(). A slot is
// written when it is free alone, so a state that something refers to is never written over; a write
// that was cut short is found by its checksum. Thread-safe; write(), read(), sync() and what frees
// a slot wait for the disk.
class StateSlab {
 public:
  struct Slot {
    std::uint64_t index = 0;
    Digest checksum;  // of these very bytes
  };

  // Bytes of a slot for a state of so many.
  static std::size_t slot_bytes_for(std::size_t state_bytes);
  // The largest state for slots of so many bytes.
  static std::size_t state_bytes_of(std::size_t slot_bytes);

  // At most `limit_bytes` of slots, all in all. Throws std::system_error.
  StateSlab(std::unique_ptr<StorageFile> file, std::size_t slot_bytes, std::uint64_t limit_bytes);

  // One more reference to a slot: of a state that was there when the file was opened, or of another
  // session that shares it.
  void use(std::uint64_t index) EXCLUDES(mutex_);
  // One less; after the last one it reads as zeros and is free.
  void release(std::uint64_t index) EXCLUDES(mutex_);

  // Into the lowest free slot, with one reference. False where none is left, by the limit or on the
  // disk. REQUIRES: slot_bytes_for(state.size()) is the size of these. Throws std::system_error.
  bool write(const std::string& session, std::int64_t position, std::span<const std::byte> state,
             Slot* slot) EXCLUDES(mutex_);
  // False where it holds anything but what was written then. Throws std::system_error.
  bool read(const Slot& slot, std::int64_t position, std::span<std::byte> state);
  // What was written before is on the disk when it returns; nothing to do where nothing was.
  // Throws std::system_error: the content of the file is unknown then.
  void sync() EXCLUDES(mutex_);

  std::size_t slots_in_use() const EXCLUDES(mutex_);

  // Frees the room of a state that can do without: its slot stays in use and holds nothing that
  // read() takes. Returns how many bytes are free now: 0 where the slot has several references or
  // none, was freed before, or the file system cannot free part of a file.
  std::size_t drop(std::uint64_t index) EXCLUDES(mutex_);
  // Whether the slot holds anything: not after drop().
  bool has_data(std::uint64_t index);
  // Whether the slot is beyond limit_bytes, as of a store that had more room before.
  bool is_beyond_limit(std::uint64_t index) const { return index >= slots_; }
  // Whether all slots that limit_bytes allows are in use.
  bool is_full() const EXCLUDES(mutex_);
  // Truncates the file after the last slot in use that has data.
  void trim() EXCLUDES(mutex_);

 private:
  std::uint64_t offset_of(std::uint64_t index) const { return index * slot_bytes_; }
  void mark(std::uint64_t index) REQUIRES(mutex_);
  // Without a reference, but not yet free.
  void clear(std::uint64_t index) EXCLUDES(mutex_);

  const std::unique_ptr<StorageFile> file_;
  const std::size_t slot_bytes_;
  const std::uint64_t slots_;  // at most

  mutable Mutex mutex_;
  std::vector<std::uint64_t> used_ GUARDED_BY(mutex_);  // a bit for each slot
  std::unordered_map<std::uint64_t, std::uint32_t> shared_
      GUARDED_BY(mutex_);                                    // more than one: how many more
  std::size_t first_word_with_room_ GUARDED_BY(mutex_) = 0;  // none before it
  std::size_t in_use_ GUARDED_BY(mutex_) = 0;
  bool written_ GUARDED_BY(mutex_) = false;  // since the last sync()
};

}  // namespace lintel
