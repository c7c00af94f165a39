// SPDX-License-Identifier: Apache-2.0
// `lintel generate --interactive` with lines from a pipe, and what Generate says of its speed.
#include "client/cli/console.h"
#include "client/cli/generate_output.h"
#include "tests/client/support/fake_server.h"
#include "tests/client/support/run_lintel.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

// A server whose model reads text.
struct TextServer : FakeServer {
  TextServer() {
    model.set_modality("bytes");
    model.clear_image();
  }

  CommandResult type(const std::string& lines, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"generate", "--interactive", "--max-new-tokens",
                                          "4",        "--address",     address()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_lintel(arguments, lines);
  }
};

TEST_CASE("each line that is typed goes to one session, with the sampling of the moment") {
  TextServer server;
  const CommandResult result =
      server.type("Once upon\n/seed 7\n/temperature 0.5\na time\n\n/seed\n/temperature\n//x\n");
  INFO(result.err);
  REQUIRE(result.code == cli::kOk);
  const auto requests = server.generate_requests();
  REQUIRE(requests.size() == 4);
  CHECK(requests[0].prompt().text() == "Once upon");
  CHECK(requests[1].prompt().text() == "a time");
  CHECK_FALSE(requests[2].prompt().has_text());
  CHECK(requests[3].prompt().text() == "/x");
  for (const v1::GenerateRequest& request : requests) {
    CHECK(request.session_id() == requests[0].session_id());
    CHECK(request.model().empty());
    CHECK(request.max_new_tokens() == 4);
  }
  CHECK_FALSE(requests[0].session_id().empty());
  CHECK_FALSE(requests[0].sampling().has_seed());
  CHECK(requests[1].sampling().seed() == 7);
  CHECK(requests[2].sampling().temperature() == 0.5f);
  CHECK_FALSE(requests[3].sampling().has_seed());
  CHECK_FALSE(requests[3].sampling().has_temperature());
}

TEST_CASE(
    "window of an interactive session: the flag's, or the server's choice, which is printed") {
  TextServer server;
  server.session.set_window(256);
  const std::string note = "window of 256 tokens (--window 256; --window 0: none)";
  const CommandResult chosen = server.type("hi\n");
  REQUIRE(chosen.code == cli::kOk);
  CHECK(chosen.err.find(note) != std::string::npos);
  CHECK(server.copy_requests().back() == "Create model: \"tiny\"");
  CHECK_FALSE(server.generate_requests().back().has_window());
  const CommandResult named = server.type("hi\n", {"--window", "0"});
  REQUIRE(named.code == cli::kOk);
  CHECK(named.err.find(note) == std::string::npos);
  CHECK(server.copy_requests().back() == "Create model: \"tiny\" window: 0");
  CHECK_FALSE(server.generate_requests().back().has_window());
}

TEST_CASE("a line that ends with a backslash continues on the next one") {
  TextServer server;
  REQUIRE(server.type("one\\\ntwo\\\nthree\n/quit\nnever\n").code == cli::kOk);
  REQUIRE(server.generate_requests().size() == 1);
  CHECK(server.generate_requests()[0].prompt().text() == "one\ntwo\nthree");
}

TEST_CASE("a command that makes no sense is named, and the lines after it are read") {
  TextServer server;
  const std::pair<const char*, const char*> cases[] = {
      {"/nothing", "no such command: /nothing; /help has them all"},
      {"/seed x", "/seed 'x'"},
      {"/temperature hot", "/temperature 'hot'"},
      {"/rewind 3", "0 turns were made here"},
      {"/rewind @x", "/rewind 'x'"},
      {"/save", "/save: expected a file's name"},
      {"/fork 2", "/fork: takes nothing after it"},
      {"/save /none/such/file", "/save /none/such/file"},
  };
  for (const auto& [line, said] : cases) {
    CAPTURE(line);
    const std::size_t before = server.generate_requests().size();
    const CommandResult result = server.type(std::string(line) + "\nand on\n");
    CHECK(result.code == cli::kFailed);  // a pipe has no user to see it
    CHECK_THAT(result.err, Catch::Contains(said));
    CHECK(server.generate_requests().size() == before + 1);
  }
  CHECK_THAT(server.type("/help\n").err, Catch::Contains("/rewind @P"));
}

TEST_CASE("a flag that makes no sense in an interactive session is a usage error") {
  TextServer server;
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{"--samples", "2"},
                                             {"--given", "3=1"},
                                             {"--echo"},
                                             {"--format", "jsonl"},
                                             {"--prompt-file", "-"}}) {
    CAPTURE(flags[0]);
    const CommandResult result = server.type("text\n", flags);
    CHECK(result.code == cli::kUsage);
    CHECK_THAT(result.err, Catch::Contains(flags[0]));
    CHECK(server.generate_requests().empty());
  }
}

TEST_CASE("a named session is continued, and not deleted") {
  TextServer server;
  REQUIRE(server.type("text\n", {"--session", "abc"}).code == cli::kOk);
  CHECK(server.generate_requests()[0].session_id() == "abc");
}

TEST_CASE("jsonl has text of models of bytes, and of no others") {
  TextServer server;
  const std::vector<std::string> arguments = {"generate",
                                              "--address",
                                              server.address(),
                                              "--prompt-tokens",
                                              "1",
                                              "--max-new-tokens",
                                              "3",
                                              "--seed",
                                              "5",
                                              "--format",
                                              "jsonl"};
  server.first_token = 'A';
  const CommandResult bytes = run_lintel(arguments);
  INFO(bytes.err);
  REQUIRE(bytes.code == cli::kOk);
  CHECK_THAT(bytes.out, Catch::Contains("\"text\":\"A"));
  FakeServer images;
  auto of_images = arguments;
  of_images[2] = images.address();
  CHECK_THAT(run_lintel(of_images).out, !Catch::Contains("\"text\""));
}

TEST_CASE("the speed is said where it is asked for, and never on a pipe otherwise") {
  TextServer server;
  const std::vector<std::string> arguments = {
      "generate", "--address", server.address(), "--prompt", "ab", "--max-new-tokens", "3"};
  CHECK(run_lintel(arguments).err.empty());
  auto asked = arguments;
  asked.push_back("--stats");
  const CommandResult result = run_lintel(asked);
  CHECK_THAT(result.err, Catch::StartsWith("lintel: 3 tokens"));
  CHECK_THAT(result.err, Catch::Contains("the first after "));
  CHECK(run_lintel(arguments).out == result.out);
}

TEST_CASE("the speed is that between the first token and the last, of all samples together") {
  cli::GenerationSpeed speed;
  CHECK(speed.text() == "nothing was generated");
  v1::SampleFinish finish;
  finish.set_generated_tokens(101);
  finish.set_prompt_tokens(30);
  finish.mutable_timings()->mutable_prompt()->set_nanos(20'000'000);
  finish.mutable_timings()->mutable_generation()->set_nanos(500'000'000);
  speed.on_finish(finish);
  CHECK(speed.text() == "101 tokens at 200.0/s; prompt: 30 tokens at 1500/s");
  finish.set_cached_tokens(64);
  finish.mutable_timings()->mutable_generation()->set_nanos(400'000'000);
  speed.on_finish(finish);
  CHECK(speed.text() == "2 samples, 202 tokens at 400.0/s; prompt: 30 tokens at 1500/s");
  cli::GenerationSpeed cached;
  cached.on_finish(finish);
  CHECK(cached.text() ==
        "101 tokens at 250.0/s; prompt: 30 tokens at 1500/s, 64 more from the cache");
  cli::GenerationSpeed one;
  v1::SampleFinish single;
  single.set_generated_tokens(1);
  one.on_finish(single);
  CHECK(one.text() == "1 token");
}

}  // namespace
}  // namespace lintel::testing
