// Reads images of a model's size from IDX and PNG files.
#pragma once

#include <filesystem>
#include <vector>

#include "client/image/image.h"

namespace lintel {

// IDX (plain or gzipped) or PNG, by content. A PNG is one image, or a sheet of images
// side by side without gaps, numbered row by row. Throws ImageError naming the file, its size and
// the size wanted when they do not go together.
std::vector<GrayImage> read_images(const std::filesystem::path& file, int height, int width);

// Of a PNG the colours, three values a pixel: images as wide as three times `width`. Throws as
// read_images, and for IDX files, which have none.
std::vector<GrayImage> read_color_images(const std::filesystem::path& file, int height, int width);

// The images of an IDX file, or a PNG as one image, of any size. Throws
// ImageError naming the file.
std::vector<GrayImage> read_whole_images(const std::filesystem::path& file);

// Whether it is a PNG that has more than greys.
bool is_colored_png(const std::filesystem::path& file);

}  // namespace lintel
