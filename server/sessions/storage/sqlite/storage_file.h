// SPDX-License-Identifier: Apache-2.0
// File system access of a storage in addition to its database: a directory of its own, and files of
// slots.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

namespace lintel {

// A storage that cannot be opened, with the reason for people.
class StorageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A file with writes at any offset. Thread-safe for disjoint ranges. Throws std::system_error.
class StorageFile {
 public:
  virtual ~StorageFile() = default;
  // Writes both parts at once, unless the system takes less at once.
  virtual void write(std::uint64_t offset, std::span<const std::byte> head,
                     std::span<const std::byte> body) = 0;
  // Fills `head`, then `body`, with one read. Returns how many bytes there were: fewer only at the
  // end of the file.
  virtual std::size_t read(std::uint64_t offset, std::span<std::byte> head,
                           std::span<std::byte> body) = 0;
  // Syncs all writes to the disk.
  virtual void sync() = 0;
  // Zeroes the bytes, and frees their room if the file system can do that.
  virtual void punch(std::uint64_t offset, std::uint64_t bytes) = 0;
  // True if any of these bytes takes room on the disk, or the file system cannot report it.
  virtual bool has_data(std::uint64_t offset, std::uint64_t bytes) = 0;
  // Frees the room of these bytes, which read as zeros from now on, and needs none itself. False,
  // and nothing changed: the file system cannot do that.
  virtual bool give_back(std::uint64_t offset, std::uint64_t bytes) = 0;
  // Truncates the file to at most `bytes`.
  virtual void cut(std::uint64_t bytes) = 0;
};

using OpenStorageFile = std::function<std::unique_ptr<StorageFile>(const std::filesystem::path&)>;
// Created where it is missing, readable by this user alone. Throws std::system_error, also for a
// symbolic link.
std::unique_ptr<StorageFile> open_storage_file(const std::filesystem::path& path);

// Writes incompressible bytes [from, to), so that their room is taken. Throws std::system_error.
void take_room(StorageFile& file, std::size_t from, std::size_t to);
// True if the error means that there is no room on the disk.
bool is_want_of_room(const std::system_error& error);

// A directory for the exclusive use of this process: its file `lock` is flock()ed, and names the
// process.
class StorageDirectory {
 public:
  // Creates it where it is missing, and sets mode 0700 in any case. Throws StorageError: in use by
  // another process, not writable, open to other users and not to be changed, or holding files that
  // are no storage's or no regular files.
  explicit StorageDirectory(std::filesystem::path path);
  ~StorageDirectory();
  StorageDirectory(const StorageDirectory&) = delete;
  StorageDirectory& operator=(const StorageDirectory&) = delete;

  std::filesystem::path database() const { return path_ / "sessions.db"; }
  std::filesystem::path acknowledged() const { return path_ / "acknowledged"; }
  std::filesystem::path reserve() const { return path_ / "reserve"; }
  // The slot sizes of the existing slabs.
  std::vector<std::size_t> slot_sizes() const;
  std::filesystem::path slab(std::size_t slot_bytes) const {
    return path_ / ("states-" + std::to_string(slot_bytes) + ".slab");
  }

 private:
  const std::filesystem::path path_;
  int lock_ = -1;
};

// CommitWatermark: the last acknowledged record of the journal, in a file next to the database.

// SQLite ends its log at the first page whose checksum is wrong: rightly after a power loss, when a
// commit was cut short, but a bit that flips there later removes all later commits without a trace.
// This number reveals them. It is written after each commit and not synced, so it is never ahead of
// the durable commits, and costs a write into the page cache; after a power loss it may be behind.
// 16 bytes, little-endian: the number, XXH3-64 of it. Not thread-safe.
class CommitWatermark {
 public:
  explicit CommitWatermark(std::unique_ptr<StorageFile> file);

  // The number in the file when it was opened; 0 if it was empty or damaged itself.
  std::int64_t found() const { return found_; }
  // Writes the number. Errors are ignored: it only helps to detect damage.
  void note(std::int64_t seq) noexcept;

 private:
  const std::unique_ptr<StorageFile> file_;
  std::int64_t found_ = 0;
};

}  // namespace lintel
