#include "client/image/image.h"

#include <algorithm>

namespace lintel {

Canvas to_canvas(const GrayImage& image) {
  Canvas canvas(image.height, image.width, 0);
  std::copy(image.pixels.begin(), image.pixels.end(), canvas.cells.begin());
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
        const std::int16_t cell =
            i < count ? images[static_cast<std::size_t>(i)].at(row, column) : std::int16_t{0};
        canvas.set(top + row, left + column, cell);
      }
    }
  }
  return canvas;
}

Rgb color_of(std::int16_t cell) {
  if (cell == kHiddenPixel) return {58, 84, 128};
  if (cell == kGapPixel) return {24, 32, 48};
  const auto gray = static_cast<std::uint8_t>(std::clamp<std::int16_t>(cell, 0, 255));
  return {gray, gray, gray};
}

}  // namespace lintel
