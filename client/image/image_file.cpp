#include "client/image/image_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "client/image/idx.h"
#include "client/image/png.h"

namespace lintel {
namespace {

bool starts_like_png(const std::filesystem::path& file) {
  static constexpr std::array<char, 8> kSignature = {'\x89', 'P',  'N',    'G',
                                                     '\r',   '\n', '\x1a', '\n'};
  std::ifstream in(file, std::ios::binary);
  if (!in) throw ImageError(file.string() + ": cannot be opened: " + std::strerror(errno));
  std::array<char, 8> start{};
  in.read(start.data(), start.size());
  return in.gcount() == start.size() && start == kSignature;
}

std::string size_text(int height, int width) {
  return std::to_string(height) + "x" + std::to_string(width);
}

std::vector<GrayImage> cut(const GrayImage& sheet, int height, int width) {
  std::vector<GrayImage> images;
  for (int top = 0; top < sheet.height; top += height) {
    for (int left = 0; left < sheet.width; left += width) {
      GrayImage image{height, width, {}};
      for (int row = 0; row < height; ++row) {
        const auto start =
            sheet.pixels.begin() + (static_cast<std::ptrdiff_t>(top) + row) * sheet.width + left;
        image.pixels.insert(image.pixels.end(), start, start + width);
      }
      images.push_back(std::move(image));
    }
  }
  return images;
}

// A PNG's images, of `channels` values a pixel.
std::vector<GrayImage> cut_sheet(const std::filesystem::path& file, const GrayImage& sheet,
                                 int height, int width, int channels) {
  const int pixels = sheet.width / channels;
  if (sheet.height % height != 0 || pixels % width != 0) {
    throw ImageError(file.string() + ": " + size_text(sheet.height, pixels) +
                     " pixels are no whole number of images of " + size_text(height, width));
  }
  return cut(sheet, height, width * channels);
}

}  // namespace

std::vector<GrayImage> read_whole_images(const std::filesystem::path& file) {
  if (starts_like_png(file)) return {read_png(file)};
  return read_idx_images(file);
}

bool is_colored_png(const std::filesystem::path& file) {
  return starts_like_png(file) && png_has_colors(file);
}

std::vector<GrayImage> read_color_images(const std::filesystem::path& file, int height, int width) {
  if (!starts_like_png(file)) {
    throw ImageError(file.string() + ": is no PNG, and the model's images have colours");
  }
  return cut_sheet(file, read_png_colors(file), height, width, /*channels=*/3);
}

std::vector<GrayImage> read_images(const std::filesystem::path& file, int height, int width) {
  const std::string wanted = size_text(height, width);
  if (starts_like_png(file)) {
    return cut_sheet(file, read_png(file), height, width, /*channels=*/1);
  }
  std::vector<GrayImage> images = read_idx_images(file);
  const GrayImage& first = images.front();
  if (first.height != height || first.width != width) {
    throw ImageError(file.string() + ": images of " + size_text(first.height, first.width) +
                     ", the model's are " + wanted);
  }
  return images;
}

}  // namespace lintel
