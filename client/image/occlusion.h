// SPDX-License-Identifier: Apache-2.0
// The hidden pixels of an image, and how the others are put to the model.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "client/image/image.h"

namespace lintel {

// A mask, by its words:
//   bottom:N top:N left:N right:N   the N rows or columns at that side
//   box:R,C,H,W                     H rows by W columns, the upper left one at row R, column C
//   random:P                        every pixel with probability P, in [0, 1]
//   none                            nothing
class Occlusion {
 public:
  // Throws std::invalid_argument saying what is wrong.
  static Occlusion parse(std::string_view text);

  // [height * width], true where hidden. `seed` matters to random only: the same one hides the same
  // pixels. Throws std::invalid_argument where the mask reaches outside the image.
  std::vector<bool> hidden(int height, int width, std::uint64_t seed) const;

  const std::string& text() const { return text_; }

 private:
  enum class Kind { kNone, kBottom, kTop, kLeft, kRight, kBox, kRandom };
  Kind kind_ = Kind::kNone;
  std::vector<int> numbers_;  // N, or R, C, H, W
  double probability_ = 0;
  std::string text_;
};

// An image as the model takes it: tokens in raster order, the known ones up to the first hidden one
// as prompt, the known ones after it as spans that are fed in place of samples.
struct CompletionPlan {
  struct Span {
    int position = 0;
    std::vector<std::uint8_t> pixels;
  };
  std::vector<std::uint8_t> prompt;  // never empty, never the whole image
  std::vector<Span> given;
  int new_tokens = 0;  // pixels after the prompt
};

// A hidden first pixel becomes `start_token`: a model has no distribution over its first token. An
// image with nothing hidden gives all but its last pixel as prompt.
// REQUIRES: at least two pixels; hidden.size() == image.pixels.size().
CompletionPlan plan_completion(const GrayImage& image, const std::vector<bool>& hidden,
                               std::uint8_t start_token);

// The image with its hidden pixels marked, for looking at. hidden: of each of its tokens.
// REQUIRES: 1 or 3 channels, which are as many tokens a pixel.
Canvas occluded_canvas(const GrayImage& image, const std::vector<bool>& hidden, int channels = 1);

}  // namespace lintel
