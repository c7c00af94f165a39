// SPDX-License-Identifier: Apache-2.0
#include "client/image/fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

namespace lintel {
namespace {

// A digit's share of the image's smaller side, and the least width of its lines in that share.
constexpr double kBoxShare = 20.0 / 28.0;
constexpr double kLeastStroke = 2.0 / 28.0;
constexpr int kWorkSide = 400;        // photos are made no larger: noise goes, time is bounded
constexpr double kLeastInk = 24;      // greys that ink is from the ground, to be any
constexpr double kSpeckShare = 0.04;  // of the largest stroke's pixels: smaller ones are specks

// Any numbers at pixels.
struct Field {
  Field(int field_height, int field_width)
      : height(field_height),
        width(field_width),
        values(static_cast<std::size_t>(field_height) * static_cast<std::size_t>(field_width)) {}
  float& at(int row, int column) { return values[index(row, column)]; }
  float at(int row, int column) const { return values[index(row, column)]; }
  std::size_t index(int row, int column) const {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(width) +
           static_cast<std::size_t>(column);
  }

  int height, width;
  std::vector<float> values;  // [height, width]
};

Field transposed(const Field& field) {
  Field out(field.width, field.height);
  for (int row = 0; row < field.height; ++row) {
    for (int column = 0; column < field.width; ++column) {
      out.at(column, row) = field.at(row, column);
    }
  }
  return out;
}

// Rows of another length: means weighted by a triangle as wide as the step, at least of one pixel.
Field with_width(const Field& field, int width) {
  Field out(field.height, width);
  const double step = static_cast<double>(field.width) / width;
  const double reach = std::max(step, 1.0);
  for (int column = 0; column < width; ++column) {
    const double center = (column + 0.5) * step - 0.5;
    const int first = std::max(0, static_cast<int>(std::ceil(center - reach)));
    const int last = std::min(field.width - 1, static_cast<int>(std::floor(center + reach)));
    double total = 0;
    for (int i = first; i <= last; ++i) total += 1 - std::abs(i - center) / reach;
    for (int row = 0; row < field.height; ++row) {
      double sum = 0;
      for (int i = first; i <= last; ++i) {
        sum += (1 - std::abs(i - center) / reach) * field.at(row, i);
      }
      out.at(row, column) = static_cast<float>(total > 0 ? sum / total : field.at(row, first));
    }
  }
  return out;
}

Field resized(const Field& field, int height, int width) {
  return transposed(with_width(transposed(with_width(field, width)), height));
}

Field working_copy(const GrayImage& photo) {
  Field field(photo.height, photo.width);
  std::copy(photo.pixels.begin(), photo.pixels.end(), field.values.begin());
  const double shrink = static_cast<double>(kWorkSide) / std::max(photo.height, photo.width);
  if (shrink >= 1) return field;
  const auto side = [&](int length) {
    return std::max(1, static_cast<int>(std::lround(length * shrink)));
  };
  return resized(field, side(photo.height), side(photo.width));
}

// The place of an index on a line from -1 to 1.
double along(int index, int length) { return 2.0 * index / std::max(1, length - 1) - 1; }

// z = a + b x + c y, the least squares through the outermost pixels; x and y from -1 to 1.
std::array<double, 3> border_plane(const Field& field, double outlier) {
  std::array<std::array<double, 4>, 3> rows{};  // the normal equations
  std::array<double, 3> plane{};
  for_each_border_pixel(field.height, field.width, [&](int row, int column) {
    const std::array<double, 4> terms = {1, along(column, field.width), along(row, field.height),
                                         field.at(row, column)};
    if (std::abs(terms[3] - outlier) > 64) return;  // ink that reaches the border
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t j = 0; j < 4; ++j) rows[i][j] += terms[i] * terms[j];
    }
  });
  // Over symmetric points the terms are nearly orthogonal: a few sweeps of Gauss and Seidel.
  for (int sweep = 0; sweep < 50; ++sweep) {
    for (std::size_t i = 0; i < 3; ++i) {
      if (rows[i][i] < 1e-9) continue;
      double rest = rows[i][3];
      for (std::size_t j = 0; j < 3; ++j) rest -= j == i ? 0 : rows[i][j] * plane[j];
      plane[i] = rest / rows[i][i];
    }
  }
  return plane;
}

float median_of(std::vector<float> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

float border_median(const Field& field) {
  std::vector<float> border;
  for_each_border_pixel(field.height, field.width,
                        [&](int row, int column) { border.push_back(field.at(row, column)); });
  return median_of(std::move(border));
}

// The value between 0 and 255 that parts the values into two with the greatest variance between;
// the middle of them where several do.
double otsu_threshold(const std::vector<float>& values) {
  std::array<double, 256> counts{};
  for (const float value : values) {
    ++counts[static_cast<std::size_t>(std::clamp(value, 0.0f, 255.0f))];
  }
  double total = 0, moment = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    total += counts[i];
    moment += static_cast<double>(i) * counts[i];
  }
  double below = 0, below_moment = 0, best = 0, first = 0, last = 0;
  for (std::size_t i = 0; i + 1 < counts.size(); ++i) {
    below += counts[i];
    below_moment += static_cast<double>(i) * counts[i];
    if (below == 0 || below == total) continue;
    const double apart = below_moment / below - (moment - below_moment) / (total - below);
    const double variance = below * (total - below) * apart * apart;
    if (variance < best) continue;
    last = static_cast<double>(i) + 0.5;
    if (variance > best) first = last;
    best = variance;
  }
  return (first + last) / 2;
}

// The distance of each pixel from the ground, in the direction of the ink: 0 to 255.
Field ink_of(const Field& photo) {
  const std::array<double, 3> plane = border_plane(photo, border_median(photo));
  Field away = photo;
  for (int row = 0; row < photo.height; ++row) {
    for (int column = 0; column < photo.width; ++column) {
      const double x = along(column, photo.width), y = along(row, photo.height);
      away.at(row, column) -= static_cast<float>(plane[0] + plane[1] * x + plane[2] * y);
    }
  }
  // The ink is where the pixels are that are furthest away: noise is the same on both sides.
  double darker = 0, lighter = 0;
  for (const float value : away.values) {
    (value < 0 ? darker : lighter) += static_cast<double>(value) * value;
  }
  for (float& value : away.values) value = std::max(0.0f, darker > lighter ? -value : value);
  return away;
}

// The pixels above the threshold that hang together, eight neighbours each, without specks.
std::vector<bool> strokes_of(const Field& ink, double threshold) {
  std::vector<int> part(ink.values.size(), -1);
  std::vector<std::size_t> sizes, waiting;
  for (int row = 0; row < ink.height; ++row) {
    for (int column = 0; column < ink.width; ++column) {
      if (ink.at(row, column) <= threshold || part[ink.index(row, column)] >= 0) continue;
      const int number = static_cast<int>(sizes.size());
      sizes.push_back(0);
      waiting.push_back(ink.index(row, column));
      part[waiting.back()] = number;
      while (!waiting.empty()) {
        const auto here = static_cast<int>(waiting.back());
        waiting.pop_back();
        ++sizes.back();
        const int y = here / ink.width, x = here % ink.width;
        for (int near = 0; near < 9; ++near) {
          const int ny = y + near / 3 - 1, nx = x + near % 3 - 1;
          if (ny < 0 || nx < 0 || ny >= ink.height || nx >= ink.width) continue;
          const std::size_t next = ink.index(ny, nx);
          if (part[next] >= 0 || ink.values[next] <= threshold) continue;
          part[next] = number;
          waiting.push_back(next);
        }
      }
    }
  }
  std::vector<bool> strokes(ink.values.size(), false);
  if (sizes.empty()) return strokes;
  const double least =
      kSpeckShare * static_cast<double>(*std::max_element(sizes.begin(), sizes.end()));
  for (std::size_t i = 0; i < strokes.size(); ++i) {
    strokes[i] =
        part[i] >= 0 && static_cast<double>(sizes[static_cast<std::size_t>(part[i])]) >= least;
  }
  return strokes;
}

struct Box {
  int top = 0, left = 0, bottom = -1, right = -1;  // inclusive
  int height() const { return bottom - top + 1; }
  int width() const { return right - left + 1; }
};

Box box_of(const Field& field, const std::vector<bool>& strokes) {
  Box box{field.height, field.width, -1, -1};
  for (int row = 0; row < field.height; ++row) {
    for (int column = 0; column < field.width; ++column) {
      if (!strokes[field.index(row, column)]) continue;
      box.top = std::min(box.top, row);
      box.bottom = std::max(box.bottom, row);
      box.left = std::min(box.left, column);
      box.right = std::max(box.right, column);
    }
  }
  return box;
}

// The width of lines that are long beside it: twice the area by the length of the outline.
double stroke_width(const Field& field, const std::vector<bool>& strokes) {
  double area = 0, outline = 0;
  const auto is_stroke = [&](int row, int column) {
    return row >= 0 && column >= 0 && row < field.height && column < field.width &&
           strokes[field.index(row, column)];
  };
  for (int row = 0; row < field.height; ++row) {
    for (int column = 0; column < field.width; ++column) {
      if (!is_stroke(row, column)) continue;
      ++area;
      outline += !is_stroke(row - 1, column) + !is_stroke(row + 1, column) +
                 !is_stroke(row, column - 1) + !is_stroke(row, column + 1);
    }
  }
  // Edges of pixels are 4/pi as long as the outline they follow, on the average of directions.
  return 2 * area / std::max(1.0, outline * 0.785);
}

// The largest value within `radius` in a row, at each pixel.
Field spread_in_rows(const Field& field, int radius) {
  Field out = field;
  for (int row = 0; row < field.height; ++row) {
    for (int column = 0; column < field.width; ++column) {
      for (int i = std::max(0, column - radius); i <= std::min(field.width - 1, column + radius);
           ++i) {
        out.at(row, column) = std::max(out.at(row, column), field.at(row, i));
      }
    }
  }
  return out;
}

// The strokes alone, from 0 to 1, with a margin of the ground around them and lines of this width
// at least.
Field cut_out(const Field& ink, const std::vector<bool>& strokes, const Box& box, double threshold,
              double least_width) {
  const double width = stroke_width(ink, strokes);
  const int radius = std::max(0, static_cast<int>(std::lround((least_width - width) / 2)));
  std::vector<float> strengths;
  for (std::size_t i = 0; i < strokes.size(); ++i) {
    if (strokes[i]) strengths.push_back(ink.values[i]);
  }
  // Full ink is what half of the strokes have; half of the way to the threshold is none, so that
  // edges stay soft and paper is black.
  const auto full = median_of(std::move(strengths)), none = static_cast<float>(threshold / 2);
  Field cut(box.height() + 2 * radius, box.width() + 2 * radius);
  for (int row = 0; row < box.height(); ++row) {
    for (int column = 0; column < box.width(); ++column) {
      const int y = box.top + row, x = box.left + column;
      bool near = false;  // an edge belongs to its stroke, a speck to none
      for (int i = 0; i < 9 && !near; ++i) {
        const int ny = y + i / 3 - 1, nx = x + i % 3 - 1;
        near =
            ny >= 0 && nx >= 0 && ny < ink.height && nx < ink.width && strokes[ink.index(ny, nx)];
      }
      if (!near) continue;
      cut.at(row + radius, column + radius) =
          std::clamp((ink.at(y, x) - none) / std::max(full - none, 1.0f), 0.0f, 1.0f);
    }
  }
  if (radius == 0) return cut;
  return transposed(spread_in_rows(transposed(spread_in_rows(cut, radius)), radius));
}

}  // namespace

GrayImage fit_digit(const GrayImage& photo, int height, int width) {
  const Field ink = ink_of(working_copy(photo));
  const double threshold = otsu_threshold(ink.values);
  const std::vector<bool> strokes = strokes_of(ink, threshold);
  const Box box = box_of(ink, strokes);
  if (threshold < kLeastInk / 2 || box.bottom < 0) {
    throw std::invalid_argument("nothing is drawn on it: all of it is like its border");
  }
  const int side = std::max(1, static_cast<int>(std::lround(std::min(height, width) * kBoxShare)));
  const int longest = std::max(box.height(), box.width());
  const double least_width = kLeastStroke * std::min(height, width) * longest / side;
  const Field cut = cut_out(ink, strokes, box, threshold, least_width);
  const double scale = static_cast<double>(side) / std::max(cut.height, cut.width);
  Field digit = resized(cut, std::max(1, static_cast<int>(std::lround(cut.height * scale))),
                        std::max(1, static_cast<int>(std::lround(cut.width * scale))));
  const float brightest = *std::max_element(digit.values.begin(), digit.values.end());

  double mass = 0, moment_y = 0, moment_x = 0;
  for (int row = 0; row < digit.height; ++row) {
    for (int column = 0; column < digit.width; ++column) {
      mass += digit.at(row, column);
      moment_y += (row + 0.5) * digit.at(row, column);
      moment_x += (column + 0.5) * digit.at(row, column);
    }
  }
  const auto offset = [](int length, int of, double center) {
    return std::clamp(static_cast<int>(std::lround(of / 2.0 - center)), 0, of - length);
  };
  const int top = offset(digit.height, height, moment_y / mass);
  const int left = offset(digit.width, width, moment_x / mass);
  GrayImage out{height, width,
                std::vector<std::uint8_t>(static_cast<std::size_t>(height) *
                                          static_cast<std::size_t>(width))};
  for (int row = 0; row < digit.height; ++row) {
    for (int column = 0; column < digit.width; ++column) {
      out.pixels[static_cast<std::size_t>((top + row) * width + left + column)] =
          static_cast<std::uint8_t>(std::lround(255 * digit.at(row, column) / brightest));
    }
  }
  return out;
}

}  // namespace lintel
