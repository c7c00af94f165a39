// SPDX-License-Identifier: Apache-2.0
#include "client/image/png.h"

#include <png.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

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

// The values of a pixel side by side.
GrayImage read_as(const std::filesystem::path& file, png_uint_32 format) {
  PngImage png(file);
  const File stream = png.open(file);
  const auto width = static_cast<int>(png.get()->width * PNG_IMAGE_PIXEL_CHANNELS(format));
  return {static_cast<int>(png.get()->height), width, png.read(format)};
}

}  // namespace

GrayImage read_png(const std::filesystem::path& file) { return read_as(file, PNG_FORMAT_GRAY); }

GrayImage read_png_colors(const std::filesystem::path& file) {
  return read_as(file, PNG_FORMAT_RGB);
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

namespace {

void put_number(std::string& out, std::uint32_t number, int bytes = 4) {
  for (int i = bytes - 1; i >= 0; --i) out += static_cast<char>(number >> (8 * i) & 0xff);
}

// Length, type, data, and the checksum of type and data.
void put_chunk(std::string& out, std::string_view type, std::string_view data) {
  put_number(out, static_cast<std::uint32_t>(data.size()));
  const std::size_t begin = out.size();
  out += type;
  out += data;
  put_number(out,
             static_cast<std::uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(out.data()) + begin,
                                              static_cast<uInt>(out.size() - begin))));
}

std::string compressed(const std::string& bytes) {
  uLongf size = compressBound(static_cast<uLong>(bytes.size()));
  std::string out(size, '\0');
  if (compress2(reinterpret_cast<Bytef*>(out.data()), &size,
                reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uLong>(bytes.size()),
                Z_DEFAULT_COMPRESSION) != Z_OK) {
    throw ImageError("PNG: cannot be compressed");
  }
  out.resize(size);
  return out;
}

}  // namespace

AnimatedPng::AnimatedPng(const Canvas& first)
    : shown_(first.height, first.width, kGapPixel), height_(first.height), width_(first.width) {
  // Unlike any: all of it is new.
  std::fill(shown_.cells.begin(), shown_.cells.end(), Cell{-3});
  add(first, std::chrono::milliseconds(0));
}

void AnimatedPng::add(const Canvas& frame, std::chrono::milliseconds shown_before) {
  if (!frame_.empty()) put_frame(shown_before);
  int top = frame.height, left = frame.width, bottom = -1, right = -1;
  for (int row = 0; row < frame.height; ++row) {
    for (int column = 0; column < frame.width; ++column) {
      if (frame.at(row, column) == shown_.at(row, column)) continue;
      top = std::min(top, row);
      bottom = std::max(bottom, row);
      left = std::min(left, column);
      right = std::max(right, column);
    }
  }
  if (bottom < 0) top = left = bottom = right = 0;  // a frame has a pixel, though nothing changed
  std::string pixels;
  for (int row = top; row <= bottom; ++row) {
    pixels += '\0';  // no filter
    for (int column = left; column <= right; ++column) {
      const bool changed = frame.at(row, column) != shown_.at(row, column);
      const Rgb color = changed ? color_of(frame.at(row, column)) : Rgb{};
      for (const std::uint8_t part : {color.red, color.green, color.blue}) {
        pixels += static_cast<char>(part);
      }
      pixels += changed ? '\xff' : '\0';
    }
  }
  frame_ = compressed(pixels);
  top_ = top;
  left_ = left;
  height_ = bottom - top + 1;
  width_ = right - left + 1;
  shown_ = frame;
}

void AnimatedPng::put_frame(std::chrono::milliseconds shown) {
  constexpr std::uint32_t kLongest = 65'535;  // milliseconds
  constexpr char kKeep = 0, kOver = 1;        // disposal of the frame, and its blending
  std::string control;
  put_number(control, chunks_++);
  put_number(control, static_cast<std::uint32_t>(width_));
  put_number(control, static_cast<std::uint32_t>(height_));
  put_number(control, static_cast<std::uint32_t>(left_));
  put_number(control, static_cast<std::uint32_t>(top_));
  put_number(control, std::min(static_cast<std::uint32_t>(shown.count()), kLongest), 2);
  put_number(control, 1000, 2);
  control += kKeep;
  control += kOver;
  put_chunk(body_, "fcTL", control);
  if (frames_++ == 0) {
    put_chunk(body_, "IDAT", frame_);
  } else {
    std::string data;
    put_number(data, chunks_++);
    put_chunk(body_, "fdAT", data + frame_);
  }
}

std::string AnimatedPng::finish(std::chrono::milliseconds last_shown) {
  put_frame(last_shown);
  std::string out = "\x89PNG\r\n\x1a\n";
  std::string header;
  put_number(header, static_cast<std::uint32_t>(shown_.width));
  put_number(header, static_cast<std::uint32_t>(shown_.height));
  constexpr char kBitDepth = 8, kColorWithAlpha = 6;
  header += kBitDepth;
  header += kColorWithAlpha;
  header += std::string(3, '\0');  // deflate, its filters, no interlacing
  put_chunk(out, "IHDR", header);
  std::string animation;
  put_number(animation, frames_);
  put_number(animation, 0);  // for ever
  put_chunk(out, "acTL", animation);
  out += body_;
  put_chunk(out, "IEND", "");
  return out;
}

}  // namespace lintel
