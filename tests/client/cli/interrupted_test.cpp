// SPDX-License-Identifier: Apache-2.0
// Commands that are ended while they work: what was done by then is written.
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "client/cli/program.h"
#include "client/image/png.h"
#include "tests/client/support/fake_server.h"
#include "tests/client/support/run_lintel.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {

TEST_CASE("images that were finished before Ctrl-C are written") {
  FakeServer server;
  server.hang = true;
  server.finish_before_hanging = 2;
  const TemporaryDirectory directory;
  const std::string out = (directory.path() / "drawn.png").string();
  const std::string results = (directory.path() / "results.json").string();
  int err[2];
  REQUIRE(pipe(err) == 0);
  cli::Console console(STDIN_FILENO, STDOUT_FILENO, err[1]);
  std::thread other([&] {
    server.wait_until_hanging();
    console.cancellation().cancel();
  });
  const int code =
      cli::run_command_line({"complete", "--address", server.address(), "--unconditional", "5",
                             "--concurrency", "1", "--out", out, "--json", results},
                            console);
  other.join();
  close(err[1]);
  char text[300];
  const ssize_t size = read(err[0], text, sizeof text);
  close(err[0]);
  CHECK(code == cli::kFailed);
  CHECK(std::string(text, static_cast<std::size_t>(size)) ==
        "lintel: 2 of 5 images were done and are written\nlintel: cancelled\n");
  std::ifstream file(results);
  const auto json = nlohmann::json::parse(file);
  CHECK(json["images"].size() == 2);
  CHECK(json["totals"]["images"] == 2);
  CHECK(read_png(out).height > 0);
}

TEST_CASE("a deadline that cuts completions off leaves those that were done") {
  FakeServer server;
  server.hang = true;
  server.finish_before_hanging = 1;
  const CommandResult result =
      run_lintel({"complete", "--address", server.address(), "--unconditional", "2",
                  "--concurrency", "1", "--deadline", "1", "--json", "-"});
  CHECK(result.code == cli::kFailed);
  CHECK(nlohmann::json::parse(result.out)["images"].size() == 1);
  CHECK_THAT(result.err,
             Catch::Contains("1 of 2 images were done") && Catch::Contains("--deadline 1"));
}

}  // namespace lintel::testing
