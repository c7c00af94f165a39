// PNG in and out.
#pragma once

#include <filesystem>
#include <string>

#include "client/image/image.h"

namespace lintel {

// Reads any PNG as 8-bit grey: grey of 8 bits unchanged, colours by luminance, transparency over
// black. Throws ImageError naming the file for what is no PNG, is damaged or truncated, or has more
// than 64 million pixels.
GrayImage read_png(const std::filesystem::path& file);

// As read_png, red, green and blue of each pixel side by side: three times as wide.
GrayImage read_png_colors(const std::filesystem::path& file);

// Whether any of its pixels is no grey. Throws as read_png.
bool png_has_colors(const std::filesystem::path& file);

// A canvas as the bytes of a PNG, every cell as a square of `scale` pixels: as grey where every
// cell is one, else in colour (see color_of). Throws ImageError when libpng will not.
// REQUIRES: scale >= 1, the canvas not empty.
std::string encode_png(const Canvas& canvas, int scale);

// Writes encode_png() to a file. Throws ImageError naming the file when it cannot be written.
void write_png(const std::filesystem::path& file, const Canvas& canvas, int scale);

}  // namespace lintel
