// SPDX-License-Identifier: Apache-2.0
// Photographs of digits, made as MNIST's.
#include "client/image/fit.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

struct Point {
  double x = 0, y = 0;  // shares of the picture's smaller side, from its middle
};

struct Photo {
  int height = 300, width = 300;
  double pen = 0.05;  // width of the line, as a share of the smaller side
  double turned = 0;  // radians
  double paper = 210, ink = 60;
  double shade = 30;  // greys from the left to the right of the paper
  double noise = 6;   // standard deviation
  int specks = 0;
  double move_x = 0, move_y = 0;
};

const std::vector<Point> kSeven = {{-0.15, -0.2}, {0.15, -0.2}, {-0.02, 0.2}};
const std::vector<Point> kOne = {{0, -0.3}, {0, 0.3}};

double distance_to(Point p, Point a, Point b) {
  const double dx = b.x - a.x, dy = b.y - a.y;
  const double along =
      std::clamp(((p.x - a.x) * dx + (p.y - a.y) * dy) / (dx * dx + dy * dy), 0.0, 1.0);
  return std::hypot(p.x - a.x - along * dx, p.y - a.y - along * dy);
}

// A line through points, drawn on paper and photographed.
GrayImage photograph(const std::vector<Point>& line, const Photo& photo) {
  std::mt19937 random(5);
  std::normal_distribution<double> noise(0, photo.noise);
  const double side = std::min(photo.height, photo.width);
  GrayImage image{photo.height, photo.width, {}};
  for (int row = 0; row < photo.height; ++row) {
    for (int column = 0; column < photo.width; ++column) {
      const double x = (column + 0.5 - photo.width / 2.0) / side - photo.move_x;
      const double y = (row + 0.5 - photo.height / 2.0) / side - photo.move_y;
      const double c = std::cos(photo.turned), s = std::sin(photo.turned);
      const Point p{c * x + s * y, c * y - s * x};
      double nearest = 1e9;
      for (std::size_t i = 0; i + 1 < line.size(); ++i) {
        nearest = std::min(nearest, distance_to(p, line[i], line[i + 1]));
      }
      // An edge is as wide as a pixel.
      const double covered = std::clamp((photo.pen / 2 - nearest) * side + 0.5, 0.0, 1.0);
      const double paper = photo.paper + photo.shade * (column / (photo.width - 1.0) - 0.5);
      const double grey = paper * (1 - covered) + photo.ink * covered + noise(random);
      image.pixels.push_back(static_cast<std::uint8_t>(std::clamp(grey, 0.0, 255.0)));
    }
  }
  for (int i = 0; i < photo.specks; ++i) {
    const auto at = random() % image.pixels.size();
    image.pixels[at] = static_cast<std::uint8_t>(photo.ink);
  }
  return image;
}

struct Measured {
  int top = 1000, left = 1000, bottom = -1, right = -1;
  double center_y = 0, center_x = 0, mass = 0;
};

Measured measure(const GrayImage& image) {
  Measured m;
  for (int row = 0; row < image.height; ++row) {
    for (int column = 0; column < image.width; ++column) {
      const int pixel = image.pixels[static_cast<std::size_t>(row * image.width + column)];
      if (pixel == 0) continue;
      m.top = std::min(m.top, row);
      m.bottom = std::max(m.bottom, row);
      m.left = std::min(m.left, column);
      m.right = std::max(m.right, column);
      m.mass += pixel / 255.0;
      m.center_y += (row + 0.5) * pixel / 255.0;
      m.center_x += (column + 0.5) * pixel / 255.0;
    }
  }
  m.center_y /= m.mass;
  m.center_x /= m.mass;
  return m;
}

// The difference in greys, where one may lie a pixel beside the other: centres of mass are rounded.
double mean_difference(const GrayImage& a, const GrayImage& b) {
  REQUIRE(a.pixels.size() == b.pixels.size());
  const auto at = [](const GrayImage& image, int row, int column) {
    if (row < 0 || column < 0 || row >= image.height || column >= image.width) return 0;
    return int{image.pixels[static_cast<std::size_t>(row * image.width + column)]};
  };
  double least = 255;
  for (int shift = 0; shift < 9; ++shift) {
    double sum = 0;
    for (int row = 0; row < a.height; ++row) {
      for (int column = 0; column < a.width; ++column) {
        sum += std::abs(at(a, row, column) - at(b, row + shift / 3 - 1, column + shift % 3 - 1));
      }
    }
    least = std::min(least, sum / static_cast<double>(a.pixels.size()));
  }
  return least;
}

// Requires the form of MNIST's digits: 20 pixels at the longer side, the centre of mass in the
// middle, nothing but black around it.
void require_like_mnist(const GrayImage& image) {
  REQUIRE(image.height == 28);
  REQUIRE(image.width == 28);
  const Measured m = measure(image);
  const int longer = std::max(m.bottom - m.top, m.right - m.left) + 1;
  CHECK(longer >= 19);
  CHECK(longer <= 20);
  CHECK(m.center_y == Approx(14).margin(0.55));
  CHECK(m.center_x == Approx(14).margin(0.55));
  CHECK(*std::max_element(image.pixels.begin(), image.pixels.end()) == 255);
}

TEST_CASE("a digit on paper is put as MNIST's are, wherever it stands and however large it is") {
  Photo photo;
  photo.move_x = GENERATE(-0.2, 0.1);
  photo.move_y = GENERATE(-0.15, 0.2);
  photo.height = GENERATE(80, 300, 1100);
  photo.width = photo.height * 3 / 2;
  CAPTURE(photo.move_x, photo.move_y, photo.height);
  require_like_mnist(fit_digit(photograph(kSeven, photo), 28, 28));
}

TEST_CASE("the size of a photograph makes little difference") {
  Photo photo;
  const GrayImage small = fit_digit(photograph(kSeven, photo), 28, 28);
  photo.height = photo.width = 1000;
  CHECK(mean_difference(small, fit_digit(photograph(kSeven, photo), 28, 28)) < 6);
}

TEST_CASE("light ink on a dark ground is the same digit") {
  Photo photo;
  photo.noise = 0;
  const GrayImage dark = photograph(kSeven, photo);
  GrayImage light = dark;
  for (std::uint8_t& pixel : light.pixels) pixel = static_cast<std::uint8_t>(~pixel);
  CHECK(mean_difference(fit_digit(dark, 28, 28), fit_digit(light, 28, 28)) < 1);
}

TEST_CASE("a turned stroke keeps its direction and its aspect") {
  Photo photo;
  const Measured upright = measure(fit_digit(photograph(kOne, photo), 28, 28));
  CHECK(upright.bottom - upright.top + 1 >= 19);
  CHECK(upright.right - upright.left + 1 <= 4);
  photo.turned = 0.6;
  const GrayImage turned = fit_digit(photograph(kOne, photo), 28, 28);
  require_like_mnist(turned);
  const Measured m = measure(turned);
  CHECK(m.right - m.left + 1 > 10);
  photo.turned = -0.6;
  const GrayImage mirrored = fit_digit(photograph(kOne, photo), 28, 28);
  CHECK(mean_difference(turned, mirrored) > 20);  // they cross
}

TEST_CASE("light from a side, noise and specks of dirt leave no trace") {
  Photo photo;
  photo.height = 450;
  photo.width = 600;
  photo.noise = 0;
  photo.shade = 0;
  const GrayImage clean = fit_digit(photograph(kSeven, photo), 28, 28);
  photo.noise = 10;
  photo.shade = 80;
  photo.specks = 60;
  const GrayImage dirty = fit_digit(photograph(kSeven, photo), 28, 28);
  require_like_mnist(dirty);
  CHECK(mean_difference(clean, dirty) < 5);
}

TEST_CASE("a thin pen is drawn as wide as MNIST's, and a wide one stays as it is") {
  Photo photo;
  photo.height = photo.width = 500;
  const auto mass = [&](double pen) {
    photo.pen = pen;
    return measure(fit_digit(photograph(kOne, photo), 28, 28)).mass;
  };
  // 20 pixels long.
  CHECK(mass(0.005) > 25);
  CHECK(mass(0.01) > 25);
  CHECK(mass(0.15) > 70);
}

TEST_CASE("paper with nothing on it is no digit") {
  Photo photo;
  photo.noise = GENERATE(0, 4, 9);
  photo.shade = GENERATE(0, 60);
  CHECK_THROWS_WITH(fit_digit(photograph({{5, 5}, {6, 6}}, photo), 28, 28),
                    Catch::Contains("nothing is drawn"));
}

TEST_CASE("pictures of every small size are fitted, or refused, and never read beyond") {
  for (int height = 1; height <= 6; ++height) {
    for (int width = 1; width <= 6; ++width) {
      GrayImage image{height, width, {}};
      for (int i = 0; i < height * width; ++i) {
        image.pixels.push_back(static_cast<std::uint8_t>(i * i * 37));
      }
      for (const int side : {1, 5, 28}) {
        std::size_t size = static_cast<std::size_t>(side * (side + 1));
        try {
          size = fit_digit(image, side, side + 1).pixels.size();
        } catch (const std::invalid_argument&) {
        }
        CHECK(size == static_cast<std::size_t>(side * (side + 1)));
      }
    }
  }
}

}  // namespace
}  // namespace lintel::testing
