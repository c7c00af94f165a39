// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "client/cli/program.h"
#include "tests/client/support/detailed_status.h"
#include "tests/client/support/fake_server.h"
#include "tests/client/support/run_lintel.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

// An environment variable for the length of a scope.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  ~ScopedVariable() { unsetenv(name_); }

 private:
  const char* name_;
};

v1::GenerateRequest only_request(const FakeServer& server) {
  const auto requests = server.generate_requests();
  REQUIRE(requests.size() == 1);
  return requests[0];
}

}  // namespace

TEST_CASE("every generate flag reaches the request") {
  FakeServer server;
  const auto result = run_lintel({"generate",
                                  "--address",
                                  server.address(),
                                  "--model",
                                  "tiny",
                                  "--prompt-tokens",
                                  "0,0,12",
                                  "--max-new-tokens",
                                  "4",
                                  "--seed",
                                  "18446744073709551615",
                                  "--temperature",
                                  "0",
                                  "--top-k",
                                  "5",
                                  "--top-p",
                                  "0.9",
                                  "--min-p",
                                  "0.1",
                                  "--repetition-penalty",
                                  "1.5",
                                  "--presence-penalty",
                                  "-0.5",
                                  "--frequency-penalty",
                                  "0.25",
                                  "--penalty-window",
                                  "64",
                                  "--logit-bias",
                                  "3=-2",
                                  "--logit-bias",
                                  "4=1.5",
                                  "--stop",
                                  "a\\n",
                                  "--stop",
                                  "end",
                                  "--stop-token",
                                  "7,8",
                                  "--include-stop",
                                  "--samples",
                                  "2",
                                  "--top-log-probs",
                                  "3",
                                  "--echo",
                                  "--session",
                                  "abc",
                                  "--given",
                                  "5=1,2",
                                  "--given",
                                  "9=3",
                                  "--time-limit",
                                  "1.5",
                                  "--tokens-per-message",
                                  "1",
                                  "--format",
                                  "jsonl"});
  INFO(result.err);
  REQUIRE(result.code == cli::kOk);
  const v1::GenerateRequest request = only_request(server);
  CHECK(request.model() == "tiny");
  CHECK(request.session_id() == "abc");
  CHECK(request.prompt().tokens().ids_size() == 3);
  CHECK(request.max_new_tokens() == 4);
  CHECK(request.num_samples() == 2);
  CHECK(request.log2_probs());
  CHECK(request.top_log2_probs() == 3);
  CHECK(request.echo_prompt());
  CHECK(request.max_tokens_per_message() == 1);
  CHECK(request.time_limit().seconds() == 1);
  CHECK(request.time_limit().nanos() == 500'000'000);
  const v1::Sampling& sampling = request.sampling();
  CHECK(sampling.seed() == 18446744073709551615ull);
  CHECK(sampling.has_temperature());
  CHECK(sampling.temperature() == 0);
  CHECK(sampling.top_k() == 5);
  CHECK(sampling.top_p() == 0.9f);
  CHECK(sampling.min_p() == 0.1f);
  CHECK(sampling.repetition_penalty() == 1.5f);
  CHECK(sampling.presence_penalty() == -0.5f);
  CHECK(sampling.frequency_penalty() == 0.25f);
  CHECK(sampling.penalty_window() == 64);
  CHECK(sampling.logit_bias().at(3) == -2);
  CHECK(sampling.logit_bias().at(4) == 1.5f);
  REQUIRE(request.stop().strings_size() == 2);
  CHECK(request.stop().strings(0) == "a\n");
  REQUIRE(request.stop().token_ids_size() == 2);
  CHECK(request.stop().token_ids(1) == 8);
  CHECK(request.stop().include_in_output());
  REQUIRE(request.given_size() == 2);
  CHECK(request.given(0).position() == 5);
  CHECK(request.given(1).values().tokens().ids(0) == 3);
}

TEST_CASE("a flag that is not given is not sent") {
  FakeServer server;
  REQUIRE(run_lintel({"generate", "--address", server.address()}).code == cli::kOk);
  CHECK(only_request(server).SerializeAsString().empty());
}

TEST_CASE("jsonl has one object per sample, and its floats read back exactly") {
  FakeServer server;
  const auto result =
      run_lintel({"generate", "--address", server.address(), "--prompt-tokens", "0,0,12",
                  "--max-new-tokens", "3", "--seed", "9", "--samples", "2", "--given", "4=77",
                  "--echo", "--top-log-probs", "1", "--format", "jsonl"});
  REQUIRE(result.code == cli::kOk);
  CHECK(result.err.empty());
  std::istringstream lines(result.out);
  std::string line;
  for (std::uint64_t s = 0; s < 2; ++s) {
    REQUIRE(std::getline(lines, line));
    const auto object = nlohmann::json::parse(line);
    CHECK(object["sample"] == s);
    CHECK(object["seed"] == 9 + s);
    CHECK(object["finish_reason"] == "length");
    CHECK(object["first_position"] == 3);
    CHECK(object["prompt_tokens"] == 3);
    CHECK(object["generated_tokens"] == 3);
    CHECK(object["given_tokens"] == 1);
    CHECK(object["given_positions"] == nlohmann::json({4}));
    CHECK(object["reused_tokens"] == 0);
    CHECK(object["position"] == 6);
    CHECK(object["timings"]["generation_seconds"] == 0.25);
    CHECK(object["prompt"] == nlohmann::json({0, 0, 12}));
    CHECK(object["prompt_log2_probs"][0].is_null());
    CHECK(object["prompt_log2_probs"][2].get<float>() == fake_log2_prob(9 + s, 2));
    REQUIRE(object["tokens"].size() == 3);
    REQUIRE(object["log2_probs"].size() == 3);
    CHECK(object["tokens"][1] == 77);
    CHECK(object["top"][0][0]["token"] == object["tokens"][0]);
    for (std::size_t i = 0; i < 3; ++i) {
      const auto position = static_cast<std::int64_t>(3 + i);
      if (i != 1) CHECK(object["tokens"][i] == fake_token(9 + s, position));
      CHECK(object["log2_probs"][i].get<float>() == fake_log2_prob(9 + s, position));
    }
  }
  CHECK_FALSE(std::getline(lines, line));
}

TEST_CASE("tokens are printed as they can be given again") {
  FakeServer server;
  const auto t = [](std::uint64_t seed, int position) {
    return std::to_string(fake_token(seed, position));
  };
  auto result = run_lintel({"generate", "--address", server.address(), "--prompt-tokens", "1,2",
                            "--max-new-tokens", "2", "--seed", "5"});
  CHECK(result.out == t(5, 2) + "," + t(5, 3) + "\n");
  result = run_lintel({"generate", "--address", server.address(), "--prompt-tokens", "1,2",
                       "--max-new-tokens", "2", "--seed", "5", "--samples", "2", "--echo"});
  CHECK(result.out == "1,2," + t(5, 2) + "," + t(5, 3) + "\n1,2," + t(6, 2) + "," + t(6, 3) + "\n");
}

TEST_CASE("a byte model's text comes out as its bytes") {
  FakeServer server;
  server.model.set_modality("bytes");
  server.model.clear_image();
  std::string expected = "hi";
  for (int i = 2; i < 6; ++i) expected += static_cast<char>(fake_token(4, i));
  auto result = run_lintel({"generate", "--address", server.address(), "--prompt", "hi",
                            "--max-new-tokens", "4", "--seed", "4", "--echo"});
  CHECK(result.out == expected);
  CHECK(only_request(server).prompt().text() == "hi");
  result = run_lintel({"generate", "--address", server.address(), "--prompt-file", "-",
                       "--max-new-tokens", "4", "--seed", "4", "--echo"},
                      "hi");
  CHECK(result.out == expected);
}

TEST_CASE("window: sent where a flag names it, and printed where the server chose one") {
  FakeServer server;
  server.model.set_modality("bytes");
  server.model.clear_image();
  server.model.set_max_length(0);
  server.model.set_trained_length(257);
  const auto run = [&](std::vector<std::string> flags, bool is_said) {
    flags.insert(flags.begin(), {"generate", "--address", server.address(), "--max-new-tokens", "3",
                                 "--prompt", "x"});
    const auto result = run_lintel(flags);
    REQUIRE(result.code == cli::kOk);
    CHECK((result.err.find("window of 256 tokens (--window 256; --window 0: none)") !=
           std::string::npos) == is_said);
    const v1::GenerateRequest request = server.generate_requests().back();
    return request.has_window() ? request.window() : -1;
  };
  CHECK(run({}, false) == -1);
  server.window = 256;  // which it chose, and the text stays within it
  CHECK(run({}, false) == -1);
  server.window_restarts = 2;
  CHECK(run({}, true) == -1);
  CHECK(run({"--quiet"}, false) == -1);
  CHECK(run({"--session", "abc"}, false) == -1);
  CHECK(run({"--window", "0"}, false) == 0);
  CHECK(run({"--window", "64"}, false) == 64);
  const auto result = run_lintel({"generate", "--address", server.address(), "--prompt", "x",
                                  "--max-new-tokens", "3", "--format", "jsonl"});
  const auto json = nlohmann::json::parse(result.out);
  CHECK(json["window"] == 256);
  CHECK(json["window_restarts"] == 2);
}

TEST_CASE("session continue generates on the session") {
  FakeServer server;
  const auto result = run_lintel({"session", "continue", "abc", "--address", server.address(),
                                  "--max-new-tokens", "2", "--format", "jsonl"});
  INFO(result.err);
  REQUIRE(result.code == cli::kOk);
  CHECK(only_request(server).session_id() == "abc");
}

TEST_CASE("model list: models that a request loads are listed, failures with their reason") {
  FakeServer server;
  server.model.set_name("ready");
  server.model.set_state(v1::MODEL_STATE_READY);
  const auto idle = [](const std::string& name, const std::string& reason, bool on_request) {
    v1::Model model;
    model.set_name(name);
    model.set_version("1");
    model.set_state(v1::MODEL_STATE_UNAVAILABLE);
    model.set_reason(reason);
    model.set_loads_on_request(on_request);
    return model;
  };
  v1::Model broken = idle("broken", "its model_type is none_of_ours", true);
  broken.set_load_failed(true);
  v1::Model loading = idle("loading", "", true);
  loading.set_state(v1::MODEL_STATE_LOADING);
  server.unloaded = {broken, idle("idle", "not loaded", true), loading,
                     idle("stored", "not loaded", false)};
  const auto shown = [&](std::vector<std::string> line) {
    line.insert(line.end(), {"--address", server.address()});
    const CommandResult result = run_lintel(line);
    CHECK(result.code == 0);
    return result.out;
  };
  const std::string list = shown({"model", "list"});
  CHECK_THAT(list, Catch::Contains("idle     1        loads on request\n"));
  CHECK_THAT(list, Catch::Contains("loading  1        loading\n"));
  CHECK_THAT(list, Catch::Contains("broken   1        failed\n"));
  CHECK_THAT(list, Catch::EndsWith("\n\nbroken: its model_type is none_of_ours\n"));
  CHECK_THAT(list, !Catch::Contains("stored"));
  const std::string all = shown({"model", "list", "--all"});
  CHECK_THAT(all, Catch::Contains("loads on request  not loaded\n"));
  CHECK_THAT(all, Catch::Contains("stored   1        not loaded        not loaded\n"));
  CHECK(nlohmann::json::parse(shown({"model", "list", "--json"})).size() == 4);
}

TEST_CASE("model list: the trained length is a column, unknown where a model does not state it") {
  FakeServer server;
  server.model.set_state(v1::MODEL_STATE_READY);
  server.model.set_max_length(0);
  server.model.set_constant_state(true);
  server.model.set_state_bytes(68608);
  const auto list = [&] {
    const CommandResult result = run_lintel({"model", "list", "--address", server.address()});
    INFO(result.err);
    REQUIRE(result.code == cli::kOk);
    return result.out;
  };
  server.model.set_trained_length(0);
  CHECK_THAT(list(), Catch::Contains("MAX LENGTH  TRAINED LENGTH  STATE BYTES\n"));
  CHECK_THAT(list(), Catch::EndsWith("unbounded   unknown         68608\n"));
  server.model.set_trained_length(4096);
  CHECK_THAT(list(), Catch::EndsWith("unbounded   4096            68608\n"));
}

TEST_CASE("a model whose state grows without an end is shown with the bytes of a token") {
  FakeServer server;
  server.model.set_constant_state(false);
  server.model.set_state_bytes(0);
  server.model.set_state_bytes_per_value(6144);
  server.model.set_prompt_rows(48);
  const auto shown = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--address", server.address()});
    const auto result = run_lintel(arguments);
    INFO(result.err);
    REQUIRE(result.code == cli::kOk);
    return result.out;
  };
  CHECK_THAT(shown({"model", "list"}), Catch::Contains(" 6144 a token\n"));
  CHECK_THAT(shown({"model", "get"}),
             Catch::Contains("6144 bytes a token, growing without an end") &&
                 Catch::Contains("rows, prompts 48 a step"));
  const auto json = nlohmann::json::parse(shown({"model", "list", "--json"}))[0];
  CHECK(json["state_bytes_per_value"] == 6144);
  CHECK(json["prompt_rows"] == 48);
  // An older server does not send it.
  server.model.clear_state_bytes_per_value();
  CHECK_THAT(shown({"model", "list"}), Catch::Contains(" growing\n"));
  CHECK_THAT(shown({"model", "get"}), Catch::Contains("growing without an end"));
  server.model.set_state_bytes(700);
  CHECK_THAT(shown({"model", "list"}), Catch::Contains(" 700\n"));
  CHECK_THAT(shown({"model", "get"}), Catch::Contains("700 bytes, at its largest"));
}

TEST_CASE("a model with a KV cache is shown with its type and the bytes of a session and a token") {
  FakeServer server;
  const auto shown = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--address", server.address()});
    return run_lintel(arguments).out;
  };
  CHECK_THAT(shown({"model", "get"}), !Catch::Contains("KV cache"));
  CHECK_FALSE(nlohmann::json::parse(shown({"model", "get", "--json"})).contains("kv_type"));
  server.model.set_kv_type("int8");
  server.model.set_kv_session_bytes(21'200'000);
  server.model.set_kv_token_bytes(6384);
  CHECK_THAT(shown({"model", "get"}),
             Catch::Contains("int8, 21200000 bytes a session and 6384 a token"));
  const auto json = nlohmann::json::parse(shown({"model", "get", "--json"}));
  CHECK(json["kv_type"] == "int8");
  CHECK(json["kv_session_bytes"] == 21'200'000);
  CHECK(json["kv_token_bytes"] == 6384);
}

TEST_CASE("a model is shown with the sessions that there is memory for") {
  FakeServer server;
  const auto shown = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--address", server.address()});
    return run_lintel(arguments).out;
  };
  CHECK_THAT(shown({"model", "get"}), !Catch::Contains("memory for"));
  server.model.set_room_sessions(34);
  server.model.set_room_session_tokens(8192);
  server.model.set_room_tokens(262'144);
  CHECK_THAT(shown({"model", "get"}),
             Catch::Contains("34 sessions of 8192 tokens, or one of 262144 tokens"));
  const auto json = nlohmann::json::parse(shown({"model", "get", "--json"}));
  CHECK(json["room_sessions"] == 34);
  CHECK(json["room_session_tokens"] == 8192);
  CHECK(json["room_tokens"] == 262'144);
  server.model.set_room_session_tokens(0);
  server.model.set_room_tokens(0);
  CHECK_THAT(shown({"model", "get"}),
             Catch::Contains("34 sessions of any length, or one of any length"));
}

TEST_CASE("sessions, models and health are shown, and as JSON nothing else is") {
  FakeServer server;
  const auto json_of = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--json", "--address", server.address()});
    const auto result = run_lintel(arguments);
    INFO(result.err);
    REQUIRE(result.code == cli::kOk);
    return nlohmann::json::parse(result.out);
  };
  CHECK(json_of({"session", "create"})["id"] == "session-0");
  CHECK(json_of({"session", "get", "session-0"})["create_time"] == "2023-11-14T22:13:20Z");
  CHECK(json_of({"session", "list"}).size() == 4);
  CHECK(json_of({"session", "delete", "x"})["deleted"] == "x");
  CHECK(json_of({"model", "list"})[0]["image"]["width"] == 5);
  CHECK(json_of({"model", "get", "tiny"})["config"]["format_version"] == 1);
  CHECK(json_of({"health"})["serving"] == true);

  CHECK(run_lintel({"session", "create", "--address", server.address()}).out == "session-0\n");
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {"session", "list"}, {"session", "get", "a"}, {"model", "list"}, {"model", "get"}}) {
    auto with_address = arguments;
    with_address.insert(with_address.end(), {"--address", server.address()});
    const auto result = run_lintel(with_address);
    CHECK(result.code == cli::kOk);
    CHECK_THAT(result.out, Catch::Contains("tiny"));
  }
}

TEST_CASE("health exits with 0 when serving, with 3 when not") {
  FakeServer server;
  CHECK(run_lintel({"health", "--address", server.address()}).code == cli::kOk);
  server.serving = false;
  const auto result = run_lintel({"health", "--address", server.address()});
  CHECK(result.code == cli::kUnavailable);
  CHECK(result.out == "not serving\n");
  CHECK(run_lintel({"health", "--address", "127.0.0.1:1"}).code == cli::kUnavailable);
  CHECK(run_lintel({"health", "--address", server.address(), "--service", "unknown"}).code ==
        cli::kFailed);
}

TEST_CASE("address, model and deadline come from the environment, and flags win") {
  FakeServer server;
  const ScopedVariable address("LINTEL_ADDRESS", server.address());
  const ScopedVariable model("LINTEL_MODEL", "from-environment");
  const ScopedVariable deadline("LINTEL_DEADLINE", "77");
  REQUIRE(run_lintel({"generate"}).code == cli::kOk);
  CHECK(only_request(server).model() == "from-environment");
  CHECK(server.last_deadline() < std::chrono::system_clock::now() + std::chrono::seconds(78));
  REQUIRE(run_lintel({"generate", "--model", "other"}).code == cli::kOk);
  CHECK(server.generate_requests()[1].model() == "other");
  CHECK(run_lintel({"health", "--address", "127.0.0.1:1"}).code == cli::kUnavailable);
}

TEST_CASE("a command line that makes no sense exits with 2 and says why") {
  const std::vector<std::vector<std::string>> lines = {
      {},
      {"bogus"},
      {"generate", "--bogus"},
      {"generate", "--seed", "-1"},
      {"generate", "--seed"},
      {"generate", "--temperature", "hot"},
      {"generate", "--prompt", "a", "--prompt-tokens", "1"},
      {"generate", "--prompt-tokens", "1,,2"},
      {"generate", "--format", "xml"},
      {"generate", "--logit-bias", "3"},
      {"generate", "--logit-bias", "3=1", "--logit-bias", "3=2"},
      {"generate", "--stop", "\\q"},
      {"generate", "--time-limit", "0"},
      {"generate", "--deadline", "0"},
      {"generate", "--top-log-probs", "2", "--format", "tokens"},
      {"generate", "--address", ""},
      {"session"},
      {"session", "get"},
      {"session", "bogus"},
      {"session", "continue"},
      {"complete"},
      {"complete", "--images", "a", "--unconditional", "3"},
      {"complete", "--images", "a", "--samples", "0"},
      {"complete", "--images", "a", "--occlude", "middle:3"},
      {"complete", "--unconditional", "3", "--samples", "2"},
  };
  for (const auto& line : lines) {
    std::string text = "lintel";
    for (const std::string& word : line) text += " " + word;
    INFO(text);
    const auto result = run_lintel(line);
    CHECK(result.code == cli::kUsage);
    CHECK(result.out.empty());
    CHECK_FALSE(result.err.empty());
  }
}

TEST_CASE("help goes to standard output and teaches with examples") {
  for (const char* command :
       {"generate", "complete", "score", "session", "state", "model", "health", "admin", "token"}) {
    INFO(command);
    const auto result = run_lintel({command, "--help"});
    CHECK(result.code == cli::kOk);
    CHECK_THAT(result.out, Catch::Contains("Example"));
    CHECK(result.err.empty());
  }
  CHECK_THAT(run_lintel({"--help"}).out, Catch::Contains("Exit status"));
  CHECK_THAT(run_lintel({"--version"}).out, Catch::StartsWith("lintel "));
}

TEST_CASE("a refused call exits with 1 and names the flag") {
  FakeServer server;
  server.failure =
      detailed_status(grpc::StatusCode::INVALID_ARGUMENT, "bad request", "sampling.top_k");
  const auto result = run_lintel({"generate", "--address", server.address(), "--top-k", "3"});
  CHECK(result.code == cli::kFailed);
  CHECK_THAT(result.err, Catch::Contains("INVALID_ARGUMENT") && Catch::Contains("--top-k") &&
                             !Catch::Contains("sampling.top_k"));
}

TEST_CASE("no server, or one that turns calls away, exits with 3") {
  const auto unreachable = run_lintel({"generate", "--address", "127.0.0.1:1"});
  CHECK(unreachable.code == cli::kUnavailable);
  CHECK_THAT(unreachable.err, !Catch::Contains("TLS"));
  FakeServer server;
  server.failure = grpc::Status(grpc::StatusCode::UNAVAILABLE, "draining");
  CHECK(run_lintel({"generate", "--address", server.address()}).code == cli::kUnavailable);
}

TEST_CASE("a cancelled command ends its call on the server and exits with 1") {
  FakeServer server;
  server.hang = true;
  int out[2];
  REQUIRE(pipe(out) == 0);
  cli::Console console(STDIN_FILENO, out[1], out[1]);
  char text[200];
  const auto read_text = [&] {
    const auto size = read(out[0], text, sizeof text);
    return std::string(text, static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  };
  std::string printed;
  std::thread other([&] {
    printed = read_text();  // a cancelled call drops what its client has not read yet
    console.cancellation().cancel();
  });
  const int code = cli::run_command_line(
      {"generate", "--address", server.address(), "--format", "tokens", "--seed", "1"}, console);
  other.join();
  server.wait_until_cancelled();
  CHECK(code == cli::kFailed);
  CHECK(printed == std::to_string(fake_token(1, 1)));
  CHECK(read_text() == "lintel: cancelled\n");
  close(out[0]);
  close(out[1]);
}

TEST_CASE("samples that had come are printed when their call fails") {
  FakeServer server;
  const auto generate = [&server](std::vector<std::string> more) {
    std::vector<std::string> line = {"generate", "--address", server.address(), "--samples", "2",
                                     "--seed",   "9",         "--format"};
    line.insert(line.end(), more.begin(), more.end());
    return run_lintel(line);
  };
  const std::string first = std::to_string(fake_token(9, 1));
  server.hang = true;  // after a token of sample 0
  auto result = generate({"jsonl", "--deadline", "1"});
  CHECK(result.code == cli::kFailed);
  CHECK_THAT(result.err, Catch::Contains("DEADLINE_EXCEEDED"));
  const auto cut = nlohmann::json::parse(result.out);
  CHECK(cut["sample"] == 0);
  CHECK(cut["tokens"] == nlohmann::json({fake_token(9, 1)}));
  CHECK(cut["log2_probs"].size() == 1);
  CHECK(cut["finish_reason"] == "deadline");
  CHECK(cut["seed"] == 9);
  CHECK(cut["first_position"] == 1);
  CHECK_FALSE(cut.contains("generated_tokens"));  // the server's to say, and it did not
  result = generate({"tokens", "--deadline", "1"});
  CHECK(result.code == cli::kFailed);
  CHECK(result.out == first + "\n\n");  // line i is sample i
  server.model.set_modality("bytes");
  result = generate({"text", "--deadline", "1"});
  CHECK(result.code == cli::kFailed);
  CHECK_THAT(result.out, Catch::StartsWith("--- sample 0, seed 9, cut short\n") &&
                             !Catch::Contains("sample 1"));

  // One is done, of the other nothing has come.
  server.hang = false;
  server.end_early = true;
  result = generate({"jsonl"});
  CHECK(result.code == cli::kFailed);
  const auto whole = nlohmann::json::parse(result.out);
  CHECK(whole["finish_reason"] == "length");
  CHECK(whole["generated_tokens"] == 10);
}

TEST_CASE("a reader that goes away ends the command quietly and the call with it") {
  FakeServer server;
  server.hang = true;
  int out[2], err[2];
  REQUIRE(pipe(out) == 0);
  REQUIRE(pipe(err) == 0);
  close(out[0]);
  signal(SIGPIPE, SIG_IGN);
  cli::Console console(STDIN_FILENO, out[1], err[1]);
  CHECK(cli::run_command_line({"generate", "--address", server.address(), "--format", "tokens"},
                              console) == cli::kOk);
  server.wait_until_cancelled();
  close(out[1]);
  close(err[1]);
  char text[200];
  CHECK(read(err[0], text, sizeof text) == 0);
  close(err[0]);
}

}  // namespace lintel::testing
