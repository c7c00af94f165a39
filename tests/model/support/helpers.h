// SPDX-License-Identifier: Apache-2.0
// Threads that help a team as long as they are there.
#pragma once

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

#include "model/core/step_thread_pool.h"

namespace lintel::testing {

class Helpers {
 public:
  Helpers(StepThreadPool& team, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t seat = team.sit_down(count);
      threads_.emplace_back([this, &team, seat] {
        while (!stop_.load()) {
          if (!team.help(seat)) std::this_thread::yield();
        }
        team.stand_up(seat);
      });
    }
  }
  ~Helpers() {
    stop_.store(true);
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace lintel::testing
