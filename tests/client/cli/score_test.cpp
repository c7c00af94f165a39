// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/client/support/detailed_status.h"
#include "tests/client/support/fake_server.h"
#include "tests/client/support/run_lintel.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

std::vector<nlohmann::json> lines_of(const std::string& text) {
  std::vector<nlohmann::json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

}  // namespace

TEST_CASE("score writes a line for every line, and nothing else to standard output") {
  FakeServer server;
  const auto result = run_lintel({"score", "--address", server.address(), "--input", "-"},
                                 "[0, 5, 6]\n{\"tokens\": [1, 2], \"name\": \"x\"}\n[7,8]");
  INFO(result.err);
  REQUIRE(result.code == cli::kOk);
  const auto lines = lines_of(result.out);
  REQUIRE(lines.size() == 3);
  REQUIRE(lines[0]["log2_probs"].size() == 2);
  CHECK(lines[0]["log2_probs"][1].get<float>() == fake_log2_prob(6, 2));
  CHECK(lines[1]["log2_probs"].size() == 1);
  const double mean = (double{fake_log2_prob(5, 1)} + double{fake_log2_prob(6, 2)}) / 2;
  CHECK(lines[0]["bits_per_dim"].get<double>() == -mean);
  CHECK_THAT(result.err, Catch::Contains("3 sequences, 4 tokens") && Catch::Contains("bits/dim") &&
                             Catch::Contains("tokens/s"));
}

TEST_CASE("score reads and writes files") {
  FakeServer server;
  TemporaryDirectory directory;
  std::ofstream(directory.path() / "in.jsonl") << "[0,1]\n[0,2]\n";
  const auto output = directory.path() / "out.jsonl";
  const auto result =
      run_lintel({"score", "--address", server.address(), "--input",
                  (directory.path() / "in.jsonl").string(), "--output", output.string()});
  REQUIRE(result.code == cli::kOk);
  CHECK(result.out.empty());
  std::ostringstream written;
  written << std::ifstream(output).rdbuf();
  CHECK(lines_of(written.str()).size() == 2);
}

TEST_CASE("a bad line is named by its number, after the good ones before it are scored") {
  FakeServer server;
  for (const char* bad : {"nonsense", "{}", "3", "[1, \"x\"]", "[1, 2.5]", "[4]", "[]", "",
                          "[1, 99999999999999999999]", "[1, 4294967296]", "[1,2", "[[1,2]]"}) {
    INFO(bad);
    const auto result = run_lintel({"score", "--address", server.address(), "--input", "-"},
                                   "[0,1]\n[0,2]\n" + std::string(bad) + "\n[0,3]\n");
    CHECK(result.code == cli::kFailed);
    CHECK_THAT(result.err, Catch::Contains("line 3"));
    CHECK(lines_of(result.out).size() == 2);
  }
}

TEST_CASE("a sequence the server refuses is named by its line") {
  FakeServer server;
  server.failure = detailed_status(grpc::StatusCode::INVALID_ARGUMENT, "bad request",
                                   "sequences[1].tokens.ids[0]");
  const auto result =
      run_lintel({"score", "--address", server.address(), "--input", "-"}, "[0,1]\n[900,2]\n");
  CHECK(result.code == cli::kFailed);
  CHECK_THAT(result.err, Catch::Contains("line 2"));
}

TEST_CASE("sequences ahead of one that the server refuses are scored") {
  FakeServer server;
  std::string input;
  for (int i = 0; i < 80; ++i) input += i == 70 ? "[0,900]\n" : "[0," + std::to_string(i) + "]\n";
  const auto result = run_lintel({"score", "--address", server.address(), "--input", "-"}, input);
  CHECK(result.code == cli::kFailed);
  CHECK_THAT(result.err,
             Catch::Contains("line 71: makes no sense") && !Catch::Contains("sequences["));
  const auto lines = lines_of(result.out);
  REQUIRE(lines.size() == 70);  // 64 of a call that was good, and 6 of the one that was not
  CHECK(lines[69]["log2_probs"][0].get<float>() == fake_log2_prob(69, 1));
  // Nothing is ahead of the first.
  CHECK(
      run_lintel({"score", "--address", server.address(), "--input", "-"}, "[900]\n").out.empty());
}

TEST_CASE("many sequences go in calls of bounded size, in order") {
  FakeServer server;
  std::string input;
  for (int i = 0; i < 150; ++i) input += "[0," + std::to_string(i) + "]\n";
  auto result = run_lintel({"score", "--address", server.address(), "--input", "-"}, input);
  REQUIRE(result.code == cli::kOk);
  CHECK(server.score_requests().size() == 3);
  const auto lines = lines_of(result.out);
  REQUIRE(lines.size() == 150);
  for (std::size_t i = 0; i < 150; ++i) {
    CHECK(lines[i]["log2_probs"][0].get<float>() == fake_log2_prob(i, 1));
  }

  // The server's own limit on a call is kept, too.
  server.model.mutable_limits()->set_max_score_tokens(7);
  result = run_lintel({"score", "--address", server.address(), "--input", "-"},
                      "[1,2,3]\n[1,2,3]\n[1,2,3]\n[1,2,3,4,5,6,7,8]\n[1,2]\n");
  REQUIRE(result.code == cli::kOk);
  const auto requests = server.score_requests();
  REQUIRE(requests.size() == 7);
  CHECK(requests[3].sequences_size() == 2);
  CHECK(requests[4].sequences_size() == 1);
  CHECK(requests[5].sequences_size() == 1);  // too long for any call: the server shall say so
  CHECK(requests[6].sequences_size() == 1);
}

TEST_CASE("score waits for a full queue as long as its flag says") {
  FakeServer server;
  server.full_for_calls = 3;
  const auto result =
      run_lintel({"score", "--address", server.address(), "--input", "-"}, "[0,1]\n");
  CHECK(result.code == cli::kOk);
  CHECK(server.score_requests().size() == 4);
}

TEST_CASE("score takes images") {
  FakeServer server;
  TemporaryDirectory directory;
  const auto file = directory.path() / "idx";
  std::ofstream(file, std::ios::binary)
      << std::string("\0\0\x08\x03\0\0\0\x03\0\0\0\x06\0\0\0\x05", 16) << std::string(30, 'a')
      << std::string(30, 'b') << std::string(30, 'c');
  auto result = run_lintel(
      {"score", "--address", server.address(), "--images", file.string(), "--index", "2,0"});
  REQUIRE(result.code == cli::kOk);
  const auto lines = lines_of(result.out);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0]["log2_probs"].size() == 29);
  CHECK(lines[0]["log2_probs"][0].get<float>() == fake_log2_prob('c', 1));
  result = run_lintel(
      {"score", "--address", server.address(), "--images", file.string(), "--limit", "1"});
  CHECK(lines_of(result.out).size() == 1);
}

TEST_CASE("score without a source, or with two, is a usage error") {
  CHECK(run_lintel({"score"}).code == cli::kUsage);
  CHECK(run_lintel({"score", "--input", "a", "--images", "b"}).code == cli::kUsage);
  CHECK(run_lintel({"score", "--input", "-", "--index", "1"}).code == cli::kUsage);
}

TEST_CASE("an input that cannot be opened fails without asking the server") {
  const auto result =
      run_lintel({"score", "--address", "127.0.0.1:1", "--input", "/nonexistent.jsonl"});
  CHECK(result.code == cli::kFailed);
  CHECK_THAT(result.err, Catch::Contains("/nonexistent.jsonl"));
}

}  // namespace lintel::testing
