// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "client/cli/completion.h"
#include "client/cli/console.h"
#include "client/cli/model_choice.h"
#include "client/image/image.h"
#include "client/image/terminal.h"

namespace lintel::cli {

// Results of `lintel complete`: a picture, a file of results and a line with the speed.

struct CompletedImage {
  std::int64_t index = -1;   // in the file; -1: drawn from nothing
  std::uint64_t seed = 0;    // of its first sample
  GrayImage original;        // its tokens; empty when drawn from nothing
  std::vector<bool> hidden;  // of each token: all of a pixel's, or none
  std::vector<Completion> samples;
};

struct CompletionRun {
  v1::Model model;
  std::string adapter;    // empty: none
  std::string occlusion;  // empty when drawn from nothing
  double seconds = 0;
  std::vector<CompletedImage> images;
};

struct GridStyle {
  int scale = 3;
  int gap = 2;
  bool headings = false;
};

// The number of its samples that are done.
std::int64_t num_done(const CompletionRun& run);

// One object, as in `lintel complete --help`; of samples that are done alone.
std::string results_json(const CompletionRun& run);

// "12.3 images/s, 9644 tokens/s"
std::string speed_line(const CompletionRun& run);

// The pictures that `lintel complete` writes.

// The grid as a PNG; with GridStyle::headings a line above it says what the columns are, and a
// column at its left which images of the file.
std::string picture_png(const CompletionRun& run, const ImageModel& model, const GridStyle& style);

// The same as an animated PNG: the completions come pixel by pixel, all at the same time, and stay
// for a while when they are whole.
std::string animation_png(const CompletionRun& run, const ImageModel& model,
                          const GridStyle& style);

// Pixels of either, for refusing it before the work is done.
std::int64_t picture_pixels(const ImageModel& model, std::size_t images, int samples,
                            bool unconditional, const GridStyle& style);

// Images painted in the terminal while they stream.

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

  // True if the terminal is large enough for one image.
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
