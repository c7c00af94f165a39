// SPDX-License-Identifier: Apache-2.0
// Files that commands write: tried before the work, kept where it fails. Images that look wrong.
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "client/image/image.h"
#include "tests/client/support/fake_server.h"
#include "tests/client/support/run_lintel.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

std::string text_of(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

// One image of 6x5 with a border of one grey and another inside.
std::string digit(char border, char inside) {
  std::string bytes("\0\0\x08\x03\0\0\0\x01\0\0\0\x06\0\0\0\x05", 16);
  for (int row = 0; row < 6; ++row) {
    for (int column = 0; column < 5; ++column) {
      bytes += row == 0 || row == 5 || column == 0 || column == 4 ? border : inside;
    }
  }
  return bytes;
}

struct Files {
  TemporaryDirectory directory;
  std::string path(const std::string& name) const { return (directory.path() / name).string(); }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
};

}  // namespace

TEST_CASE("an output that cannot be written fails before the server is asked") {
  FakeServer server;
  const auto check = [&server](std::vector<std::string> line, const std::string& flag) {
    line.insert(line.end(), {"--address", server.address()});
    const CommandResult result = run_lintel(line, "[0,1]\n");
    CHECK(result.code == 1);
    CHECK_THAT(result.err, Catch::Contains("lintel: " + flag + " /none/x") &&
                               Catch::Contains("No such file or directory"));
  };
  check({"complete", "--unconditional", "2", "--out", "/none/x"}, "--out");
  check({"complete", "--unconditional", "2", "--json", "/none/x"}, "--json");
  check({"score", "--input", "-", "--output", "/none/x"}, "--output");
  CHECK(server.generate_requests().empty());
  CHECK(server.score_requests().empty());
}

TEST_CASE("a failed command leaves the files of an earlier one, and makes none") {
  FakeServer server;
  server.failure = grpc::Status(grpc::StatusCode::UNAVAILABLE, "draining");
  const Files files;
  const std::string old = files.write("old", "precious");
  const auto complete = [&](const std::string& out, const std::string& json) {
    return run_lintel({"complete", "--address", server.address(), "--unconditional", "2", "--out",
                       out, "--json", json})
        .code;
  };
  CHECK(complete(old, files.path("new")) == 3);
  CHECK(text_of(old) == "precious");
  CHECK_FALSE(std::filesystem::exists(files.path("new")));
  CHECK(run_lintel({"score", "--address", server.address(), "--input", "-", "--output", old},
                   "[0,1]\n")
            .code == 3);
  CHECK(text_of(old) == "precious");
  server.failure.reset();
  CHECK(complete(files.path("new"), old) == 0);
  CHECK_THAT(text_of(old), Catch::StartsWith("{\"model\":"));
  CHECK_THAT(text_of(files.path("new")), Catch::StartsWith("\x89PNG"));
}

TEST_CASE("score does not overwrite its input") {
  FakeServer server;
  const Files files;
  const std::string input = files.write("in", "[0,1]\n");
  const CommandResult result =
      run_lintel({"score", "--address", server.address(), "--input", input, "--output", input});
  CHECK(result.code == 2);
  CHECK(text_of(input) == "[0,1]\n");
}

TEST_CASE("a picture is a PNG, and flags that do nothing are refused") {
  const auto err = [](std::vector<std::string> more) {
    more.insert(more.begin(), "complete");
    const CommandResult result = run_lintel(more);
    CHECK(result.code == 2);
    return result.err;
  };
  CHECK_THAT(err({"--unconditional", "1", "--out", "r.jpg"}),
             Catch::Contains("--out r.jpg") && Catch::Contains("PNG"));
  CHECK_THAT(err({"--unconditional", "1", "--out", "r.JPEG"}), Catch::Contains("PNG"));
  CHECK_THAT(err({"--unconditional", "1", "--out", "-"}), Catch::Contains("--out -"));
  CHECK_THAT(err({"--unconditional", "1", "--occlude", "bottom:1"}),
             Catch::Contains("--occlude goes with --images"));
  CHECK_THAT(err({"--unconditional", "1", "--index", "1"}), Catch::Contains("--index goes with"));
  CHECK_THAT(err({"--unconditional", "1", "--invert"}), Catch::Contains("--invert goes with"));
}

TEST_CASE("images that are dark on light where the model is light on dark are warned of") {
  FakeServer server;
  const Files files;
  const std::string dark = files.write("dark", digit('\x02', '\xf0'));
  const std::string light = files.write("light", digit('\xfd', '\x10'));
  for (const std::string command : {"complete", "score"}) {
    const auto err = [&](const std::string& file, bool invert) {
      std::vector<std::string> line = {command, "--address", server.address(), "--images", file};
      if (command == "complete") line.insert(line.end(), {"--occlude", "none"});
      if (invert) line.push_back("--invert");
      const CommandResult result = run_lintel(line);
      CHECK(result.code == 0);
      return result.err;
    };
    CHECK_THAT(err(dark, false), !Catch::Contains("inverted"));
    CHECK_THAT(err(light, true), !Catch::Contains("inverted"));
    CHECK_THAT(err(light, false),
               Catch::Contains(light + " looks inverted") && Catch::Contains("with --invert"));
    CHECK_THAT(err(dark, true), Catch::Contains("without --invert"));
  }
}

TEST_CASE("the border of images is their outermost rows and columns") {
  CHECK(border_mean({{3, 3, {10, 10, 10, 10, 255, 10, 10, 10, 10}}}) == 10);
  CHECK(border_mean({{1, 1, {7}}, {1, 1, {9}}}) == 8);
  CHECK(border_mean({{2, 1, {1, 3}}}) == 2);
}

}  // namespace lintel::testing
