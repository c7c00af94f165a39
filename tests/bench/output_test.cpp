// SPDX-License-Identifier: Apache-2.0
// Files and plots are tried before a run measures, and cost no table where they fail after all.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "bench/run_flags.h"
#include "tests/bench/bench_program.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// A run that would take minutes.
std::vector<std::string> long_run(std::vector<std::string> more) {
  more.insert(more.begin(), {"length", "--shape", "mnist-small", "--attention", "linear",
                             "--positions", "100000000"});
  return more;
}

// A PATH without gnuplot, as long as it lives.
class BarePath {
 public:
  explicit BarePath(const std::string& path) { ::setenv("PATH", path.c_str(), 1); }
  ~BarePath() { ::setenv("PATH", before_.c_str(), 1); }

 private:
  const std::string before_ = std::getenv("PATH");
};

}  // namespace

TEST_CASE("a file that cannot be written is reported before anything is measured") {
  const Bench bench;
  const std::string nowhere = bench.path("no/such/folder/file");
  for (const char* flag : {"--json", "--csv", "--plot"}) {
    const Result result = bench.run(long_run({flag, nowhere}));
    CHECK(result.code == 1);
    CHECK(result.out.empty());
    CHECK(result.err == "lintel-bench: " + std::string(flag) + " " + nowhere +
                            ": cannot be written: No such file or directory\n");
  }
}

TEST_CASE("a plot without gnuplot is refused before anything is measured") {
  const Bench bench;
  const BarePath path(bench.path("empty"));
  const Result result = bench.run(long_run({"--plot", bench.path("plot.png")}));
  CHECK(result.code == 1);
  CHECK(result.out.empty());
  CHECK_THAT(result.err, Catch::Contains("--plot: there is no gnuplot"));
  CHECK(::access(bench.path("plot.png").c_str(), F_OK) != 0);
}

TEST_CASE("trying a file leaves it as it was") {
  const Bench bench;
  bench::require_writable("--json", bench.path("new"));
  CHECK(::access(bench.path("new").c_str(), F_OK) != 0);
  bench.write("old", "what was there");
  bench::require_writable("--json", bench.path("old"));
  CHECK(content_of(bench.path("old")) == "what was there");
}

TEST_CASE("a file that fails after all costs neither the tables nor the other files") {
  const Bench bench;
  const Result result =
      bench.run({"length", "--shape", "mnist-small", "--attention", "linear", "--positions", "5",
                 "--repeats", "1", "--json", "/dev/full", "--csv", bench.path("length.csv")});
  CHECK(result.code == 1);
  CHECK_THAT(result.out, Catch::Contains("| at 5 |"));
  CHECK_THAT(result.err, Catch::Contains("--json /dev/full: cannot be written: No space left"));
  CHECK_THAT(content_of(bench.path("length.csv")), Catch::Contains("Microseconds of a token"));
}

TEST_CASE("a script draws every series that has points, quoted for gnuplot") {
  const std::string script = bench::gnuplot_script(
      {{"It's time", "x", "y", {{"a", {{1, 2}, {10, 20}}}, {"empty", {}}, {"b", {{1, 5}}}}}},
      "out.png");
  CHECK(script.find("set output 'out.png'") != std::string::npos);
  CHECK(script.find("set title 'It''s time'") != std::string::npos);
  CHECK(script.find("1 2\n10 20\n") != std::string::npos);
  CHECK(script.find("title 'a'") != std::string::npos);
  CHECK(script.find("title 'b'") != std::string::npos);
  CHECK(script.find("title 'empty'") == std::string::npos);
}

}  // namespace lintel::testing
