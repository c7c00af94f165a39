// SPDX-License-Identifier: Apache-2.0
#include "model/core/parallel.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace lintel {

void run_in_parallel(std::size_t parts, std::size_t most_threads,
                     const std::function<void(WorkParts&)>& work) {
  const std::size_t threads = std::min(most_threads, parts);
  WorkParts left(parts);
  std::exception_ptr error;
  std::mutex mutex;
  const auto run = [&] {
    try {
      work(left);
    } catch (...) {
      left.end();
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  std::vector<std::jthread> others;
  try {
    while (others.size() + 1 < threads) others.emplace_back(run);
  } catch (const std::system_error&) {
    // No further thread: those that there are do all parts.
  }
  run();
  others.clear();  // which waits for them
  if (error) std::rethrow_exception(error);
}

}  // namespace lintel
