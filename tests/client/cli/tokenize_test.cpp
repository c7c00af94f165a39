// SPDX-License-Identifier: Apache-2.0
// lintel tokenize and lintel detokenize.
#include <fstream>
#include <string>
#include <vector>

#include "tests/client/support/fake_server.h"
#include "tests/client/support/run_lintel.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

struct TokenizeServer : FakeServer {
  auto run(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--address", address()});
    return run_lintel(arguments);
  }
  // Runs a command on lines in a file.
  auto run_file(const std::string& command, const std::string& lines) {
    std::ofstream(directory.path() / "lines.jsonl") << lines;
    return run({command, "--input", (directory.path() / "lines.jsonl").string()});
  }
  TemporaryDirectory directory;
};

}  // namespace

TEST_CASE("tokenize and detokenize print a line of JSON for each text") {
  TokenizeServer server;
  CHECK(server.run({"tokenize", "ab"}).out == "{\"text\":\"ab\",\"ids\":[97,98]}\n");
  CHECK(server.run({"tokenize", "--add-special", "--parse-special", "a"}).out ==
        "{\"text\":\"a\",\"ids\":[1000,1001,97]}\n");
  CHECK(server.run({"detokenize", "97", "98"}).out == "{\"text\":\"ab\",\"ids\":[97,98]}\n");
  CHECK(server.run({"detokenize", "97,98"}).out == "{\"text\":\"ab\",\"ids\":[97,98]}\n");
  CHECK(server.run_file("tokenize", "{\"text\": \"a\"}\n{\"text\": \"\"}\n").out ==
        "{\"text\":\"a\",\"ids\":[97]}\n{\"text\":\"\",\"ids\":[]}\n");
  CHECK(server.run_file("detokenize", "{\"ids\": [97]}\n{\"ids\": []}\n").out ==
        "{\"text\":\"a\",\"ids\":[97]}\n{\"text\":\"\",\"ids\":[]}\n");
}

TEST_CASE("tokenize and detokenize end at a bad line with its number, after those before it") {
  TokenizeServer server;
  const std::string first = "{\"text\": \"a\"}\n";
  for (const std::string bad : {"{", "[]", "{\"txt\": \"b\"}", "{\"text\": 5}", ""}) {
    CAPTURE(bad);
    const auto result = server.run_file("tokenize", first + bad + "\n" + first);
    CHECK(result.code == cli::kFailed);
    CHECK(result.out == "{\"text\":\"a\",\"ids\":[97]}\n");
    CHECK_THAT(result.err, Catch::Contains("lines.jsonl:2: "));
  }
  for (const std::string bad : {"{\"ids\": 5}", "{\"ids\": [-1]}", "{\"ids\": [1.5]}",
                                "{\"ids\": [4294967296]}", "{\"text\": \"a\"}"}) {
    CAPTURE(bad);
    const auto result = server.run_file("detokenize", "{\"ids\": [97]}\n" + bad + "\n");
    CHECK(result.code == cli::kFailed);
    CHECK(result.out == "{\"text\":\"a\",\"ids\":[97]}\n");
    CHECK_THAT(result.err, Catch::Contains("lines.jsonl:2: "));
  }
}

TEST_CASE("tokenize and detokenize take one source") {
  TokenizeServer server;
  CHECK(server.run({"tokenize"}).code == cli::kUsage);
  CHECK(server.run({"tokenize", "a", "--input", "b"}).code == cli::kUsage);
  CHECK(server.run({"detokenize"}).code == cli::kUsage);
  CHECK(server.run({"detokenize", "x"}).code == cli::kUsage);
  CHECK(server.run({"tokenize", "--input", "nowhere.jsonl"}).code == cli::kFailed);
}

}  // namespace lintel::testing
