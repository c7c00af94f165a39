// A progress bar, on terminals only.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "client/cli/console.h"

namespace lintel::cli {

// "[#####-----] 512/1024 images", redrawn on standard error at most ten times a second, and erased
// at the end. Where standard error is no terminal nothing is printed.
// Threads: one at a time.
class Progress {
 public:
  // `total` 0: unknown, only the count is shown.
  Progress(Console& console, std::int64_t total, std::string unit, bool wanted = true);
  ~Progress();  // erases
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void add(std::int64_t count);

 private:
  void erase();

  Console& console_;
  const std::int64_t total_;
  const std::string unit_;
  const bool shown_;
  std::int64_t done_ = 0;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point next_draw_{};
};

}  // namespace lintel::cli
