// SPDX-License-Identifier: Apache-2.0
#include "bench/report.h"

#include "client/cli/console.h"
#include "tests/support/catch.h"

namespace lintel::bench {
namespace {

Report example(double speed) {
  return {.run = {.id = "r1",
                  .command = "paper",
                  .date = "2026-01-02 03:04",
                  .machine = {.cpu = "Some CPU",
                              .cores = 2,
                              .instructions = "highway (AVX2)",
                              .l3_bytes = 1 << 20,
                              .memory_bytes = 1 << 30,
                              .pages = "4 KiB pages",
                              .compiler = "g++",
                              .build = "Release"},
                  .model = "tiny, random weights",
                  .weight_type = "f32",
                  .workers = 2,
                  .batch = "1, 64",
                  .repeats = 3},
          .tables = {{.title = "Speed",
                      .columns = {"row", "images/s", "bytes", "how"},
                      .rows = {{Cell::text("linear, \"all\""),
                                Cell::measured({speed, speed - 1, speed + 1, 3}),
                                Cell::count(123456), Cell::text("whole")},
                               {Cell::text("softmax"), Cell::number(2.5), Cell::none(),
                                Cell::text("integrated")}},
                      .notes = {"A note."}}}};
}

}  // namespace

TEST_CASE("every table in Markdown names machine, model, weights, workers and batch") {
  Report report = example(10);
  report.tables.push_back(report.tables.front());
  const std::string text = to_markdown(report);
  for (const std::string fact :
       {"Some CPU", "tiny, random weights", "weights f32", "workers 2", "batch 1, 64", "run r1"}) {
    INFO(fact);
    const std::size_t first = text.find(fact);
    REQUIRE(first != std::string::npos);
    CHECK(text.find(fact, first + 1) != std::string::npos);
  }
}

TEST_CASE("a report written as JSON reads back unchanged") {
  const std::string json = to_json(example(10));
  CHECK(to_json(parse_report(json, "x.json")) == json);
  CHECK(to_markdown(parse_report(json, "x.json")) == to_markdown(example(10)));
}

TEST_CASE("a file that is no report is refused by name") {
  for (const char* text : {"", "[]", "{\"run\": 3}", "{}"}) {
    CHECK_THROWS_WITH(parse_report(text, "x.json"), Catch::StartsWith("x.json: "));
  }
}

TEST_CASE("CSV has a line for every number, with what it was measured under") {
  const std::string csv = to_csv(example(10));
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 4);
  CHECK(csv.find("\"1, 64\",3,Speed,\"linear, \"\"all\"\"\",images/s,10.0,9.0,11.0,3\n") !=
        std::string::npos);
  CHECK(csv.find("softmax,images/s,2.5,,,\n") != std::string::npos);
}

TEST_CASE("numbers of another run, machine, batch or command are not compared") {
  const Run run = example(10).run;
  CHECK_NOTHROW(require_same_run(run, run, "x.json"));
  const auto differs = [&run](auto change) {
    Run other = run;
    change(other);
    CHECK_THROWS_AS(require_same_run(run, other, "x.json"), cli::UsageError);
  };
  differs([](Run& other) { other.id = "r2"; });
  differs([](Run& other) { other.machine.cpu = "Another"; });
  differs([](Run& other) { other.machine.build = "Debug"; });
  differs([](Run& other) { other.batch = "1"; });
  differs([](Run& other) { other.workers = 1; });
  differs([](Run& other) { other.command = "serve"; });
}

TEST_CASE("within a run, numbers of another weight type are put in ratio by row and column") {
  Report report = example(30);
  report.run.weight_type = "bf16";
  const auto tables = ratios(report, example(10));
  REQUIRE(tables.size() == 1);
  CHECK(tables[0].title == "Speed: ratio to f32");
  CHECK(tables[0].rows[0][1].value() == Approx(3));
  CHECK(tables[0].rows[0][2].value() == Approx(1));
  CHECK(tables[0].rows[1][1].value() == Approx(1));
  CHECK(tables[0].rows[1][2].to_text() == "-");

  report.tables[0].title = "Other";
  CHECK_THROWS_AS(ratios(report, example(10)), cli::UsageError);
}

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
