// SPDX-License-Identifier: Apache-2.0
// Animated PNGs, read back by hand.
#include <zlib.h>

#include <fstream>
#include <string>
#include <vector>

#include "client/image/image.h"
#include "client/image/png.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

using std::chrono::milliseconds;

std::uint32_t number(const std::string& bytes, std::size_t at, int count = 4) {
  std::uint32_t value = 0;
  for (int i = 0; i < count; ++i) {
    value = value << 8 | static_cast<unsigned char>(bytes.at(at + static_cast<std::size_t>(i)));
  }
  return value;
}

struct PngChunk {
  std::string type, data;
};

std::vector<PngChunk> chunks_of(const std::string& png) {
  REQUIRE(png.substr(0, 8) == "\x89PNG\r\n\x1a\n");
  std::vector<PngChunk> chunks;
  for (std::size_t at = 8; at < png.size();) {
    const std::uint32_t size = number(png, at);
    chunks.push_back({png.substr(at + 4, 4), png.substr(at + 8, size)});
    const std::string checked = png.substr(at + 4, size + 4);
    REQUIRE(number(png, at + 8 + size) == crc32(0, reinterpret_cast<const Bytef*>(checked.data()),
                                                static_cast<uInt>(checked.size())));
    at += 12 + size;
  }
  return chunks;
}

// The frames that a viewer shows, [frame][pixel], and their times.
struct Film {
  std::vector<std::vector<Rgb>> frames;
  std::vector<std::uint32_t> milliseconds_shown;
};

Film play(const std::string& png) {
  Film film;
  std::vector<Rgb> screen;
  std::uint32_t width = 0, announced = 0, sequence = 0;
  std::string control;
  for (const PngChunk& chunk : chunks_of(png)) {
    if (chunk.type == "IHDR") {
      width = number(chunk.data, 0);
      screen.resize(std::size_t{width} * number(chunk.data, 4));
    } else if (chunk.type == "acTL") {
      announced = number(chunk.data, 0);
      CHECK(number(chunk.data, 4) == 0);
    } else if (chunk.type == "fcTL") {
      CHECK(number(chunk.data, 0) == sequence++);
      control = chunk.data;
    } else if (chunk.type == "IDAT" || chunk.type == "fdAT") {
      std::string data = chunk.data;
      if (chunk.type == "fdAT") {
        CHECK(number(data, 0) == sequence++);
        data.erase(0, 4);
      }
      const std::uint32_t w = number(control, 4), h = number(control, 8);
      const std::uint32_t left = number(control, 12), top = number(control, 16);
      std::string pixels(std::size_t{h} * (1 + 4 * w), '\0');
      uLongf size = pixels.size();
      REQUIRE(uncompress(reinterpret_cast<Bytef*>(pixels.data()), &size,
                         reinterpret_cast<const Bytef*>(data.data()), data.size()) == Z_OK);
      REQUIRE(size == pixels.size());
      for (std::uint32_t y = 0; y < h; ++y) {
        for (std::uint32_t x = 0; x < w; ++x) {
          const std::size_t at = std::size_t{y} * (1 + 4 * w) + 1 + 4 * x;
          if (pixels[at + 3] == '\0') continue;
          screen.at(std::size_t{top + y} * width + left + x) = {
              static_cast<std::uint8_t>(pixels[at]), static_cast<std::uint8_t>(pixels[at + 1]),
              static_cast<std::uint8_t>(pixels[at + 2])};
        }
      }
      film.frames.push_back(screen);
      film.milliseconds_shown.push_back(1000 * number(control, 20, 2) / number(control, 22, 2));
    }
  }
  CHECK(film.frames.size() == announced);
  return film;
}

std::vector<Rgb> colors_of(const Canvas& canvas) {
  std::vector<Rgb> colors;
  for (const Cell cell : canvas.cells) colors.push_back(color_of(cell));
  return colors;
}

TEST_CASE("an animated PNG plays every frame for its duration") {
  Canvas canvas(7, 9, kHiddenPixel);
  std::vector<Canvas> canvases = {canvas};
  AnimatedPng png(canvas);
  for (int i = 0; i < 20; ++i) {
    canvas.set(i * 3 % 7, i * 5 % 9, i * 12);
    if (i == 12) canvas.set(0, 0, kGapPixel);
    if (i == 15) canvas = canvases.back();  // nothing changes
    png.add(canvas, milliseconds(i == 0 ? 500 : 20));
    canvases.push_back(canvas);
  }
  const std::string bytes = png.finish(std::chrono::seconds(2));
  const Film film = play(bytes);
  REQUIRE(film.frames.size() == canvases.size());
  for (std::size_t i = 0; i < canvases.size(); ++i) {
    CAPTURE(i);
    CHECK(film.frames[i] == colors_of(canvases[i]));
    CHECK(film.milliseconds_shown[i] == (i == 0 ? 500 : i + 1 == canvases.size() ? 2000 : 20));
  }
}

TEST_CASE("a decoder without animation shows the first frame") {
  const TemporaryDirectory directory;
  const auto file = directory.path() / "film.png";
  Canvas canvas(5, 4, 100);
  AnimatedPng png(canvas);
  canvas.set(2, 2, 200);
  png.add(canvas, milliseconds(20));
  std::ofstream(file, std::ios::binary) << png.finish(milliseconds(20));
  const GrayImage first = read_png(file);
  CHECK(first.height == 5);
  CHECK(first.width == 4);
  CHECK(first.pixels == std::vector<std::uint8_t>(20, 100));
}

TEST_CASE("pixels that come one by one take few bytes") {
  Canvas canvas(300, 500, kHiddenPixel);
  AnimatedPng png(canvas);
  for (int i = 0; i < 50; ++i) {
    for (int row = 3; row < 300; row += 30) canvas.set(row, i + 5, 200);
    png.add(canvas, milliseconds(20));
  }
  CHECK(png.finish(milliseconds(20)).size() < 50'000);
}

TEST_CASE("letters differ from one another, and what lies beyond the canvas is cut") {
  const std::string all = "abcdefghijklmnopqrstuvwxyz0123456789.:,-#/";
  std::vector<std::vector<Cell>> drawn;
  for (const char letter : all) {
    Canvas canvas(kLetterHeight, kLetterWidth - 1, kGapPixel);
    write_text(canvas, 0, 0, std::string(1, letter), 1);
    CAPTURE(letter);
    CHECK(std::find(drawn.begin(), drawn.end(), canvas.cells) == drawn.end());
    CHECK(std::count(canvas.cells.begin(), canvas.cells.end(), kGapPixel) < 34);
    drawn.push_back(canvas.cells);
  }
  CHECK(text_width("", 2) == 0);
  CHECK(text_width("abc", 2) == 34);
  Canvas large(14, 34, kGapPixel), cut(5, 5, kGapPixel);
  write_text(large, 0, 0, "ABC", 2);
  CHECK(std::count(large.cells.begin(), large.cells.end(), kGapPixel) <
        static_cast<std::ptrdiff_t>(large.cells.size()));
  write_text(cut, -3, -8, "abc", 2);
}

}  // namespace
}  // namespace lintel::testing
