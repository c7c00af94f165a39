// SPDX-License-Identifier: Apache-2.0
// PNG in and out.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

#include "client/image/image.h"

namespace lintel {

// Reads any PNG as 8-bit grey: grey of 8 bits unchanged, colours by luminance, transparency over
// black. Throws ImageError naming the file for what is no PNG, is damaged or truncated, or has more
// than 64 million pixels.
GrayImage read_png(const std::filesystem::path& file);

// Reads as read_png, with red, green and blue of each pixel side by side: three times as wide.
GrayImage read_png_colors(const std::filesystem::path& file);

// True if any of its pixels is no grey. Throws as read_png.
bool png_has_colors(const std::filesystem::path& file);

// A canvas as the bytes of a PNG, every cell as a square of `scale` pixels: as grey where every
// cell is one, else in colour (see color_of). Throws ImageError when libpng will not.
// REQUIRES: scale >= 1, the canvas not empty.
std::string encode_png(const Canvas& canvas, int scale);

// Animated PNG out.

// A PNG whose frames follow one another (PNG, third edition, section 11.3.2: acTL, fcTL and fdAT),
// over and over. A viewer that knows nothing of them shows the first. A frame holds only what has
// changed since the one before, the rest of it is transparent: pixels that come one by one take few
// bytes.
//
//   AnimatedPng png(first);
//   png.add(second, std::chrono::milliseconds(20));   // the first was shown for 20 ms
//   file << png.finish(std::chrono::seconds(2));      // how long the last one is
class AnimatedPng {
 public:
  // Every cell is a pixel. REQUIRES: the canvas not empty.
  explicit AnimatedPng(const Canvas& first);

  // The next frame, when the one before has been shown for so long. REQUIRES: of the same size.
  void add(const Canvas& frame, std::chrono::milliseconds shown_before);
  // The bytes of the file. REQUIRES: called once, last.
  std::string finish(std::chrono::milliseconds last_shown);

 private:
  // Writes the frame in hand, now that the time for which it is shown is known.
  void put_frame(std::chrono::milliseconds shown);

  Canvas shown_;
  std::string frame_;                                // in hand, compressed
  int top_ = 0, left_ = 0, height_ = 0, width_ = 0;  // its place
  std::uint32_t frames_ = 0;
  std::uint32_t chunks_ = 0;  // fcTL and fdAT are numbered
  std::string body_;          // the bytes after the header and acTL
};

}  // namespace lintel
