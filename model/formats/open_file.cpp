// SPDX-License-Identifier: Apache-2.0
#include "model/formats/open_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "model/core/errors.h"
#include "model/core/lfs_pointer.h"

namespace lintel {
namespace {

[[noreturn]] void fail_with_errno(const std::string& path, const char* what) {
  throw ModelError(path + ": " + what + ": " + std::strerror(errno));
}

}  // namespace

// The file and what it was when it was opened.
struct OpenFile::Descriptor {
  // Non-blocking: a FIFO in the place of a file must not hang the server.
  explicit Descriptor(const std::string& path)
      : fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (fd < 0) fail_with_errno(path, "cannot open");
    if (::fstat(fd, &opened) == 0) return;
    ::close(fd);
    fail_with_errno(path, "cannot open");
  }
  ~Descriptor() { ::close(fd); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  const int fd;
  struct stat opened {};
};

OpenFile::OpenFile(const std::filesystem::path& path)
    : name_(path.string()), descriptor_(std::make_unique<const Descriptor>(name_)) {
  if (!S_ISREG(descriptor_->opened.st_mode)) {
    throw ModelError(name_ + ": expected a regular file");
  }
  std::array<char, 64> begin{};
  const ssize_t got = ::pread(descriptor_->fd, begin.data(), begin.size(), 0);
  refuse_lfs_pointer({begin.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))}, name_);
}

OpenFile::~OpenFile() = default;

std::uint64_t OpenFile::size() const {
  return static_cast<std::uint64_t>(descriptor_->opened.st_size);
}

void OpenFile::read_ahead() const { ::posix_fadvise(descriptor_->fd, 0, 0, POSIX_FADV_WILLNEED); }

void OpenFile::read(std::uint64_t offset, std::span<char> out) const {
  for (std::size_t done = 0; done < out.size();) {
    const ssize_t got = ::pread(descriptor_->fd, out.data() + done, out.size() - done,
                                static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_with_errno(name_, "cannot read");
    if (got == 0) throw ModelError(name_ + ": was cut short while it was read");
    done += static_cast<std::size_t>(got);
  }
}

void OpenFile::check_unchanged() const {
  const struct stat& then = descriptor_->opened;
  struct stat now {};
  if (::fstat(descriptor_->fd, &now) != 0) fail_with_errno(name_, "cannot read");
  if (now.st_size == then.st_size && now.st_mtim.tv_sec == then.st_mtim.tv_sec &&
      now.st_mtim.tv_nsec == then.st_mtim.tv_nsec) {
    return;
  }
  throw ModelError(name_ + ": was changed while it was read");
}

}  // namespace lintel
