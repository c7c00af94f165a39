// FileStamp: whether a file has changed since it was read.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>

namespace lintel {

// Two equal stamps: the same file, unchanged. Links are followed, so that exchanging one (as
// Kubernetes does with its secrets) is a change.
struct FileStamp {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::int64_t bytes = -1;  // -1: there is no such file
  std::int64_t modified_nanos = 0;

  static FileStamp of(const std::filesystem::path& file) {
    FileStamp stamp;
    struct stat status {};
    if (stat(file.c_str(), &status) != 0) return stamp;
    stamp.device = status.st_dev;
    stamp.inode = status.st_ino;
    stamp.bytes = status.st_size;
    stamp.modified_nanos =
        std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
    return stamp;
  }

  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

}  // namespace lintel
