// SPDX-License-Identifier: Apache-2.0
// Commits steps of a scenario and says which are durable, until it kills itself in the middle of a
// write: storage_child DIR SEED STEPS CHANGE. Of the CHANGE-th write, sync or truncation of a file
// it does nothing, half or all, by turns. It prints "acknowledged N" after each step, and "changes
// N" if it lives to the end.
#include <signal.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "server/sessions/storage/sqlite/sqlite_storage.h"
#include "tests/server/sessions/storage/storage_scenario.h"

namespace {

std::atomic<long> changes{0};
long fatal_change = -1;

// True if this change is the last one.
bool is_fatal() { return changes++ == fatal_change; }
[[noreturn]] void die() {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

}  // namespace

// Replaces libc's functions: the linker prefers those of the program.
extern "C" {

ssize_t pwrite64(int file, const void* from, size_t count, off64_t offset) {
  if (is_fatal()) {
    const size_t part = count / 2 * static_cast<size_t>(fatal_change % 3);
    syscall(SYS_pwrite64, file, from, part, offset);
    die();
  }
  return syscall(SYS_pwrite64, file, from, count, offset);
}
ssize_t pwrite(int file, const void* from, size_t count, off_t offset) {
  return pwrite64(file, from, count, offset);
}
ssize_t pwritev(int file, const iovec* parts, int count, off_t offset) {
  ssize_t written = 0;
  for (int i = 0; i < count; ++i) {
    if (parts[i].iov_len == 0) continue;
    const ssize_t more = pwrite64(file, parts[i].iov_base, parts[i].iov_len, offset + written);
    if (more < 0) return more;
    written += more;
  }
  return written;
}
int fdatasync(int file) {
  if (is_fatal()) die();
  return static_cast<int>(syscall(SYS_fdatasync, file));
}
int fsync(int file) {
  if (is_fatal()) die();
  return static_cast<int>(syscall(SYS_fsync, file));
}
int ftruncate64(int file, off64_t size) noexcept {
  if (is_fatal()) die();
  return static_cast<int>(syscall(SYS_ftruncate, file, size));
}
int ftruncate(int file, off_t size) noexcept { return ftruncate64(file, size); }

}  // extern "C"

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  lintel::SqliteStorage::Options options;
  options.directory = argv[1];
  options.commit_interval = {};
  options.journal_bytes = 20'000;
  options.log_bytes = 60'000;
  options.slab_bytes = 20 * 8192;
  fatal_change = std::atol(argv[4]);
  const lintel::SteadyClock clock;
  {
    lintel::SqliteStorage storage(options, clock);
    lintel::testing::Scenario scenario(static_cast<std::uint64_t>(std::atol(argv[2])));
    for (int step = 1; step <= std::atoi(argv[3]); ++step) {
      if (scenario.step(storage) != lintel::SessionError::kNone) return 1;
      std::printf("acknowledged %d\n", step);
      std::fflush(stdout);
    }
  }
  std::printf("changes %ld\n", changes.load());
  return 0;
}
