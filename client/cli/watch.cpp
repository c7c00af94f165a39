#include "client/cli/watch.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace lintel::cli {
namespace {
constexpr int kGap = 2;
constexpr auto kFrame = std::chrono::milliseconds(40);
}  // namespace

bool Watch::fits(const TerminalInfo& terminal, int height, int width) {
  return width < terminal.columns && (height + 1) / 2 < terminal.rows;
}

Watch::Watch(Console& console, const TerminalInfo& terminal, std::vector<Canvas> images, int group)
    : console_(console),
      terminal_(terminal),
      painter_(terminal.style),
      images_(std::move(images)),
      finished_(images_.size()) {
  const int height = images_.front().height;
  const int width = images_.front().width;
  // One column and one line stay free: writing the last cell would scroll.
  columns_ = std::clamp((terminal_.columns - 1 + kGap) / (width + kGap), 1,
                        static_cast<int>(images_.size()));
  if (columns_ > group) columns_ -= columns_ % group;
  const int rows = std::max(1, (2 * (terminal_.rows - 1) + kGap) / (height + kGap));
  page_size_ = static_cast<std::size_t>(columns_) * static_cast<std::size_t>(rows);
  console_.err(painter_.hide_cursor());
  thread_ = std::thread([this] { run(); });
}

Watch::~Watch() { end(); }

void Watch::set(std::size_t image, std::size_t first_pixel, const std::vector<Cell>& pixels) {
  const std::lock_guard lock(mutex_);
  auto& cells = images_[image].cells;
  if (first_pixel > cells.size() || pixels.size() > cells.size() - first_pixel) return;
  std::copy(pixels.begin(), pixels.end(), cells.begin() + static_cast<std::ptrdiff_t>(first_pixel));
  dirty_ = true;
}

void Watch::finish(std::size_t image) {
  const std::lock_guard lock(mutex_);
  finished_[image] = true;
  dirty_ = true;
}

void Watch::end() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
  console_.err(painter_.show_cursor());
}

std::string Watch::next_frame(bool& page_complete) {
  const std::size_t page_end = std::min(page_start_ + page_size_, images_.size());
  const std::vector<Canvas> page(images_.begin() + static_cast<std::ptrdiff_t>(page_start_),
                                 images_.begin() + static_cast<std::ptrdiff_t>(page_end));
  page_complete = std::all_of(finished_.begin() + static_cast<std::ptrdiff_t>(page_start_),
                              finished_.begin() + static_cast<std::ptrdiff_t>(page_end),
                              [](bool b) { return b; });
  // A last page with fewer images is not stretched over the width of the first.
  const int columns = std::min(columns_, static_cast<int>(page.size()));
  std::string frame = painter_.frame(arrange(page, columns, kGap));
  if (page_complete) page_start_ = page_end;
  return frame;
}

void Watch::run() {
  for (;;) {
    std::string frame;
    bool page_complete = false;
    bool last = false;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kFrame, [this] { return ending_; });
      last = ending_;
      if (page_start_ == images_.size()) {
        if (last) return;
        continue;
      }
      if (!dirty_ && !last) continue;
      dirty_ = false;
      frame = next_frame(page_complete);
      if (page_complete) dirty_ = true;
    }
    console_.err(frame);  // a slow terminal must not hold the streams up
    if (page_complete) {
      painter_.start_below();
      if (page_start_ < images_.size()) console_.err("\n");
    } else if (last) {
      return;
    }
  }
}

}  // namespace lintel::cli
