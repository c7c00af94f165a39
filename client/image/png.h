// PNG in and out.
#pragma once

#include <filesystem>

#include "client/image/image.h"

namespace lintel {

// Reads any PNG as 8-bit grey: grey of 8 bits unchanged, colours by luminance, transparency over
// black. Throws ImageError naming the file for what is no PNG, is damaged or truncated, or has more
// than 64 million pixels.
GrayImage read_png(const std::filesystem::path& file);

// Writes a canvas, every cell as a square of `scale` pixels: as grey where no cell is hidden or a
// gap, else in colour (see color_of). Throws ImageError naming the file when it cannot be written.
// REQUIRES: scale >= 1, the canvas not empty.
void write_png(const std::filesystem::path& file, const Canvas& canvas, int scale);

}  // namespace lintel
