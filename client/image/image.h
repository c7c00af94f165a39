// SPDX-License-Identifier: Apache-2.0
// Images as a model has them, and the canvas on which they are laid out for people.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace lintel {

// A file that is not the image it should be. what() names the file and both values.
class ImageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// 8-bit grey, 0 black. pixels[row * width + column]. One of a model with three channels is as wide
// as its tokens: red, green and blue of a pixel stand side by side (see tokens_canvas).
struct GrayImage {
  int height = 0;
  int width = 0;
  std::vector<std::uint8_t> pixels;  // [height, width]
};

// Calls take(row, column) for each of the outermost pixels, row by row.
template <typename Take>
void for_each_border_pixel(int height, int width, const Take& take) {
  for (int row = 0; row < height; ++row) {
    const bool whole = row == 0 || row + 1 == height;
    for (int column = 0; column < width; column += whole ? 1 : std::max(1, width - 1)) {
      take(row, column);
    }
  }
}

// Mean grey of the outermost rows and columns of all the images, 0 to 255. REQUIRES: images not
// empty.
double border_mean(const std::vector<GrayImage>& images);

// The content of a cell of a canvas: a grey value 0..255, a colour (rgb_cell), or one of these.
using Cell = std::int32_t;
inline constexpr Cell kHiddenPixel = -1;  // not known, or not yet
inline constexpr Cell kGapPixel = -2;     // between images

// Pixels to look at: images side by side; hidden parts and gaps differ from every grey.
struct Canvas {
  Canvas() = default;
  Canvas(int canvas_height, int canvas_width, Cell fill)
      : height(canvas_height),
        width(canvas_width),
        cells(static_cast<std::size_t>(canvas_height) * static_cast<std::size_t>(canvas_width),
              fill) {}

  Cell at(int row, int column) const { return cells[index(row, column)]; }
  void set(int row, int column, Cell value) { cells[index(row, column)] = value; }

  int height = 0;
  int width = 0;
  std::vector<Cell> cells;  // [height, width]

 private:
  std::size_t index(int row, int column) const {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(width) +
           static_cast<std::size_t>(column);
  }
};

// A canvas of tokens, -1 where one is hidden, in a model's order: [height, width * channels],
// channels innermost. A pixel of three is hidden until all of it is there. REQUIRES: 1 or 3
// channels.
Canvas tokens_canvas(const std::vector<std::int16_t>& tokens, int height, int width, int channels);

// Lays images of one size out in a grid, `columns` wide, with `gap` cells between them. What is
// left of the last row is black. REQUIRES: images not empty, all of one size; columns >= 1; gap >=
// 0.
Canvas arrange(const std::vector<Canvas>& images, int columns, int gap);

struct Rgb {
  std::uint8_t red = 0, green = 0, blue = 0;
  friend bool operator==(const Rgb&, const Rgb&) = default;
};

// The cell that shows a colour.
Cell rgb_cell(Rgb color);
// Greys and colours as they are, hidden a muted blue, gaps a darker one.
Rgb color_of(Cell cell);
// True if the cell is grey.
inline bool is_gray(Cell cell) { return cell >= 0 && cell < 256; }

// A few words on a canvas.

// Letters are 5 cells wide and 7 high, and a cell apart.
inline constexpr int kLetterWidth = 6, kLetterHeight = 7;

inline int text_width(std::string_view text, int scale) {
  return text.empty() ? 0 : (static_cast<int>(text.size()) * kLetterWidth - 1) * scale;
}

// Writes `text` in light grey with its upper left corner there, each cell of a letter a square of
// `scale`. Small letters, digits and the marks .:,-#/ ; capitals are small, all else is a blank.
// What lies outside the canvas is cut.
void write_text(Canvas& canvas, int row, int column, std::string_view text, int scale);

}  // namespace lintel
