// What `lintel complete` leaves behind: a picture, a file of results and a line with the speed.
#pragma once

#include <string>
#include <vector>

#include "client/cli/completion.h"
#include "client/cli/image_model.h"

namespace lintel::cli {

struct CompletedImage {
  std::int64_t index = -1;   // in the file; -1: drawn from nothing
  std::uint64_t seed = 0;    // of its first sample
  GrayImage original;        // its values; empty when drawn from nothing
  std::vector<bool> hidden;  // of each value: all of a pixel's, or none
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

// Pixels of the picture that draw_grid would make, for refusing it before the work is done.
std::int64_t grid_pixels(const ImageModel& model, std::size_t images, int samples,
                         bool unconditional, const GridStyle& style);

inline constexpr std::size_t kAllPixels = SIZE_MAX;

// Rows of original | occluded | samples; drawn from nothing: the samples in a square. Of a sample
// that is not done the pixels that came are shown. `shown`: of each sample only so many of its
// first pixels, beside those that were known.
Canvas draw_grid(const CompletionRun& run, const ImageModel& model, const GridStyle& style,
                 std::size_t shown = kAllPixels);

// How many of its samples are done.
std::int64_t num_done(const CompletionRun& run);

// One object, as in `lintel complete --help`; of samples that are done alone.
std::string results_json(const CompletionRun& run);

// "12.3 images/s, 9644 tokens/s"
std::string speed_line(const CompletionRun& run);

}  // namespace lintel::cli
