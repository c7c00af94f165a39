#include "client/image/png.h"

#include <png.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>

namespace lintel {
namespace {

constexpr std::uint64_t kMaxPixels = 64'000'000;

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

// libpng's simplified interface reports through its struct; nothing jumps, nothing is printed.
class PngImage {
 public:
  explicit PngImage(const std::filesystem::path& file) : name_(file.string()) {
    image_.version = PNG_IMAGE_VERSION;
  }
  ~PngImage() { png_image_free(&image_); }
  PngImage(const PngImage&) = delete;
  PngImage& operator=(const PngImage&) = delete;

  png_image* get() { return &image_; }
  // Reads the header. The file has to stay open until the pixels are read.
  File open(const std::filesystem::path& file) {
    File stream(std::fopen(file.c_str(), "rb"), &std::fclose);
    if (!stream) fail(std::string("cannot be opened: ") + std::strerror(errno));
    check(png_image_begin_read_from_stdio(&image_, stream.get()));
    const std::uint64_t pixels = std::uint64_t{image_.width} * image_.height;
    if (pixels > kMaxPixels) {
      fail(std::to_string(image_.width) + "x" + std::to_string(image_.height) +
           " pixels, more than " + std::to_string(kMaxPixels));
    }
    return stream;
  }
  // The pixels in a format of libpng, transparency over black.
  std::vector<std::uint8_t> read(png_uint_32 format) {
    image_.format = format;
    std::vector<std::uint8_t> bytes(PNG_IMAGE_SIZE(image_));
    const png_color black{0, 0, 0};
    check(png_image_finish_read(&image_, &black, bytes.data(), /*row_stride=*/0,
                                /*colormap=*/nullptr));
    return bytes;
  }
  void check(int succeeded) {
    if (!succeeded) fail(image_.message);
  }
  [[noreturn]] void fail(const std::string& what) const { throw ImageError(name_ + ": " + what); }

 private:
  const std::string name_;
  png_image image_{};
};

}  // namespace

GrayImage read_png(const std::filesystem::path& file) {
  PngImage png(file);
  const File stream = png.open(file);
  GrayImage image{static_cast<int>(png.get()->height), static_cast<int>(png.get()->width), {}};
  image.pixels = png.read(PNG_FORMAT_GRAY);
  return image;
}

GrayImage read_png_colors(const std::filesystem::path& file) {
  PngImage png(file);
  const File stream = png.open(file);
  GrayImage image{static_cast<int>(png.get()->height), 3 * static_cast<int>(png.get()->width), {}};
  image.pixels = png.read(PNG_FORMAT_RGB);
  return image;
}

bool png_has_colors(const std::filesystem::path& file) {
  PngImage png(file);
  const File stream = png.open(file);
  if ((png.get()->format & PNG_FORMAT_FLAG_COLOR) == 0) return false;
  const std::vector<std::uint8_t> parts = png.read(PNG_FORMAT_RGB);
  for (std::size_t i = 0; i < parts.size(); i += 3) {
    if (parts[i] != parts[i + 1] || parts[i] != parts[i + 2]) return true;
  }
  return false;
}

std::string encode_png(const Canvas& canvas, int scale) {
  const bool gray = std::all_of(canvas.cells.begin(), canvas.cells.end(),
                                [](Cell cell) { return is_gray(cell); });
  PngImage png("PNG");
  const int height = canvas.height * scale;
  const int width = canvas.width * scale;
  png.get()->height = static_cast<png_uint_32>(height);
  png.get()->width = static_cast<png_uint_32>(width);
  png.get()->format = gray ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;

  std::vector<std::uint8_t> bytes;
  bytes.reserve(static_cast<std::size_t>(height) * static_cast<std::size_t>(width) *
                (gray ? 1 : 3));
  for (int row = 0; row < height; ++row) {
    for (int column = 0; column < width; ++column) {
      const Rgb color = color_of(canvas.at(row / scale, column / scale));
      bytes.push_back(color.red);
      if (gray) continue;
      bytes.push_back(color.green);
      bytes.push_back(color.blue);
    }
  }
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(*png.get());
  std::string encoded(size, '\0');
  png.check(png_image_write_to_memory(png.get(), encoded.data(), &size, /*convert_to_8bit=*/0,
                                      bytes.data(), /*row_stride=*/0, /*colormap=*/nullptr));
  encoded.resize(size);
  return encoded;
}

void write_png(const std::filesystem::path& file, const Canvas& canvas, int scale) {
  const std::string bytes = encode_png(canvas, scale);
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << bytes;
  out.close();
  if (!out) throw ImageError(file.string() + ": cannot be written: " + std::strerror(errno));
}

}  // namespace lintel
