// SPDX-License-Identifier: Apache-2.0
// Preloaded, it moves a process's wall clock by the seconds in the file that LINTEL_TEST_CLOCK
// names, an int64 that may change at any time. Waits until a wall clock's time last as long as
// they would have when they began.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdint>
#include <cstdlib>

namespace {

std::int64_t offset() {
  static const volatile std::int64_t* const shared = [] {
    const char* const file = std::getenv("LINTEL_TEST_CLOCK");
    const int fd = file == nullptr ? -1 : open(file, O_RDONLY | O_CLOEXEC);
    void* const mapped = mmap(nullptr, sizeof(std::int64_t), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED) std::abort();
    return static_cast<const volatile std::int64_t*>(mapped);
  }();
  return *shared;
}

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

bool is_wall(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

timespec real(const timespec* moved) {
  return {static_cast<time_t>(moved->tv_sec - offset()), moved->tv_nsec};
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* out) {
  const long result = ::syscall(SYS_clock_gettime, clock, out);
  if (result == 0 && is_wall(clock)) out->tv_sec += offset();
  return static_cast<int>(result);
}

int gettimeofday(timeval* out, void*) {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  *out = {now.tv_sec, now.tv_nsec / 1000};
  return 0;
}

time_t time(time_t* out) {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != nullptr) *out = now.tv_sec;
  return now.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* until) {
  using Function = int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*);
  static const auto wait = next<Function>("pthread_cond_clockwait");
  const timespec moved_back = real(until);
  return wait(condition, mutex, CLOCK_REALTIME, &moved_back);
}

// Abseil waits by futex.
long syscall(long number, ...) {
  static const auto call = next<long (*)(long, ...)>("syscall");
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  timespec moved_back;
  if (number == SYS_futex && (a[1] & FUTEX_CLOCK_REALTIME) != 0 && a[3] != 0) {
    moved_back = real(reinterpret_cast<const timespec*>(a[3]));
    a[3] = reinterpret_cast<long>(&moved_back);
  }
  return call(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

}  // extern "C"
