// SPDX-License-Identifier: Apache-2.0
#include <regex>

#include "client/image/png.h"
#include "tests/cli/processes.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

constexpr int kHeight = 6, kWidth = 5, kSize = kHeight * kWidth;
const std::regex kSpeed("[0-9]+\\.[0-9] images/s, [0-9]+ tokens/s\n");

std::uint8_t pixel(int image, int p) { return static_cast<std::uint8_t>(image * 30 + p * 5); }

std::string idx_of_three() {
  std::string bytes("\0\0\x08\x03\0\0\0\x03\0\0\0\x06\0\0\0\x05", 16);
  for (int i = 0; i < 3; ++i) {
    for (int p = 0; p < kSize; ++p) bytes += static_cast<char>(pixel(i, p));
  }
  return bytes;
}

}  // namespace

TEST_CASE("completions keep the known pixels and are what generate draws") {
  const ServerProcess server({TinyModel::kImage});
  const std::string images = server.write("digits", idx_of_three());
  for (const std::string mask : {"bottom:3", "top:2", "left:2", "right:1", "box:1,1,3,2",
                                 "random:0.5", "random:1", "none"}) {
    INFO(mask);
    const Result result =
        server.lintel({"complete", "--images", images, "--index", "0-2", "--occlude", mask,
                       "--samples", "3", "--seed", "4", "--json", "-"});
    INFO(result.err);
    REQUIRE(result.code == 0);
    const auto json = result.json();
    REQUIRE(json["images"].size() == 3);
    for (int i = 0; i < 3; ++i) {
      const auto& image = json["images"][static_cast<std::size_t>(i)];
      REQUIRE(image["samples"].size() == 3);
      for (const auto& sample : image["samples"]) {
        int changed = 0;
        REQUIRE(sample["tokens"].size() == kSize);
        for (int p = 0; p < kSize; ++p) {
          changed += sample["tokens"][static_cast<std::size_t>(p)] != pixel(i, p);
        }
        CHECK(changed <= image["hidden_pixels"].get<int>());
      }
    }
  }

  // The known top half as a prompt, with the documented seed of sample 1 of image 2.
  const auto completed = server
                             .lintel({"complete", "--images", images, "--index", "2", "--occlude",
                                      "bottom:3", "--samples", "2", "--seed", "4", "--json", "-"})
                             .json()["images"][0]["samples"][1];
  std::string prompt;
  for (int p = 0; p < 15; ++p) prompt += (p == 0 ? "" : ",") + std::to_string(pixel(2, p));
  const auto generated = server
                             .lintel({"generate", "--prompt-tokens", prompt, "--seed",
                                      std::to_string(4 + 2 * 65536 + 1), "--format", "jsonl"})
                             .lines()[0];
  REQUIRE(generated["tokens"].size() == 15);
  for (std::size_t i = 0; i < 15; ++i) {
    CHECK(completed["tokens"][15 + i] == generated["tokens"][i]);
  }
}

TEST_CASE("hidden pixels alone change, exactly where the mask is") {
  const ServerProcess server({TinyModel::kImage});
  const std::string images = server.write("digits", idx_of_three());
  const auto sample = server
                          .lintel({"complete", "--images", images, "--index", "1", "--occlude",
                                   "box:2,1,2,3", "--seed", "4", "--json", "-"})
                          .json()["images"][0]["samples"][0];
  for (int p = 0; p < kSize; ++p) {
    const int row = p / kWidth, column = p % kWidth;
    if (row >= 2 && row < 4 && column >= 1 && column < 4) continue;
    INFO(p);
    CHECK(sample["tokens"][static_cast<std::size_t>(p)] == pixel(1, p));
  }
  CHECK(sample["given_tokens"] == 13);
  CHECK(sample["generated_tokens"] == 19);
}

TEST_CASE("complete writes a picture and ends with the speed") {
  const ServerProcess server({TinyModel::kImage});
  const std::string images = server.write("digits", idx_of_three());
  const std::string out = server.path("grid.png");
  const Result result =
      server.lintel({"complete", "--images", images, "--index", "0,2", "--occlude", "bottom:3",
                     "--samples", "2", "--out", out, "--scale", "2", "--gap", "1", "--watch",
                     "--json", server.path("results.json")});
  INFO(result.err);
  REQUIRE(result.code == 0);
  CHECK(std::regex_match(result.out, kSpeed));
  const GrayImage grid = read_png(out);
  CHECK(grid.height == 2 * (2 * kHeight + 1));
  CHECK(grid.width == 2 * (4 * kWidth + 3));
  CHECK(grid.pixels[0] == pixel(0, 0));
}

TEST_CASE("digits drawn from nothing can be completed again") {
  const ServerProcess server({TinyModel::kImage}, {"--max-sessions", "64"});
  const std::string sheet = server.path("sheet.png");
  const Result drawn = server.lintel({"complete", "--unconditional", "9", "--seed", "2", "--out",
                                      sheet, "--scale", "1", "--gap", "0"});
  INFO(drawn.err);
  REQUIRE(drawn.code == 0);
  CHECK(std::regex_match(drawn.out, kSpeed));
  const GrayImage picture = read_png(sheet);
  CHECK(picture.height == 3 * kHeight);
  CHECK(picture.width == 3 * kWidth);
  CHECK(picture.pixels[0] == 0);  // the start token

  const Result again = server.lintel(
      {"complete", "--images", sheet, "--index", "0-8", "--occlude", "random:0.3", "--json", "-"});
  INFO(again.err);
  REQUIRE(again.code == 0);
  CHECK(again.json()["totals"]["images"] == 9);
  // Noise for digits may have a light border, of which the line before the last one warns.
  CHECK(
      std::regex_match(again.err.substr(again.err.rfind('\n', again.err.size() - 2) + 1), kSpeed));
}

}  // namespace lintel::testing
