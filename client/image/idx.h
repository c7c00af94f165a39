// The IDX format of the MNIST files.
//
//   offset 0   00 00 TT DD   TT type of the values (08: unsigned byte), DD number of dimensions
//   offset 4   DD sizes, 32 bits each, most significant byte first
//   then       the values, last dimension fastest
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "client/image/image.h"

namespace lintel {

// Reads images: unsigned bytes in three dimensions (count, height, width), plain or gzipped, by
// content. Throws ImageError naming the file for anything else: labels instead of
// images, other types, zero or huge sizes, a file shorter or longer than its header says, a damaged
// gzip stream. Never holds more than what the header promises, nor more than 1 GiB.
std::vector<GrayImage> read_idx_images(const std::filesystem::path& file);

// Reads labels: unsigned bytes in one dimension. Throws as read_idx_images.
std::vector<std::uint8_t> read_idx_labels(const std::filesystem::path& file);

}  // namespace lintel
