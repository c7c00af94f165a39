// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <thread>

#include "client/cli/program.h"
#include "client/image/png.h"
#include "tests/client/support/detailed_status.h"
#include "tests/client/support/fake_server.h"
#include "tests/client/support/run_lintel.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

constexpr int kHeight = 6, kWidth = 5, kSize = kHeight * kWidth;

// Four images of 6x5 in an IDX file; pixel p of image i is 40 i + p.
struct Digits {
  Digits() {
    std::ofstream out(file(), std::ios::binary);
    out << std::string("\0\0\x08\x03\0\0\0\x04\0\0\0\x06\0\0\0\x05", 16);
    for (int i = 0; i < 4; ++i) {
      for (int p = 0; p < kSize; ++p) out << static_cast<char>(pixel(i, p));
    }
  }
  static std::uint8_t pixel(int image, int p) { return static_cast<std::uint8_t>(40 * image + p); }
  std::string file() const { return path("digits.idx"); }
  std::string path(const std::string& name) const { return (directory.path() / name).string(); }
  TemporaryDirectory directory;
};

const std::regex kSpeed("[0-9]+\\.[0-9] images/s, [0-9]+ tokens/s\n");

}  // namespace

TEST_CASE("known pixels stay, hidden ones are sampled with the documented seeds") {
  FakeServer server;
  Digits digits;
  const auto result = run_lintel({"complete", "--address", server.address(), "--images",
                                  digits.file(), "--index", "2,0", "--occlude", "box:2,1,2,3",
                                  "--samples", "5", "--seed", "7", "--json", "-"});
  INFO(result.err);
  REQUIRE(result.code == cli::kOk);
  CHECK(std::regex_match(result.err, kSpeed));
  const auto json = nlohmann::json::parse(result.out);
  CHECK(json["model"] == "tiny");
  CHECK(json["occlusion"] == "box:2,1,2,3");
  REQUIRE(json["images"].size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto& image = json["images"][i];
    const int index = i == 0 ? 2 : 0;
    CHECK(image["index"] == index);
    CHECK(image["seed"] == 7 + 65536 * index);
    CHECK(image["hidden_pixels"] == 6);
    REQUIRE(image["samples"].size() == 5);
    for (std::uint64_t s = 0; s < 5; ++s) {
      const auto& sample = image["samples"][s];
      const std::uint64_t seed = 7 + 65536 * static_cast<std::uint64_t>(index) + s;
      CHECK(sample["seed"] == seed);
      REQUIRE(sample["tokens"].size() == kSize);
      double sampled = 0, given = 0;
      for (int p = 0; p < kSize; ++p) {
        const int row = p / kWidth, column = p % kWidth;
        const bool hidden = row >= 2 && row < 4 && column >= 1 && column < 4;
        INFO("pixel " << p);
        CHECK(sample["tokens"][static_cast<std::size_t>(p)] ==
              (hidden ? fake_token(seed, p) : Digits::pixel(index, p)));
        if (p > 10) (hidden ? sampled : given) += fake_log2_prob(seed, p);
      }
      CHECK(sample["log2_prob"].get<double>() == sampled);
      CHECK(sample["log2_prob_given"].get<double>() == given);
      CHECK(sample["finish_reason"] == "length");
      CHECK(sample["seconds"] == 0.25);
    }
  }
  CHECK(json["totals"]["images"] == 10);
  CHECK(json["totals"]["tokens"] == 190);
  // At most three samples fit into a call of this server: 3 + 2 for each image.
  CHECK(server.generate_requests().size() == 4);
}

TEST_CASE("the picture shows original, occluded and completions") {
  FakeServer server;
  Digits digits;
  const std::string out = digits.path("grid.png");
  const auto result = run_lintel({"complete", "--address", server.address(), "--images",
                                  digits.file(), "--index", "1,3", "--occlude", "bottom:3",
                                  "--samples", "2", "--out", out, "--scale", "1", "--gap", "2"});
  INFO(result.err);
  REQUIRE(result.code == cli::kOk);
  CHECK(std::regex_match(result.out, kSpeed));
  const GrayImage grid = read_png(out);
  CHECK(grid.height == 2 * kHeight + 2);
  CHECK(grid.width == 4 * kWidth + 3 * 2);
  const auto at = [&](int cell_row, int cell, int p) {
    const int row = cell_row * (kHeight + 2) + p / kWidth;
    const int column = cell * (kWidth + 2) + p % kWidth;
    return grid.pixels[static_cast<std::size_t>(row * grid.width + column)];
  };
  for (int r = 0; r < 2; ++r) {
    const int image = r == 0 ? 1 : 3;
    for (int p = 0; p < kSize; ++p) {
      CHECK(at(r, 0, p) == Digits::pixel(image, p));
      if (p < 15) CHECK(at(r, 1, p) == Digits::pixel(image, p));
      if (p < 15) CHECK(at(r, 2, p) == Digits::pixel(image, p));
      if (p >= 15) CHECK(at(r, 1, p) == at(0, 1, 15));  // all hidden ones look the same
      if (p >= 15) {
        CHECK(at(r, 3, p) == fake_token(65536 * static_cast<std::uint64_t>(image) + 1, p));
      }
    }
  }
}

TEST_CASE("complete: several --particles and --best-of run side by side, and --best-of keeps one") {
  FakeServer server;
  Digits digits;
  const std::string out = digits.path("ways.png");
  const auto result = run_lintel({"complete",  "--address",   server.address(),
                                  "--images",  digits.file(), "--index",
                                  "1,2",       "--occlude",   "box:2,1,2,3",
                                  "--samples", "2",           "--best-of",
                                  "3",         "--particles", "1,4",
                                  "--seed",    "7",           "--json",
                                  "-",         "--out",       out,
                                  "--scale",   "1",           "--gap",
                                  "0"});
  INFO(result.err);
  REQUIRE(result.code == cli::kOk);
  CHECK(read_png(out).width == (2 + 3 * 2) * kWidth);
  const auto json = nlohmann::json::parse(result.out);
  CHECK(json["totals"]["images"] == 12);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto& samples = json["images"][i]["samples"];
    const std::uint64_t first_seed = 7 + 65536 * (i + 1);
    REQUIRE(samples.size() == 6);
    const auto total = [&](std::uint64_t seed) {
      double sum = 0;
      for (int p = 11; p < kSize; ++p) sum += fake_log2_prob(seed, p);
      return sum;
    };
    for (std::uint64_t k = 0; k < 2; ++k) {
      std::uint64_t best = first_seed + 3 * k;
      for (std::uint64_t seed = best + 1; seed < first_seed + 3 * k + 3; ++seed) {
        if (total(seed) > total(best)) best = seed;
      }
      CHECK(samples[k]["best_of"] == 3);
      CHECK(samples[k]["seed"] == best);
      CHECK_FALSE(samples[k].contains("particles"));
      CHECK(samples[2 + k]["seed"] == first_seed + k);
      CHECK_FALSE(samples[2 + k].contains("best_of"));
      CHECK_FALSE(samples[2 + k].contains("particles"));
      CHECK(samples[4 + k]["particles"] == 4);
      CHECK(samples[4 + k].contains("log2_evidence"));
    }
  }
  std::size_t with_particles = 0;
  for (const v1::GenerateRequest& request : server.generate_requests()) {
    if (request.particles() == 0) continue;
    ++with_particles;
    CHECK(request.particles() == 4);
    CHECK(request.num_samples() == 2);
  }
  CHECK(with_particles == 2);
}

TEST_CASE("complete: --particles and --best-of need images, and are at least 1") {
  FakeServer server;
  Digits digits;
  for (const char* const flag : {"--particles", "--best-of"}) {
    auto result =
        run_lintel({"complete", "--address", server.address(), "--unconditional", "3", flag, "4"});
    CHECK(result.code == cli::kUsage);
    CHECK_THAT(result.err, Catch::Contains(std::string(flag) + " goes with --images"));
    for (const char* const counts : {"0", "4,", "4,x", "5000"}) {
      result = run_lintel(
          {"complete", "--address", server.address(), "--images", digits.file(), flag, counts});
      CHECK(result.code == cli::kUsage);
      CHECK_THAT(result.err, Catch::Contains(flag));
    }
  }
  CHECK(server.generate_requests().empty());
}

TEST_CASE("images are drawn from nothing in a square, and the sheet can be read again") {
  FakeServer server;
  Digits digits;
  const std::string out = digits.path("drawn.png");
  auto result =
      run_lintel({"complete", "--address", server.address(), "--unconditional", "4", "--seed", "11",
                  "--out", out, "--scale", "1", "--gap", "0", "--json", digits.path("r.json")});
  INFO(result.err);
  REQUIRE(result.code == cli::kOk);
  std::ifstream file(digits.path("r.json"));
  const auto json = nlohmann::json::parse(file);
  CHECK(json["occlusion"].is_null());
  REQUIRE(json["images"].size() == 4);
  CHECK(json["images"][2]["index"].is_null());
  CHECK(json["images"][2]["seed"] == 13);
  const auto& tokens = json["images"][3]["samples"][0]["tokens"];
  CHECK(tokens[0] == 0);  // the start token
  for (int p = 1; p < kSize; ++p) CHECK(tokens[static_cast<std::size_t>(p)] == fake_token(14, p));
  const GrayImage sheet = read_png(out);
  CHECK(sheet.height == 2 * kHeight);
  CHECK(sheet.width == 2 * kWidth);

  result = run_lintel({"complete", "--address", server.address(), "--images", out, "--index", "3",
                       "--occlude", "none", "--json", "-"});
  REQUIRE(result.code == cli::kOk);
  CHECK(nlohmann::json::parse(result.out)["images"][0]["samples"][0]["tokens"] == tokens);
}

TEST_CASE("the same seed hides and draws the same, regardless of other flags") {
  FakeServer server;
  Digits digits;
  const auto tokens_of = [&](const std::string& index, const std::string& concurrency) {
    const auto result = run_lintel({"complete", "--address", server.address(), "--images",
                                    digits.file(), "--index", index, "--occlude", "random:0.6",
                                    "--samples", "2", "--concurrency", concurrency, "--json", "-"});
    REQUIRE(result.code == cli::kOk);
    const auto json = nlohmann::json::parse(result.out);
    for (const auto& image : json["images"]) {
      if (image["index"] == 2) return image["samples"][1]["tokens"];
    }
    return nlohmann::json();
  };
  const auto alone = tokens_of("2", "1");
  CHECK(alone.size() == kSize);
  CHECK(tokens_of("0-3", "7") == alone);
  CHECK(tokens_of("3,2", "2") == alone);
}

TEST_CASE("a full queue is waited for") {
  FakeServer server;
  server.full_for_calls = 5;
  const auto result =
      run_lintel({"complete", "--address", server.address(), "--unconditional", "3"});
  CHECK(result.code == cli::kOk);
  CHECK(server.generate_requests().size() == 8);
}

TEST_CASE("a queue that stays full past the deadline is an error") {
  FakeServer server;
  server.full_for_calls = 1'000'000;
  const auto result = run_lintel(
      {"complete", "--address", server.address(), "--unconditional", "1", "--deadline", "0.05"});
  CHECK(result.code == cli::kFailed);
}

TEST_CASE("one failed image fails the command with its error") {
  FakeServer server;
  server.failure = detailed_status(grpc::StatusCode::INVALID_ARGUMENT, "no", "sampling.top_k");
  auto result = run_lintel({"complete", "--address", server.address(), "--unconditional", "9"});
  CHECK(result.code == cli::kFailed);
  CHECK_THAT(result.err, Catch::Contains("--top-k: makes no sense"));
  CHECK(result.out.empty());
  server.failure = grpc::Status(grpc::StatusCode::UNAVAILABLE, "draining");
  result = run_lintel({"complete", "--address", server.address(), "--unconditional", "9"});
  CHECK(result.code == cli::kUnavailable);
}

TEST_CASE("tokens that are no pixels are refused") {
  FakeServer server;
  server.first_token = 256;
  const auto result =
      run_lintel({"complete", "--address", server.address(), "--unconditional", "1"});
  CHECK(result.code == cli::kFailed);
  CHECK_THAT(result.err, Catch::Contains("256"));
}

TEST_CASE("an image that cannot be completed is refused before the call") {
  FakeServer server;
  Digits digits;
  const auto code_of = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"complete", "--address", server.address()});
    return run_lintel(arguments).code;
  };
  CHECK(code_of({"--images", digits.file(), "--index", "0-4"}) == cli::kUsage);
  CHECK(code_of({"--images", digits.file(), "--occlude", "bottom:7"}) == cli::kUsage);
  CHECK(code_of({"--images", "/nonexistent"}) == cli::kFailed);
  CHECK(code_of({"--unconditional", "100000", "--out", "x.png", "--scale", "10"}) == cli::kUsage);
  CHECK(server.generate_requests().empty());
  server.model.mutable_image()->clear_start_token();
  CHECK(code_of({"--images", digits.file(), "--occlude", "top:1"}) == cli::kUsage);
  server.model.mutable_image()->set_channels(4);
  CHECK(code_of({"--unconditional", "1"}) == cli::kUsage);
  server.model.set_modality("bytes");
  CHECK(code_of({"--unconditional", "1"}) == cli::kUsage);
  CHECK(server.generate_requests().empty());
}

TEST_CASE("watch paints on a terminal while standard output keeps the speed alone") {
  FakeServer server;
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  REQUIRE(terminal >= 0);
  REQUIRE(grantpt(terminal) == 0);
  REQUIRE(unlockpt(terminal) == 0);
  const int err = open(ptsname(terminal), O_RDWR | O_NOCTTY);
  REQUIRE(err >= 0);
  std::string painted;
  std::thread reader([&] {
    char bytes[4096];
    for (ssize_t got; (got = read(terminal, bytes, sizeof bytes)) > 0;) {
      painted.append(bytes, static_cast<std::size_t>(got));
    }
  });
  int out[2];
  REQUIRE(pipe(out) == 0);
  int code = 0;
  {
    cli::Console console(STDIN_FILENO, out[1], err);
    code = cli::run_command_line(
        {"complete", "--address", server.address(), "--unconditional", "3", "--watch"}, console);
  }
  close(err);  // the reader's next read fails
  reader.join();
  close(terminal);
  char text[200];
  const auto size = read(out[0], text, sizeof text);
  close(out[0]);
  close(out[1]);
  CHECK(code == cli::kOk);
  CHECK(std::regex_match(std::string(text, static_cast<std::size_t>(size)), kSpeed));
  // Three images of five columns and gaps of two, three lines high, however they are drawn.
  CHECK(std::count(painted.begin(), painted.end(), '\n') >= 3);
  for (const v1::GenerateRequest& request : server.generate_requests()) {
    CHECK(request.max_tokens_per_message() == 1);
  }
}

TEST_CASE("without a terminal watch paints nothing") {
  FakeServer server;
  const auto result =
      run_lintel({"complete", "--address", server.address(), "--unconditional", "2", "--watch"});
  CHECK(result.code == cli::kOk);
  CHECK(result.err.empty());
}

}  // namespace lintel::testing
