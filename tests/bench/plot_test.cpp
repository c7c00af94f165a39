// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include "bench/run_flags.h"

namespace lintel::bench {

TEST_CASE("a script draws every series that has points, quoted for gnuplot") {
  const std::string script = gnuplot_script(
      {{"It's time", "x", "y", {{"a", {{1, 2}, {10, 20}}}, {"empty", {}}, {"b", {{1, 5}}}}}},
      "out.png");
  CHECK(script.find("set output 'out.png'") != std::string::npos);
  CHECK(script.find("set title 'It''s time'") != std::string::npos);
  CHECK(script.find("1 2\n10 20\n") != std::string::npos);
  CHECK(script.find("title 'a'") != std::string::npos);
  CHECK(script.find("title 'b'") != std::string::npos);
  CHECK(script.find("title 'empty'") == std::string::npos);
}

}  // namespace lintel::bench
