// SPDX-License-Identifier: Apache-2.0
// What a storage needs of a file system in addition to its database: a directory of its own, and
// files of slots.
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

// A file that is written in places. Thread-safe, as far as places differ. Throws std::system_error.
class StorageFile {
 public:
  virtual ~StorageFile() = default;
  // Both parts as one write, unless the system takes less at once.
  virtual void write(std::uint64_t offset, std::span<const std::byte> head,
                     std::span<const std::byte> body) = 0;
  // Fills `head`, then `body`, as one read. Returns how many bytes there were: fewer at the file's
  // end alone.
  virtual std::size_t read(std::uint64_t offset, std::span<std::byte> head,
                           std::span<std::byte> body) = 0;
  // What was written is on the disk when it returns.
  virtual void sync() = 0;
  // The bytes read as zeros from now on, and take no room where the file system can do that.
  virtual void punch(std::uint64_t offset, std::uint64_t bytes) = 0;
  // Whether any of these bytes takes room on the disk; true where the file system cannot tell.
  virtual bool has_data(std::uint64_t offset, std::uint64_t bytes) = 0;
  // Frees the room of these bytes, which read as zeros from now on, and needs none itself. False,
  // and nothing changed: the file system cannot do that.
  virtual bool give_back(std::uint64_t offset, std::uint64_t bytes) = 0;
  // The file has at most so many bytes from now on.
  virtual void cut(std::uint64_t bytes) = 0;
};

using OpenStorageFile = std::function<std::unique_ptr<StorageFile>(const std::filesystem::path&)>;
// Created where it is missing, readable by this user alone. Throws std::system_error, also for a
// symbolic link.
std::unique_ptr<StorageFile> open_storage_file(const std::filesystem::path& path);

// Writes bytes [from, to) that no file system stores in fewer, so that their room is taken. Throws
// std::system_error.
void take_room(StorageFile& file, std::size_t from, std::size_t to);
// Whether the error says that there is no room on the disk.
bool is_want_of_room(const std::system_error& error);

// A directory that this process has to itself: `lock` in it is flock()ed, and says who.
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
  // Sizes of the slots that there are slabs of.
  std::vector<std::size_t> slot_sizes() const;
  std::filesystem::path slab(std::size_t slot_bytes) const {
    return path_ / ("states-" + std::to_string(slot_bytes) + ".slab");
  }

 private:
  const std::filesystem::path path_;
  int lock_ = -1;
};

// CommitWatermark: how far the journal was acknowledged, in a file next to the database.

// SQLite ends its log at the first page whose checksum is wrong: rightly after a power loss, when
// a commit was cut short, but a bit that flips there later takes all commits after it along, and
// nothing says that there were any. This number does. It is written after each commit and not
// synced, so it is never ahead of what is durable, and costs a write into the page cache; after a
// power loss it may be behind. 16 bytes, little-endian: the number, XXH3-64 of it. Not thread-safe.
class CommitWatermark {
 public:
  explicit CommitWatermark(std::unique_ptr<StorageFile> file);

  // As the file was found; 0 where it says nothing, or was damaged itself.
  std::int64_t found() const { return found_; }
  // What cannot be noted is not: it only helps to tell.
  void note(std::int64_t seq) noexcept;

 private:
  const std::unique_ptr<StorageFile> file_;
  std::int64_t found_ = 0;
};

}  // namespace lintel
