// SPDX-License-Identifier: Apache-2.0
// StateSlab: a file of slots of one size, each of which is free or has a session's state.
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
// The file does not record which slots are in use: its owner declares them once, with use(). Only
// free slots are written, so a state in use is never overwritten; a write that was cut short is
// found by its checksum. Thread-safe; write(), read(), sync() and functions that free a slot wait
// for the disk.
class StateSlab {
 public:
  struct Slot {
    std::uint64_t index = 0;
    Digest checksum;  // of the stored bytes
  };

  // The bytes of a slot for a state of state_bytes.
  static std::size_t slot_bytes_for(std::size_t state_bytes);
  // The largest state for slots of slot_bytes.
  static std::size_t state_bytes_of(std::size_t slot_bytes);

  // limit_bytes: bound of all slots together. Throws std::system_error.
  StateSlab(std::unique_ptr<StorageFile> file, std::size_t slot_bytes, std::uint64_t limit_bytes);

  // Adds a reference to a slot: by a state that was stored when the file was opened, or by another
  // session that shares it.
  void use(std::uint64_t index) EXCLUDES(mutex_);
  // Releases a reference; after the last one the slot reads as zeros and is free.
  void release(std::uint64_t index) EXCLUDES(mutex_);

  // Writes a state into the lowest free slot, with one reference. False: none is left, by the limit
  // or on the disk. REQUIRES: slot_bytes_for(state.size()) is the size of these. Throws
  // std::system_error.
  bool write(const std::string& session, std::int64_t position, std::span<const std::byte> state,
             Slot* slot) EXCLUDES(mutex_);
  // Reads a state. False: the slot has other contents by now. Throws std::system_error.
  bool read(const Slot& slot, std::int64_t position, std::span<std::byte> state);
  // Syncs earlier writes to the disk, if there are any. Throws std::system_error: the content of
  // the file is unknown then.
  void sync() EXCLUDES(mutex_);

  std::size_t slots_in_use() const EXCLUDES(mutex_);

  // Frees the room of a state that is not required: its slot stays in use, with nothing that read()
  // accepts. Returns how many bytes are free now: 0 if the slot has several references or none, was
  // freed before, or the file system cannot free part of a file.
  std::size_t drop(std::uint64_t index) EXCLUDES(mutex_);
  // True if the slot has data: not after drop().
  bool has_data(std::uint64_t index);
  // True if the slot is beyond limit_bytes, as in a store that had a higher limit before.
  bool is_beyond_limit(std::uint64_t index) const { return index >= slots_; }
  // True if all slots that limit_bytes allows are in use.
  bool is_full() const EXCLUDES(mutex_);
  // Truncates the file after the last slot in use that has data.
  void trim() EXCLUDES(mutex_);

 private:
  std::uint64_t offset_of(std::uint64_t index) const { return index * slot_bytes_; }
  void mark(std::uint64_t index) REQUIRES(mutex_);
  // Zeroes and frees a slot without references.
  void clear(std::uint64_t index) EXCLUDES(mutex_);

  const std::unique_ptr<StorageFile> file_;
  const std::size_t slot_bytes_;
  const std::uint64_t slots_;  // at most

  mutable Mutex mutex_;
  std::vector<std::uint64_t> used_ GUARDED_BY(mutex_);  // a bit for each slot
  std::unordered_map<std::uint64_t, std::uint32_t> shared_
      GUARDED_BY(mutex_);                                    // references beyond the first
  std::size_t first_word_with_room_ GUARDED_BY(mutex_) = 0;  // none before it
  std::size_t in_use_ GUARDED_BY(mutex_) = 0;
  bool written_ GUARDED_BY(mutex_) = false;  // since the last sync()
};

}  // namespace lintel
