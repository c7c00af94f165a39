// SPDX-License-Identifier: Apache-2.0
// FileStamp: whether a file has changed since it was read.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>

namespace lintel {

// Equal stamps mean the same file, unchanged. Links are followed, so that exchanging one (as
// Kubernetes does with its secrets) is a change.
struct FileStamp {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::int64_t bytes = -1;  // -1: there is no such file
  std::int64_t modified_nanos = 0;
  // The time at which the content, the permissions or the name changed last. Copies that preserve
  // times, and programs that set them, do not set this one.
  std::int64_t changed_nanos = 0;

  static FileStamp of(const std::filesystem::path& file) {
    FileStamp stamp;
    struct stat status {};
    if (stat(file.c_str(), &status) != 0) return stamp;
    stamp.device = status.st_dev;
    stamp.inode = status.st_ino;
    stamp.bytes = status.st_size;
    stamp.modified_nanos = nanos(status.st_mtim);
    stamp.changed_nanos = nanos(status.st_ctim);
    return stamp;
  }

  friend bool operator==(const FileStamp&, const FileStamp&) = default;

 private:
  static std::int64_t nanos(const timespec& time) {
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  }
};

}  // namespace lintel
