// SPDX-License-Identifier: Apache-2.0
// Preloaded, it counts the calls whose effects the rest of the world sees, and kills the process
// before, halfway through or after the one that a plan names.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "tests/chaos/crash_recovery/kill_plan.h"

namespace {

using lintel::testing::KillPlan;
using lintel::testing::SystemCall;
using lintel::testing::When;

KillPlan& plan() {
  static KillPlan* const shared = [] {
    const char* const file = std::getenv("LINTEL_TEST_KILL");
    const int fd = file == nullptr ? -1 : open(file, O_RDWR | O_CLOEXEC);
    void* const mapped = mmap(nullptr, sizeof(KillPlan), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED) std::abort();
    return static_cast<KillPlan*>(mapped);
  }();
  return *shared;
}

[[noreturn]] void die() {
  plan().killed = 1;
  for (;;) kill(getpid(), SIGKILL);
}

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

// `all()` makes the call, `half()` with half of its bytes.
template <typename All, typename Half>
auto counted(SystemCall which, const All& all, const Half& half) {
  KillPlan& now = plan();
  const std::int64_t number = ++now.counts[static_cast<std::size_t>(which)];
  if (number != now.number || which != now.call) return all();
  if (now.when == When::kHalfway) half();
  if (now.when == When::kAfter) all();
  die();
}

constexpr auto kNothing = [] {};

// The first half of the bytes of `from`, in `to`; how many entries that are.
template <std::size_t N>
std::size_t first_half(const iovec* from, std::size_t count, std::array<iovec, N>& to) {
  std::size_t bytes = 0, used = 0;
  for (std::size_t i = 0; i < count; ++i) bytes += from[i].iov_len;
  bytes /= 2;
  for (; used < std::min(count, N) && bytes > 0; ++used) {
    to[used] = {from[used].iov_base, std::min(bytes, from[used].iov_len)};
    bytes -= to[used].iov_len;
  }
  return used;
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* bytes, size_t size) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t)>("write");
  return counted(
      SystemCall::kWrite, [&] { return real(fd, bytes, size); },
      [&] { return real(fd, bytes, size / 2); });
}

ssize_t pwrite(int fd, const void* bytes, size_t size, off_t at) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  return counted(
      SystemCall::kPwrite, [&] { return real(fd, bytes, size, at); },
      [&] { return real(fd, bytes, size / 2, at); });
}

ssize_t pwrite64(int fd, const void* bytes, size_t size, off64_t at) {
  return pwrite(fd, bytes, size, at);
}

ssize_t writev(int fd, const iovec* parts, int count) {
  static const auto real = next<ssize_t (*)(int, const iovec*, int)>("writev");
  return counted(
      SystemCall::kWritev, [&] { return real(fd, parts, count); },
      [&] {
        std::array<iovec, 64> half;
        const auto used = first_half(parts, static_cast<std::size_t>(count), half);
        return real(fd, half.data(), static_cast<int>(used));
      });
}

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  static const auto real = next<ssize_t (*)(int, const msghdr*, int)>("sendmsg");
  return counted(
      SystemCall::kSendmsg, [&] { return real(fd, message, flags); },
      [&] {
        std::array<iovec, 64> half;
        msghdr shorter = *message;
        shorter.msg_iovlen = first_half(message->msg_iov, message->msg_iovlen, half);
        shorter.msg_iov = half.data();
        return real(fd, &shorter, flags);
      });
}

int fdatasync(int fd) {
  static const auto real = next<int (*)(int)>("fdatasync");
  return counted(
      SystemCall::kFdatasync, [&] { return real(fd); }, kNothing);
}

int fsync(int fd) {
  static const auto real = next<int (*)(int)>("fsync");
  return counted(
      SystemCall::kFsync, [&] { return real(fd); }, kNothing);
}

int ftruncate(int fd, off_t size) noexcept {
  static const auto real = next<int (*)(int, off_t)>("ftruncate");
  return counted(
      SystemCall::kFtruncate, [&] { return real(fd, size); }, kNothing);
}

int ftruncate64(int fd, off64_t size) noexcept { return ftruncate(fd, size); }

}  // extern "C"
