#include "client/cli/progress.h"

#include <algorithm>
#include <utility>

namespace lintel::cli {

Progress::Progress(Console& console, std::int64_t total, std::string unit, bool wanted)
    : console_(console),
      total_(total),
      unit_(std::move(unit)),
      shown_(wanted && console.err_is_terminal()) {}

Progress::~Progress() { erase(); }

void Progress::add(std::int64_t count) {
  done_ += count;
  const auto now = std::chrono::steady_clock::now();
  if (!shown_ || now < next_draw_) return;
  next_draw_ = now + std::chrono::milliseconds(100);
  std::string line = "\r\x1b[K";
  if (total_ > 0) {
    constexpr std::int64_t kWidth = 30;
    const auto filled = static_cast<std::size_t>(std::min(kWidth, done_ * kWidth / total_));
    line += "[" + std::string(filled, '#') + std::string(kWidth - filled, '-') + "] ";
    line += std::to_string(done_) + "/" + std::to_string(total_) + " " + unit_;
  } else {
    line += std::to_string(done_) + " " + unit_;
  }
  console_.err(line);
  drawn_ = true;
}

void Progress::erase() {
  if (drawn_) console_.err("\r\x1b[K");
}

}  // namespace lintel::cli
