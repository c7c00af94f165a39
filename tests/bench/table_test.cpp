// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include "bench/report.h"

namespace lintel::bench {

TEST_CASE("numbers have the digits asked for, no exponent and commas between thousands") {
  CHECK(format_number(0.012345, 3) == "0.0123");
  CHECK(format_number(1.5, 3) == "1.50");
  CHECK(format_number(9.996, 3) == "10.0");
  CHECK(format_number(10, 3) == "10.0");
  CHECK(format_number(123, 3) == "123");
  CHECK(format_number(999.6, 3) == "1,000");
  CHECK(format_number(12345, 3) == "12,300");
  CHECK(format_number(1234567, 3) == "1,230,000");
  CHECK(format_number(-45678, 3) == "-45,700");
  CHECK(format_number(0, 3) == "0");
}

TEST_CASE("a cell says what was measured, how far it lies apart, or that nothing was") {
  CHECK(Cell::measured({20.1, 19.8, 20.5, 5}).to_text() == "20.1 (19.8 to 20.5)");
  CHECK(Cell::measured({20.1, 20.1, 20.1, 1}).to_text() == "20.1");
  CHECK(Cell::count(270336).to_text() == "270,336");
  CHECK(Cell::text("linear").to_text() == "linear");
  CHECK(Cell::none().to_text() == "-");
}

TEST_CASE("a table in Markdown has numbers to the right and its notes below") {
  const Table table{.title = "Speed",
                    .columns = {"what", "a|b"},
                    .rows = {{Cell::text("x"), Cell::number(2)}, {Cell::text("y"), Cell::none()}},
                    .notes = {"One note."}};
  CHECK(to_markdown(table) ==
        "### Speed\n\n| what | a\\|b |\n|---|---:|\n| x | 2.00 |\n| y | - |\n\nOne note.\n");
}

}  // namespace lintel::bench
