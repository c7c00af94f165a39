// SPDX-License-Identifier: Apache-2.0
#include "client/image/image.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>

namespace lintel {

Canvas tokens_canvas(const std::vector<std::int16_t>& tokens, int height, int width, int channels) {
  Canvas canvas(height, width, kHiddenPixel);
  if (channels == 1) {
    std::copy(tokens.begin(), tokens.end(), canvas.cells.begin());
    return canvas;
  }
  for (std::size_t i = 0; i < canvas.cells.size(); ++i) {
    const std::int16_t* const parts = &tokens[3 * i];
    if (*std::min_element(parts, parts + 3) < 0) continue;
    canvas.cells[i] =
        rgb_cell({static_cast<std::uint8_t>(parts[0]), static_cast<std::uint8_t>(parts[1]),
                  static_cast<std::uint8_t>(parts[2])});
  }
  return canvas;
}

double border_mean(const std::vector<GrayImage>& images) {
  double sum = 0;
  std::int64_t count = 0;
  for (const GrayImage& image : images) {
    for_each_border_pixel(image.height, image.width, [&](int row, int column) {
      sum += image.pixels[static_cast<std::size_t>(row * image.width + column)];
      ++count;
    });
  }
  return sum / static_cast<double>(count);
}

Canvas arrange(const std::vector<Canvas>& images, int columns, int gap) {
  const int height = images.front().height;
  const int width = images.front().width;
  const int count = static_cast<int>(images.size());
  const int rows = (count + columns - 1) / columns;
  Canvas canvas(rows * (height + gap) - gap, columns * (width + gap) - gap, kGapPixel);
  for (int i = 0; i < rows * columns; ++i) {
    const int top = (i / columns) * (height + gap);
    const int left = (i % columns) * (width + gap);
    for (int row = 0; row < height; ++row) {
      for (int column = 0; column < width; ++column) {
        const Cell cell = i < count ? images[static_cast<std::size_t>(i)].at(row, column) : 0;
        canvas.set(top + row, left + column, cell);
      }
    }
  }
  return canvas;
}

// Colours lie above all greys.
constexpr Cell kColor = 1 << 24;

Cell rgb_cell(Rgb color) { return kColor | color.red << 16 | color.green << 8 | color.blue; }

Rgb color_of(Cell cell) {
  if (cell == kHiddenPixel) return {58, 84, 128};
  if (cell == kGapPixel) return {24, 32, 48};
  if (cell >= kColor) {
    return {static_cast<std::uint8_t>(cell >> 16 & 255), static_cast<std::uint8_t>(cell >> 8 & 255),
            static_cast<std::uint8_t>(cell & 255)};
  }
  const auto gray = static_cast<std::uint8_t>(std::clamp(cell, 0, 255));
  return {gray, gray, gray};
}

namespace {

constexpr Cell kInk = 205;

struct Letter {
  char name;
  std::array<std::uint8_t, kLetterHeight> rows;  // five bits each, the highest is the leftmost
};

// clang-format off
constexpr Letter kLetters[] = {
    {'a', { 0,  0, 14,  1, 15, 17, 15}},
    {'b', {16, 16, 30, 17, 17, 17, 30}},
    {'c', { 0,  0, 14, 16, 16, 16, 14}},
    {'d', { 1,  1, 15, 17, 17, 17, 15}},
    {'e', { 0,  0, 14, 17, 31, 16, 14}},
    {'f', { 6,  8, 30,  8,  8,  8,  8}},
    {'g', { 0,  0, 15, 17, 15,  1, 14}},
    {'h', {16, 16, 30, 17, 17, 17, 17}},
    {'i', { 4,  0, 12,  4,  4,  4, 14}},
    {'j', { 2,  0,  6,  2,  2, 18, 12}},
    {'k', {16, 16, 18, 20, 24, 20, 18}},
    {'l', {12,  4,  4,  4,  4,  4, 14}},
    {'m', { 0,  0, 26, 21, 21, 21, 21}},
    {'n', { 0,  0, 30, 17, 17, 17, 17}},
    {'o', { 0,  0, 14, 17, 17, 17, 14}},
    {'p', { 0,  0, 30, 17, 30, 16, 16}},
    {'q', { 0,  0, 15, 17, 15,  1,  1}},
    {'r', { 0,  0, 22, 24, 16, 16, 16}},
    {'s', { 0,  0, 15, 16, 14,  1, 30}},
    {'t', { 8,  8, 30,  8,  8,  8,  6}},
    {'u', { 0,  0, 17, 17, 17, 17, 15}},
    {'v', { 0,  0, 17, 17, 17, 10,  4}},
    {'w', { 0,  0, 21, 21, 21, 21, 10}},
    {'x', { 0,  0, 17, 10,  4, 10, 17}},
    {'y', { 0,  0, 17, 17, 15,  1, 14}},
    {'z', { 0,  0, 31,  2,  4,  8, 31}},
    {'0', {14, 17, 19, 21, 25, 17, 14}},
    {'1', { 4, 12,  4,  4,  4,  4, 14}},
    {'2', {14, 17,  1,  6,  8, 16, 31}},
    {'3', {30,  1,  1, 14,  1,  1, 30}},
    {'4', { 2,  6, 10, 18, 31,  2,  2}},
    {'5', {31, 16, 30,  1,  1, 17, 14}},
    {'6', { 6,  8, 16, 30, 17, 17, 14}},
    {'7', {31,  1,  2,  2,  4,  4,  4}},
    {'8', {14, 17, 17, 14, 17, 17, 14}},
    {'9', {14, 17, 17, 15,  1,  2, 12}},
    {'.', { 0,  0,  0,  0,  0, 12, 12}},
    {':', { 0, 12, 12,  0, 12, 12,  0}},
    {',', { 0,  0,  0,  0, 12, 12,  8}},
    {'-', { 0,  0,  0, 31,  0,  0,  0}},
    {'#', {10, 10, 31, 10, 31, 10, 10}},
    {'/', { 1,  1,  2,  4,  8, 16, 16}},
};
// clang-format on

const Letter* find_letter(char wanted) {
  const char small = static_cast<char>(std::tolower(static_cast<unsigned char>(wanted)));
  const auto* const found = std::find_if(std::begin(kLetters), std::end(kLetters),
                                         [small](const Letter& l) { return l.name == small; });
  return found == std::end(kLetters) ? nullptr : found;
}

}  // namespace

void write_text(Canvas& canvas, int row, int column, std::string_view text, int scale) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const Letter* const letter = find_letter(text[i]);
    if (letter == nullptr) continue;
    const int left = column + static_cast<int>(i) * kLetterWidth * scale;
    for (int y = 0; y < kLetterHeight * scale; ++y) {
      for (int x = 0; x < (kLetterWidth - 1) * scale; ++x) {
        const int bits = letter->rows[static_cast<std::size_t>(y / scale)];
        if ((bits >> (kLetterWidth - 2 - x / scale) & 1) == 0) continue;
        if (row + y < 0 || row + y >= canvas.height || left + x < 0 || left + x >= canvas.width) {
          continue;
        }
        canvas.set(row + y, left + x, kInk);
      }
    }
  }
}

}  // namespace lintel
