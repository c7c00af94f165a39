// SPDX-License-Identifier: Apache-2.0
#include "client/image/occlusion.h"

#include <algorithm>
#include <random>

#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// Rows of '#' (hidden) and '.'.
std::string drawn(const std::string& text, int height, int width, std::uint64_t seed = 0) {
  const auto hidden = Occlusion::parse(text).hidden(height, width, seed);
  std::string picture;
  for (std::size_t i = 0; i < hidden.size(); ++i) {
    if (i > 0 && i % static_cast<std::size_t>(width) == 0) picture += '/';
    picture += hidden[i] ? '#' : '.';
  }
  return picture;
}

GrayImage counting(int height, int width) {
  GrayImage image{height, width, {}};
  for (int i = 0; i < height * width; ++i) {
    image.pixels.push_back(static_cast<std::uint8_t>(i + 100));
  }
  return image;
}

}  // namespace

TEST_CASE("masks hide the pixels that they name") {
  CHECK(drawn("none", 3, 4) == "..../..../....");
  CHECK(drawn("bottom:1", 3, 4) == "..../..../####");
  CHECK(drawn("top:2", 3, 4) == "####/####/....");
  CHECK(drawn("left:1", 3, 4) == "#.../#.../#...");
  CHECK(drawn("right:3", 3, 4) == ".###/.###/.###");
  CHECK(drawn("box:1,2,2,1", 3, 4) == "..../..#./..#.");
  CHECK(drawn("bottom:3", 3, 4) == "####/####/####");
  CHECK(drawn("top:0", 3, 4) == "..../..../....");
  CHECK(drawn("random:0", 3, 4) == "..../..../....");
  CHECK(drawn("random:1", 3, 4) == "####/####/####");
}

TEST_CASE("a random mask depends on its seed alone and hides its share") {
  CHECK(drawn("random:0.5", 28, 28, 7) == drawn("random:0.5", 28, 28, 7));
  CHECK(drawn("random:0.5", 28, 28, 7) != drawn("random:0.5", 28, 28, 8));
  const std::string picture = drawn("random:0.25", 100, 100, 1);
  const auto hidden = std::count(picture.begin(), picture.end(), '#');
  CHECK(hidden > 2300);
  CHECK(hidden < 2700);
}

TEST_CASE("masks that make no sense are refused") {
  for (const char* text : {"", "bottom", "bottom:", "bottom:x", "bottom:-1", "bottom:1,2",
                           "box:1,2,3", "box:1,2,3,4,5", "random:1.5", "random:-0.1", "random:nan",
                           "random:", "middle:3", "none:1", "bottom:1 "}) {
    INFO(text);
    CHECK_THROWS_AS(Occlusion::parse(text), std::invalid_argument);
  }
  for (const char* text : {"bottom:4", "right:5", "box:2,0,2,1", "box:0,2147483647,1,1"}) {
    INFO(text);
    CHECK_THROWS_WITH(Occlusion::parse(text).hidden(3, 4, 0),
                      Catch::Contains("outside an image of 3x4"));
  }
}

TEST_CASE("known pixels before the first hidden one are the prompt, later ones are given") {
  const GrayImage image = counting(3, 4);
  const auto plan = plan_completion(image, Occlusion::parse("box:1,1,1,2").hidden(3, 4, 0), 9);
  CHECK(plan.prompt == std::vector<std::uint8_t>{100, 101, 102, 103, 104});
  CHECK(plan.new_tokens == 7);
  REQUIRE(plan.given.size() == 1);
  CHECK(plan.given[0].position == 7);
  CHECK(plan.given[0].pixels == std::vector<std::uint8_t>{107, 108, 109, 110, 111});
}

TEST_CASE("a hidden first pixel is the start token") {
  const GrayImage image = counting(3, 4);
  const auto all = plan_completion(image, std::vector<bool>(12, true), 9);
  CHECK(all.prompt == std::vector<std::uint8_t>{9});
  CHECK(all.new_tokens == 11);
  CHECK(all.given.empty());

  // The pixel after it is known: it belongs to the prompt.
  const auto left = plan_completion(image, Occlusion::parse("left:1").hidden(3, 4, 0), 9);
  CHECK(left.prompt == std::vector<std::uint8_t>{9, 101, 102, 103});
  REQUIRE(left.given.size() == 2);
  CHECK(left.given[0].position == 5);
  CHECK(left.given[1].pixels == std::vector<std::uint8_t>{109, 110, 111});
}

TEST_CASE("an image with nothing hidden leaves its last pixel to be given") {
  const auto plan = plan_completion(counting(3, 4), std::vector<bool>(12), 9);
  CHECK(plan.prompt.size() == 11);
  CHECK(plan.new_tokens == 1);
  REQUIRE(plan.given.size() == 1);
  CHECK(plan.given[0].position == 11);
  CHECK(plan.given[0].pixels == std::vector<std::uint8_t>{111});
}

TEST_CASE("prompt, given spans and hidden pixels make up any image") {
  std::mt19937 random(Catch::rngSeed());
  INFO("seed " << Catch::rngSeed());
  for (int round = 0; round < 300; ++round) {
    const int height = 1 + static_cast<int>(random() % 5);
    const int width = 2 + static_cast<int>(random() % 5);
    const GrayImage image = counting(height, width);
    std::vector<bool> hidden(image.pixels.size());
    for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i] = random() % 2 == 0;
    const auto plan = plan_completion(image, hidden, 9);

    std::vector<int> rebuilt(plan.prompt.begin(), plan.prompt.end());
    REQUIRE(plan.prompt.size() + static_cast<std::size_t>(plan.new_tokens) == image.pixels.size());
    rebuilt.resize(image.pixels.size(), -1);
    int last_end = static_cast<int>(plan.prompt.size());
    for (const auto& span : plan.given) {
      REQUIRE(span.position >= last_end);
      for (std::size_t i = 0; i < span.pixels.size(); ++i) {
        rebuilt[static_cast<std::size_t>(span.position) + i] = span.pixels[i];
      }
      last_end = span.position + static_cast<int>(span.pixels.size());
    }
    for (std::size_t i = 0; i < hidden.size(); ++i) {
      const int expected = i == 0 && hidden[0] ? 9 : hidden[i] ? -1 : image.pixels[i];
      REQUIRE(rebuilt[i] == expected);
    }
  }
}

}  // namespace lintel::testing
