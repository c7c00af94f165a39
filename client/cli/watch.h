// Images painted in the terminal while they stream.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "client/cli/console.h"
#include "client/image/image.h"
#include "client/image/terminal.h"

namespace lintel::cli {

// Paints a page of images, as many as the terminal has room for, in place and at most 25 times a
// second; when a page is complete it stays, and the next one begins below it. A thread of its own
// paints.
//
// Threads: set() and finish() from any thread.
class Watch {
 public:
  // `images` start as they are given, hidden pixels marked. All of one size. `group` of them belong
  // together, and stay in a line where one is long enough. REQUIRES: images not empty.
  Watch(Console& console, const TerminalInfo& terminal, std::vector<Canvas> images, int group = 1);
  ~Watch();  // end()
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Whether the terminal is large enough for one image.
  static bool fits(const TerminalInfo& terminal, int height, int width);

  void set(std::size_t image, std::size_t first_pixel, const std::vector<Cell>& pixels);
  void finish(std::size_t image);  // all its pixels are set
  // Paints what is left to be painted and gives the terminal back. Idempotent.
  void end();

 private:
  void run();
  // The next frame and whether it is the last of its page. Moves on to the next page.
  std::string next_frame(bool& page_complete);

  Console& console_;
  const TerminalInfo terminal_;
  TerminalPainter painter_;
  int columns_ = 1;             // images side by side
  std::size_t page_size_ = 1;   // images on a page
  std::size_t page_start_ = 0;  // the painting thread's

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Canvas> images_;  // guarded by mutex_
  std::vector<bool> finished_;  // guarded by mutex_
  bool dirty_ = true;           // guarded by mutex_
  bool ending_ = false;         // guarded by mutex_
  std::thread thread_;
};

}  // namespace lintel::cli
