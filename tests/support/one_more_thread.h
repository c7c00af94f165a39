// SPDX-License-Identifier: Apache-2.0
// For what happens when the system has no more threads to give.
#pragma once

#include <pthread.h>
#include <sys/resource.h>

#include <cstddef>

namespace lintel::testing {

// While it lives this process can start one more thread, and not two: stacks are large and address
// space is short. Not under the sanitizers, which need address space of their own. One at a time.
class OneMoreThread {
 public:
  OneMoreThread();
  ~OneMoreThread();
  OneMoreThread(const OneMoreThread&) = delete;
  OneMoreThread& operator=(const OneMoreThread&) = delete;

 private:
  std::size_t stack_bytes_ = 0;  // of a thread, before
  rlimit address_space_{};       // before
};

}  // namespace lintel::testing
