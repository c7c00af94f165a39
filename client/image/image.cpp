#include "client/image/image.h"

#include <algorithm>

namespace lintel {

Canvas to_canvas(const GrayImage& image) {
  Canvas canvas(image.height, image.width, 0);
  std::copy(image.pixels.begin(), image.pixels.end(), canvas.cells.begin());
  return canvas;
}

Canvas values_canvas(const std::vector<std::int16_t>& values, int height, int width, int channels) {
  Canvas canvas(height, width, kHiddenPixel);
  if (channels == 1) {
    std::copy(values.begin(), values.end(), canvas.cells.begin());
    return canvas;
  }
  for (std::size_t i = 0; i < canvas.cells.size(); ++i) {
    const std::int16_t* const parts = &values[3 * i];
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
    for (int row = 0; row < image.height; ++row) {
      const bool whole = row == 0 || row + 1 == image.height;
      const int step = whole ? 1 : std::max(1, image.width - 1);
      for (int column = 0; column < image.width; column += step) {
        sum += image.pixels[static_cast<std::size_t>(row * image.width + column)];
        ++count;
      }
    }
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

}  // namespace lintel
