// SPDX-License-Identifier: Apache-2.0
// Pictures of `lintel complete`: headings, animation, photographs.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "client/cli/console.h"
#include "client/image/png.h"
#include "tests/client/support/fake_server.h"
#include "tests/client/support/run_lintel.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

void write_picture(const std::string& file, const Canvas& canvas) {
  std::ofstream(file, std::ios::binary) << encode_png(canvas, 1);
}

// One image of 6x5 as the server's models are, a photo of a stroke, and a coloured picture.
struct Pictures {
  Pictures() {
    Canvas image(6, 5, 0);
    for (int i = 0; i < 30; ++i) image.cells[static_cast<std::size_t>(i)] = std::int16_t(i * 8);
    image.set(0, 0, 0);
    write_picture(path("image.png"), image);
    image.set(5, 4, kHiddenPixel);  // which is blue
    write_picture(path("blue.png"), image);
    Canvas photo(90, 60, 220);
    for (int row = 20; row < 70; ++row) {
      for (int column = 26; column < 34; ++column) photo.set(row, column, 40);
    }
    write_picture(path("photo.png"), photo);
    write_picture(path("paper.png"), Canvas(90, 60, 220));
  }
  std::string path(const std::string& name) const { return (directory.path() / name).string(); }
  CommandResult complete(std::vector<std::string> more) const {
    std::vector<std::string> arguments = {"complete", "--address", server.address(), "--seed", "3"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_lintel(arguments);
  }
  TemporaryDirectory directory;
  FakeServer server;
};

std::uint8_t at(const GrayImage& image, int row, int column) {
  return image.pixels[static_cast<std::size_t>(row * image.width + column)];
}

std::string text_of_file(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_CASE("headings are above and left of the picture, which stays as it is") {
  Pictures pictures;
  const std::vector<std::string> flags = {
      "--images", pictures.path("image.png"), "--samples", "2", "--occlude", "bottom:3", "--scale",
      "8"};
  auto with = flags, without = flags;
  without.insert(without.end(), {"--out", pictures.path("plain.png")});
  with.insert(with.end(), {"--out", pictures.path("headed.png"), "--headings"});
  REQUIRE(pictures.complete(without).code == cli::kOk);
  REQUIRE(pictures.complete(with).code == cli::kOk);
  const GrayImage plain = read_png(pictures.path("plain.png"));
  const GrayImage headed = read_png(pictures.path("headed.png"));
  const int top = headed.height - plain.height, left = headed.width - plain.width;
  REQUIRE(top > 7 * 4);
  REQUIRE(left > 7 * 4);
  int different = 0, written_above = 0, written_beside = 0;
  for (int row = 0; row < headed.height; ++row) {
    for (int column = 0; column < headed.width; ++column) {
      const bool letter = at(headed, row, column) > 150;
      if (row < top) {
        written_above += letter;
      } else if (column < left) {
        written_beside += letter;
      } else {
        different += at(headed, row, column) != at(plain, row - top, column - left);
      }
    }
  }
  CHECK(different == 0);
  CHECK(written_above > 500);
  CHECK(written_beside > 100);
}

TEST_CASE("an animation begins with the known pixels and ends with the picture") {
  Pictures pictures;
  const std::vector<std::string> flags = {"--images",  pictures.path("image.png"),
                                          "--samples", "2",
                                          "--occlude", "bottom:3",
                                          "--animate", pictures.path("film.png"),
                                          "--out",     pictures.path("last.png")};
  const CommandResult result = pictures.complete(flags);
  INFO(result.err);
  REQUIRE(result.code == cli::kOk);
  const std::string film = text_of_file(pictures.path("film.png"));
  const std::size_t announced = film.find("acTL");
  REQUIRE(announced != std::string::npos);
  CHECK(film.substr(announced + 4, 4) ==
        std::string("\0\0\0\x10", 4));  // 15 hidden pixels, and none
  // A viewer without animation sees the first frame: original, and three times what is known of it.
  const GrayImage first = read_png(pictures.path("film.png"));
  const GrayImage last = read_png(pictures.path("last.png"));
  REQUIRE(first.pixels.size() == last.pixels.size());
  int same_above = 0, different_below = 0;
  const int column = (5 + 2) * 3 * 2 + 1;  // of the first completion
  for (int row = 0; row < 18; ++row) {
    const bool same = at(first, row, column) == at(last, row, column);
    (row < 9 ? same_above : different_below) += row < 9 ? same : !same;
  }
  CHECK(same_above == 9);
  CHECK(different_below == 9);
}

TEST_CASE("a photograph of any size is put as the model has its images") {
  Pictures pictures;
  const CommandResult result = pictures.complete(
      {"--images", pictures.path("photo.png"), "--fit", "--occlude", "none", "--json", "-"});
  INFO(result.err);
  REQUIRE(result.code == cli::kOk);
  const auto tokens = nlohmann::json::parse(result.out)["images"][0]["samples"][0]["tokens"];
  REQUIRE(tokens.size() == 30);
  int light = 0;
  for (const auto& token : tokens) light += token.get<int>() > 128;
  CHECK(light >= 4);  // a stroke of four pixels' height, light on dark
  CHECK(light <= 8);
  CHECK(pictures.complete({"--images", pictures.path("photo.png")}).code == cli::kUsage);
  const CommandResult paper = pictures.complete({"--images", pictures.path("paper.png"), "--fit"});
  CHECK(paper.code == cli::kFailed);
  CHECK_THAT(paper.err, Catch::Contains("paper.png: nothing is drawn on it"));
}

TEST_CASE("an image of three channels is known, hidden and drawn pixel by pixel, in its colours") {
  Pictures pictures;
  pictures.server.model.mutable_image()->set_channels(3);
  Canvas image(6, 5, 0);
  std::vector<std::uint8_t> values;
  for (int i = 0; i < 30; ++i) {
    const Rgb color{static_cast<std::uint8_t>(i * 8), static_cast<std::uint8_t>(255 - i),
                    static_cast<std::uint8_t>(i * 3)};
    image.cells[static_cast<std::size_t>(i)] = rgb_cell(color);
    values.insert(values.end(), {color.red, color.green, color.blue});
  }
  write_picture(pictures.path("colors.png"), image);
  const CommandResult result = pictures.complete(
      {"--images", pictures.path("colors.png"), "--occlude", "box:2,1,2,3", "--json", "-", "--out",
       pictures.path("grid.png"), "--scale", "1", "--gap", "0"});
  INFO(result.err);
  REQUIRE(result.code == cli::kOk);
  const auto done = nlohmann::json::parse(result.out)["images"][0];
  CHECK(done["hidden_pixels"] == 6);
  const auto tokens = done["samples"][0]["tokens"].get<std::vector<int>>();
  REQUIRE(tokens.size() == 90);
  const GrayImage grid = read_png_colors(pictures.path("grid.png"));
  REQUIRE(grid.width == 3 * 15);
  int seed_values = 0;
  for (int p = 0; p < 30; ++p) {
    const int row = p / 5, column = p % 5;
    const bool hidden = row >= 2 && row < 4 && column >= 1 && column < 4;
    for (int part = 0; part < 3; ++part) {
      CAPTURE(p, part);
      const auto i = static_cast<std::size_t>(3 * p + part);
      const int known = values[i];
      CHECK(tokens[i] == (hidden ? fake_token(3, 3 * p + part) : known));
      CHECK(at(grid, row, 3 * column + part) == known);
      if (!hidden) CHECK(at(grid, row, 3 * (5 + column) + part) == known);
      CHECK(at(grid, row, 3 * (10 + column) + part) == tokens[i]);
      seed_values += hidden;
    }
  }
  CHECK(seed_values == 18);
  CHECK_THAT(pictures.complete({"--images", pictures.path("photo.png"), "--fit"}).err,
             Catch::Contains("--fit is for digits"));
  // An animation shows a pixel when all of it is there: six of them, and none.
  REQUIRE(pictures
              .complete({"--images", pictures.path("colors.png"), "--occlude", "box:2,1,2,3",
                         "--animate", pictures.path("film.png")})
              .code == cli::kOk);
  const std::string film = text_of_file(pictures.path("film.png"));
  CHECK(film.substr(film.find("acTL") + 4, 4) == std::string("\0\0\0\x07", 4));
}

TEST_CASE("a grey model: the command reports that colours are lost") {
  Pictures pictures;
  CHECK_THAT(pictures.complete({"--images", pictures.path("blue.png")}).err,
             Catch::Contains("blue.png has colours; the model is grey"));
  CHECK_THAT(pictures.complete({"--images", pictures.path("image.png")}).err,
             !Catch::Contains("colours"));
}

TEST_CASE("flags of pictures that make no sense together are usage errors") {
  Pictures pictures;
  const std::string image = pictures.path("image.png");
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--images", image, "--headings"}, "--headings goes with --out or --animate"},
      {{"--images", image, "--fit", "--invert"}, "--invert goes without --fit"},
      {{"--unconditional", "2", "--fit"}, "--fit goes with --images"},
      {{"--images", image, "--animate", "film.gif"}, "an animated PNG; name it FILE.png"},
      {{"--images", image, "--animate", "-"}, "--animate -"},
  };
  for (const auto& [flags, said] : cases) {
    const CommandResult result = pictures.complete(flags);
    CHECK(result.code == cli::kUsage);
    CHECK_THAT(result.err, Catch::Contains(said));
  }
}

}  // namespace
}  // namespace lintel::testing
