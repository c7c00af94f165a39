// SPDX-License-Identifier: Apache-2.0
#include "tests/support/one_more_thread.h"

#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <stdexcept>
#include <system_error>

namespace lintel::testing {
namespace {

// Larger than what malloc reserves for a thread, so that only stacks fail.
constexpr std::size_t kStackBytes = std::size_t{512} << 20;

void check(int error, const char* what) {
  if (error != 0) throw std::system_error(error, std::generic_category(), what);
}

std::size_t used_address_space() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  if (pages == 0) throw std::runtime_error("/proc/self/statm cannot be read");
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

void set_stack_of_threads(std::size_t bytes) {
  pthread_attr_t attributes;
  check(pthread_attr_init(&attributes), "pthread_attr_init");
  const int error = pthread_attr_setstacksize(&attributes, bytes);
  if (error == 0) pthread_setattr_default_np(&attributes);
  pthread_attr_destroy(&attributes);
  check(error, "pthread_attr_setstacksize");
}

std::size_t stack_of_threads() {
  pthread_attr_t attributes;
  check(pthread_getattr_default_np(&attributes), "pthread_getattr_default_np");
  std::size_t bytes = 0;
  pthread_attr_getstacksize(&attributes, &bytes);
  pthread_attr_destroy(&attributes);
  return bytes;
}

}  // namespace

OneMoreThread::OneMoreThread() : stack_bytes_(stack_of_threads()) {
  check(getrlimit(RLIMIT_AS, &address_space_) == 0 ? 0 : errno, "getrlimit");
  set_stack_of_threads(kStackBytes);
  rlimit limit = address_space_;
  limit.rlim_cur = used_address_space() + kStackBytes * 3 / 2;
  check(setrlimit(RLIMIT_AS, &limit) == 0 ? 0 : errno, "setrlimit");
}

OneMoreThread::~OneMoreThread() {
  setrlimit(RLIMIT_AS, &address_space_);
  set_stack_of_threads(stack_bytes_);
}

}  // namespace lintel::testing
