// SPDX-License-Identifier: Apache-2.0
#include "client/image/png.h"

#include <zlib.h>

#include <algorithm>
#include <fstream>
#include <random>

#include "client/image/image_file.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

GrayImage ramp(int height, int width) {
  GrayImage image{height, width, {}};
  for (int i = 0; i < height * width; ++i) {
    image.pixels.push_back(static_cast<std::uint8_t>(i * 7));
  }
  return image;
}

std::string bytes_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_bytes(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

void write_png(const std::filesystem::path& file, const Canvas& canvas, int scale) {
  write_bytes(file, encode_png(canvas, scale));
}

Canvas to_canvas(const GrayImage& image) {
  Canvas canvas(image.height, image.width, 0);
  std::copy(image.pixels.begin(), image.pixels.end(), canvas.cells.begin());
  return canvas;
}

// The checksum of a chunk's name and content, as PNG stores it.
std::string checksum(const std::string& chunk) {
  const auto crc =
      crc32(0, reinterpret_cast<const Bytef*>(chunk.data()), static_cast<uInt>(chunk.size()));
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>((crc >> shift) & 255);
  return bytes;
}

}  // namespace

TEST_CASE("every grey survives a PNG unchanged") {
  TemporaryDirectory directory;
  const auto file = directory.path() / "gray.png";
  GrayImage image{16, 16, {}};
  for (int i = 0; i < 256; ++i) image.pixels.push_back(static_cast<std::uint8_t>(i));
  write_png(file, to_canvas(image), 1);
  const GrayImage back = read_png(file);
  CHECK(back.height == 16);
  CHECK(back.width == 16);
  CHECK(back.pixels == image.pixels);
}

TEST_CASE("greys in a coloured PNG come back as the same greys") {
  TemporaryDirectory directory;
  const auto file = directory.path() / "color.png";
  Canvas canvas(17, 16, 0);
  for (int i = 0; i < 256; ++i) canvas.cells[static_cast<std::size_t>(i)] = std::int16_t(i);
  canvas.set(16, 0, kHiddenPixel);  // makes it a coloured one
  write_png(file, canvas, 1);
  const GrayImage back = read_png(file);
  for (std::size_t i = 0; i < 256; ++i) CHECK(back.pixels[i] == i);
}

TEST_CASE("scale draws every cell as a square") {
  TemporaryDirectory directory;
  const auto file = directory.path() / "scaled.png";
  write_png(file, to_canvas({1, 2, {10, 200}}), 3);
  const GrayImage back = read_png(file);
  CHECK(back.height == 3);
  CHECK(back.width == 6);
  for (int i = 0; i < 18; ++i) {
    CHECK(back.pixels[static_cast<std::size_t>(i)] == (i % 6 < 3 ? 10 : 200));
  }
}

TEST_CASE("a sheet is cut into the images it holds, row by row") {
  TemporaryDirectory directory;
  const auto file = directory.path() / "sheet.png";
  std::vector<Canvas> cells;
  for (std::uint8_t i = 0; i < 6; ++i) {
    GrayImage image = ramp(4, 5);
    image.pixels[0] = i;
    cells.push_back(to_canvas(image));
  }
  write_png(file, arrange(cells, 3, /*gap=*/0), 1);
  const auto images = read_images(file, 4, 5);
  REQUIRE(images.size() == 6);
  for (std::uint8_t i = 0; i < 6; ++i) {
    CHECK(to_canvas(images[i]).cells == cells[i].cells);
  }
  CHECK_THROWS_WITH(read_images(file, 3, 5),
                    Catch::Contains("8x15 pixels are no whole number of images of 3x5; --fit "));
}

TEST_CASE("an image file of another size is refused with both") {
  TemporaryDirectory directory;
  const auto file = directory.path() / "idx";
  write_bytes(file, std::string("\0\0\x08\x03\0\0\0\x01\0\0\0\x01\0\0\0\x02"
                                "ab",
                                18));
  CHECK(read_images(file, 1, 2).size() == 1);
  CHECK_THROWS_WITH(read_images(file, 28, 28),
                    Catch::Contains("images of 1x2, the model's are 28x28"));
}

TEST_CASE("a hostile PNG is refused by name") {
  TemporaryDirectory directory;
  const auto file = directory.path() / "bad.png";
  write_png(file, to_canvas(ramp(20, 20)), 1);
  const std::string good = bytes_of(file);
  for (const std::size_t size : {std::size_t{0}, std::size_t{8}, std::size_t{20}, std::size_t{33},
                                 good.size() / 2, good.size() - 13}) {
    INFO(size);
    write_bytes(file, good.substr(0, size));
    CHECK_THROWS_WITH(read_png(file), Catch::Contains(file.string()));
  }
  write_bytes(file, "\x89PNG\r\n\x1a\n" + std::string(100, 'x'));
  CHECK_THROWS_AS(read_png(file), ImageError);
  CHECK_THROWS_WITH(read_png(directory.path() / "none.png"), Catch::Contains("cannot be opened"));
}

TEST_CASE("a PNG that claims to be huge is refused before memory is taken") {
  TemporaryDirectory directory;
  const auto file = directory.path() / "huge.png";
  // 500000 x 500000 pixels of 8-bit grey.
  const std::string header("IHDR\0\x07\xa1\x20\0\x07\xa1\x20\x08\0\0\0\0", 17);
  write_bytes(file, std::string("\x89PNG\r\n\x1a\n\0\0\0\x0d", 12) + header + checksum(header) +
                        std::string(4, '\0') + "IDAT" + checksum("IDAT"));
  CHECK_THROWS_WITH(read_png(file), Catch::Contains("500000x500000 pixels, more than"));
}

TEST_CASE("mutated PNGs are read or refused, never worse") {
  TemporaryDirectory directory;
  const auto file = directory.path() / "mutated.png";
  write_png(file, to_canvas(ramp(12, 12)), 1);
  const std::string good = bytes_of(file);
  std::mt19937 random(Catch::rngSeed());
  INFO("seed " << Catch::rngSeed());
  for (int i = 0; i < 500; ++i) {
    std::string bytes = good;
    bytes[random() % bytes.size()] = static_cast<char>(random());
    if (i % 2 == 0) bytes.resize(random() % bytes.size());
    write_bytes(file, bytes);
    try {
      read_png(file);
    } catch (const ImageError&) {
    }
  }
  SUCCEED();
}

}  // namespace lintel::testing
