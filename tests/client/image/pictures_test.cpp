// SPDX-License-Identifier: Apache-2.0
// The pictures on our pages and cards: a completion is the model's own, not its original.
#include <algorithm>
#include <filesystem>

#include "client/image/png.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = fs::path(LINTEL_TEST_DATA).parent_path();

// The layout of eight digits by `lintel complete --occlude bottom:14 --samples 4`: a row each of
// original, occluded and four completions.
constexpr int kRows = 8, kColumns = 6, kFirstCompletion = 2;
constexpr int kSide = 28, kHalf = 14, kGap = 2, kScale = 3;
constexpr int kPitch = (kSide + kGap) * kScale;  // pixels from digit to digit

int pixel(const GrayImage& picture, int row, int column, int y, int x) {
  const int top = row * kPitch + y * kScale, left = column * kPitch + x * kScale;
  return picture.pixels[static_cast<std::size_t>(top * picture.width + left)];
}

// The number of pixels in rows `from` to `to` that differ between two digits of a row.
int differences(const GrayImage& picture, int row, int column, int other, int from, int to) {
  int count = 0;
  for (int y = from; y < to; ++y) {
    for (int x = 0; x < kSide; ++x) {
      if (pixel(picture, row, column, y, x) != pixel(picture, row, other, y, x)) ++count;
    }
  }
  return count;
}

std::vector<fs::path> pictures() {
  std::vector<fs::path> files = {kRoot / "docs" / "images" / "completions.png"};
  for (const auto& model : fs::directory_iterator(kRoot / "weights")) {
    const fs::path file = model.path() / "completions.png";
    if (fs::exists(file)) files.push_back(file);
  }
  return files;
}

}  // namespace

TEST_CASE("no picture shows an original, or another completion, as a completion") {
  const std::vector<fs::path> files = pictures();
  CHECK(files.size() >= 6);
  for (const fs::path& file : files) {
    const GrayImage picture = read_png(file);
    REQUIRE(picture.height == kRows * kPitch - kGap * kScale);
    REQUIRE(picture.width == kColumns * kPitch - kGap * kScale);
    for (int row = 0; row < kRows; ++row) {
      for (int column = kFirstCompletion; column < kColumns; ++column) {
        CAPTURE(file, row, column);
        CHECK(differences(picture, row, column, 0, 0, kHalf) == 0);  // it is of this digit
        for (int other = 0; other < column; ++other) {
          if (other != kFirstCompletion - 1) {  // the occluded one
            CHECK(differences(picture, row, column, other, kHalf, kSide) >= 4);
          }
        }
      }
    }
  }
}

}  // namespace lintel::testing
