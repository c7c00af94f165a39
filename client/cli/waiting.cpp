#include "client/cli/waiting.h"

#include <utility>

namespace lintel::cli {

Waiting::Waiting(Console& console, std::string what, std::chrono::milliseconds period)
    : console_(console), what_(std::move(what)), period_(period) {
  if (console_.err_is_terminal()) thread_ = std::thread([this] { draw_until_stopped(); });
}

void Waiting::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Waiting::draw_until_stopped() {
  const auto start = std::chrono::steady_clock::now();
  bool drawn = false;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, period_, [this] { return stopping_; })) {
    const auto elapsed =
        std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - start);
    console_.err("\r\x1b[K" + what_ + ", " + std::to_string(elapsed.count()) + " s");
    drawn = true;
  }
  if (drawn) console_.err("\r\x1b[K");
}

}  // namespace lintel::cli
