// SPDX-License-Identifier: Apache-2.0
// Reads images of a model's size from IDX and PNG files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "client/image/image.h"

namespace lintel {

// The IDX format of the MNIST files.
//
//   offset 0   00 00 TT DD   TT type of the values (08: unsigned byte), DD number of dimensions
//   offset 4   DD sizes, 32 bits each, most significant byte first
//   then       the values, last dimension fastest

// Reads images: unsigned bytes in three dimensions (count, height, width), plain or gzipped, by
// content. Throws ImageError naming the file for anything else: labels instead of
// images, other types, zero or huge sizes, a file shorter or longer than its header says, a damaged
// gzip stream. Never holds more than what the header promises, nor more than 1 GiB.
std::vector<GrayImage> read_idx_images(const std::filesystem::path& file);

// Reads labels: unsigned bytes in one dimension. Throws as read_idx_images.
std::vector<std::uint8_t> read_idx_labels(const std::filesystem::path& file);

// IDX (plain or gzipped) or PNG, by content. A PNG is one image, or a sheet of images
// side by side without gaps, numbered row by row. Throws ImageError naming the file, its size and
// the size wanted when they do not go together.
std::vector<GrayImage> read_images(const std::filesystem::path& file, int height, int width);

// The colours of a PNG, three tokens a pixel: images as wide as three times `width`. Throws as
// read_images, and for IDX files, which have none.
std::vector<GrayImage> read_color_images(const std::filesystem::path& file, int height, int width);

// The images of an IDX file, or a PNG as one image, of any size. Throws
// ImageError naming the file.
std::vector<GrayImage> read_whole_images(const std::filesystem::path& file);

// True for a PNG that has more than greys.
bool is_colored_png(const std::filesystem::path& file);

}  // namespace lintel
