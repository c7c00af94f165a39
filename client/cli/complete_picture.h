// The pictures that `lintel complete` writes.
#pragma once

#include <string>

#include "client/cli/complete_report.h"

namespace lintel::cli {

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

}  // namespace lintel::cli
