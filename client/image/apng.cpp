#include "client/image/apng.h"

#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

namespace lintel {
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
  constexpr char kKeep = 0, kOver = 1;        // what becomes of the frame, and how it is drawn
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
