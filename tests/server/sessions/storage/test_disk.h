// SPDX-License-Identifier: Apache-2.0
// A disk in memory, for a storage's database and its slabs alike, that fails and loses power on
// command.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "server/sessions/storage/sqlite/storage_file.h"

namespace lintel::testing {

class TestDisk {
 public:
  using Content = std::map<std::string, std::vector<std::byte>>;  // by path

  TestDisk();  // empty
  explicit TestDisk(Content content);
  ~TestDisk();
  TestDisk(const TestDisk&) = delete;
  TestDisk& operator=(const TestDisk&) = delete;

  const std::string& vfs() const { return vfs_; }  // for SQLite
  OpenStorageFile opener();

  // Faults of a write, truncation or sync. One that fails for room writes half. kFull: bytes
  // written before can be synced all the same.
  enum class Fault { kNone, kError, kNoSpace, kFull };
  // Sets a function that is called before each of them, with its number from 0 on, under the disk's
  // lock.
  void on_change(std::function<Fault(std::int64_t number)> ask);
  std::int64_t changes() const;
  std::int64_t bytes_written() const;

  // From now on files may take so many bytes in all, in blocks of 4 KiB; what would need more is
  // Fault::kNoSpace. Holes take nothing.
  void set_capacity(std::int64_t bytes);
  std::int64_t bytes_in_use() const;

  Content now() const;  // as the programs see it
  // The content after a loss of power: of the writes that were not synced none, all or a random
  // part is there, whole or in sectors of 512 bytes. Of a failed sync nothing is.
  enum class Loss { kAll, kNone, kSome, kTorn };
  Content after_power_loss(Loss loss, std::mt19937_64& random) const;
  // The same, from on_change.
  Content after_power_loss_locked(Loss loss, std::mt19937_64& random) const;

  // For the files of this disk.
  struct Change {
    std::uint64_t offset = 0;
    std::vector<std::byte> bytes;
    bool cuts = false;  // ends the file at `offset`
  };
  struct File {
    std::vector<std::byte> now, synced;
    std::vector<Change> since;       // the last sync
    std::set<std::uint64_t> blocks;  // blocks that take room
  };
  Fault write(const std::string& path, std::uint64_t offset, std::span<const std::byte> bytes);
  Fault cut(const std::string& path, std::uint64_t size);
  Fault sync(const std::string& path);
  std::size_t read(const std::string& path, std::uint64_t offset, std::span<std::byte> to) const;
  std::uint64_t size(const std::string& path) const;
  // Frees the blocks that lie in it whole.
  void punch(const std::string& path, std::uint64_t offset, std::uint64_t bytes);
  bool has_data(const std::string& path, std::uint64_t offset, std::uint64_t bytes) const;
  void make(const std::string& path);
  void remove(const std::string& path);
  bool has(const std::string& path) const;

 private:
  Fault next_fault();
  // Takes the blocks of a write. False: there is no room for them.
  bool take_blocks(File& file, std::uint64_t offset, std::size_t bytes);
  void change(const std::string& path, Change change);

  mutable std::mutex mutex_;
  std::map<std::string, File> files_;
  std::function<Fault(std::int64_t)> ask_;
  std::int64_t changes_ = 0, bytes_written_ = 0, capacity_ = std::int64_t{1} << 50;
  std::string vfs_;
};

}  // namespace lintel::testing
