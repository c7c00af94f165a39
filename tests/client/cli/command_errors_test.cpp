// SPDX-License-Identifier: Apache-2.0
// What `lintel` says when something is wrong, and how it helps.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <sstream>
#include <thread>

#include "client/cli/generate_output.h"
#include "tests/client/support/detailed_status.h"
#include "tests/client/support/fake_server.h"
#include "tests/client/support/run_lintel.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

v1::Model model_of(const std::string& name, const std::string& modality) {
  v1::Model model;
  model.set_name(name);
  model.set_modality(modality);
  model.set_vocab_size(256);
  return model;
}

std::string text_of(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

int mode_of(const std::string& file) {
  struct stat status {};
  REQUIRE(stat(file.c_str(), &status) == 0);
  return status.st_mode & 0777;
}

}  // namespace

TEST_CASE("every error is one line that begins with the program's name") {
  FakeServer server;
  server.failure = detailed_status(grpc::StatusCode::INVALID_ARGUMENT, "no", "max_new_tokens");
  for (const std::vector<std::string>& line : std::vector<std::vector<std::string>>{
           {},
           {"genrate"},
           {"generate", "--promt", "x"},
           {"generate", "--seed", "-1"},
           {"generate", "--format", "xml"},
           {"generate", "--prompt", "a", "--prompt-tokens", "1"},
           {"generate", "--address", "127.0.0.1:1"},
           {"generate", "--address", server.address(), "--max-new-tokens", "3"},
           {"session"},
           {"session", "get"},
           {"session", "crate"},
           {"score", "--input", "/nonexistent"},
           {"complete", "--images", "x", "--out", "x.jpg"},
       }) {
    const CommandResult result = run_lintel(line);
    INFO(result.err);
    CHECK(result.code != 0);
    CHECK(result.out.empty());
    CHECK_THAT(result.err, Catch::StartsWith("lintel: ") && Catch::EndsWith("\n"));
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  }
}

TEST_CASE("an error about an unknown command or flag suggests a similar one") {
  const auto err = [](std::vector<std::string> line) { return run_lintel(line).err; };
  CHECK_THAT(err({"generat"}), Catch::Contains("no such command: generat; did you mean generate?"));
  CHECK_THAT(err({"session", "lst"}), Catch::Contains("did you mean list?"));
  CHECK_THAT(err({"generate", "--max-new-token=3"}),
             Catch::Contains("no such flag: --max-new-token; did you mean --max-new-tokens?") &&
                 Catch::Contains("(see lintel generate --help)"));
  CHECK_THAT(err({"session", "get", "--jsno"}), Catch::Contains("did you mean --json?"));
  CHECK_THAT(
      err({"session"}),
      Catch::Contains("a command is missing: create, get, list, delete, continue, fork, rewind, "
                      "snapshot, restore or history"));
  CHECK_THAT(err({"health", "now"}), Catch::Contains("one argument too many: now"));
}

TEST_CASE("errors about values name the flag, the value and the expectation") {
  const auto err = [](std::vector<std::string> line) { return run_lintel(line).err; };
  CHECK_THAT(err({"generate", "--format", "xml"}),
             Catch::StartsWith("lintel: --format 'xml': expected text, tokens or jsonl (see "));
  CHECK_THAT(err({"detokenize", "1,a"}), Catch::StartsWith("lintel: IDS '1,a': expected a number"));
}

TEST_CASE("commands of other programs: the error names the command that does the same") {
  const auto err = [](std::vector<std::string> line) {
    const CommandResult result = run_lintel(line);
    CHECK(result.code == 2);
    return result.err;
  };
  CHECK_THAT(err({"ps"}), Catch::Contains("no such command: ps; `lintel model list`"));
  CHECK_THAT(err({"serve", "--model", "a"}),
             Catch::Contains("no such command: serve; `lintel-server --model DIR`"));
  CHECK_THAT(err({"help", "serve"}), Catch::Contains("`lintel-server --model DIR`"));
  CHECK_THAT(err({"list"}), Catch::Contains("`lintel model list`"));
  CHECK_THAT(err({"ps"}), Catch::Contains("`lintel model list`"));
  CHECK_THAT(err({"show", "a"}), Catch::Contains("`lintel model get NAME`"));
  CHECK_THAT(err({"rm", "a"}), Catch::Contains("`lintel model unload NAME`"));
  CHECK_THAT(err({"model", "show", "a"}), Catch::Contains("`lintel model get NAME`"));
  CHECK_THAT(err({"session", "show", "a"}), Catch::Contains("`lintel session get ID`"));
  CHECK_THAT(err({"session", "rm", "a"}), Catch::Contains("`lintel session delete ID`"));
  CHECK_THAT(err({"chat", "-m", "a"}), Catch::Contains("no such flag: -m; --model NAME"));
  CHECK_THAT(err({"chat", "--port", "8080"}), Catch::Contains("--address HOST:PORT"));
  CHECK_THAT(err({"run", "-m", "a"}),
             Catch::Contains("no such flag: -m; MODEL, the first argument"));
  CHECK_THAT(err({"run", "--model", "a"}),
             Catch::Contains("no such flag: --model; MODEL, the first argument"));
  CHECK_THAT(err({"run", "-hf", "org/a"}),
             Catch::Contains("no such flag: -hf; ORG/NAME[:QUANT], the first argument") &&
                 Catch::Contains("(see lintel run --help)"));
  CHECK_THAT(err({"chat", "-hf", "org/a"}), Catch::Contains("`lintel run ORG/NAME[:QUANT]`"));
  for (const char* const command : {"run", "chat", "generate"}) {
    CHECK_THAT(err({command, "--ctx-size", "4096"}),
               Catch::Contains("no such flag: --ctx-size; the context is the model's own"));
    CHECK_THAT(err({command, "-ngl", "99"}),
               Catch::Contains("no such flag: -ngl; models are computed on the CPU"));
  }
  CHECK_THAT(err({"run", "a", "-t", "4"}), Catch::Contains("`lintel-server --workers N`"));
  CHECK_THAT(err({"chat", "--api-key", "a"}), Catch::Contains("--token TOKEN or @FILE"));
  CHECK_THAT(err({"chat", "--n-predict", "4"}), Catch::Contains("--max-tokens N bounds"));
  // Beside a request for help, or as the value of a flag, such a word is none of these.
  CHECK(run_lintel({"chat", "-hf", "--help"}).code == 0);
}

// The help of a command and of those below it.
void add_help(const std::vector<std::string>& path, std::vector<std::string>& texts) {
  std::vector<std::string> line = path;
  line.push_back("--help");
  const CommandResult result = run_lintel(line);
  REQUIRE(result.code == 0);
  texts.push_back(result.out);
  std::istringstream lines(result.out);
  bool is_of_commands = false;
  for (std::string text; std::getline(lines, text);) {
    if (text.empty() || text.front() != ' ') {
      is_of_commands = text == "Subcommands:";
      continue;
    }
    const std::size_t end = text.find(' ', 2);
    if (!is_of_commands || text.size() < 3 || text[2] == ' ') continue;
    if (text.starts_with("  help ")) continue;
    std::vector<std::string> sub = path;
    sub.push_back(text.substr(2, end - 2));
    add_help(sub, texts);
  }
}

TEST_CASE("help of every command is laid out for 80 columns") {
  std::vector<std::string> texts;
  add_help({}, texts);
  CHECK(texts.size() > 20);
  for (const std::string& text : texts) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (line.size() > 80) UNSCOPED_INFO(line);
      CHECK(line.size() <= 80);
    }
  }
}

TEST_CASE("flags of the connection may stand before the command") {
  FakeServer server;
  const CommandResult after = run_lintel({"model", "list", "--address", server.address()});
  REQUIRE(after.code == 0);
  for (const std::vector<std::string>& line : std::vector<std::vector<std::string>>{
           {"--address", server.address(), "model", "list"},
           {"--address=" + server.address(), "--deadline", "9", "model", "list"}}) {
    const CommandResult before = run_lintel(line);
    CHECK(before.code == 0);
    CHECK(before.out == after.out);
  }
  // The last one counts, as of any flag.
  CHECK(run_lintel({"--address", "none.invalid:1", "model", "list", "--address", server.address()})
            .code == 0);
  CHECK_THAT(run_lintel({"--address", "a"}).err, Catch::Contains("a command is missing"));
  CHECK_THAT(run_lintel({"--address", "a", "nothing"}).err,
             Catch::Contains("no such command: nothing"));
  CHECK_THAT(run_lintel({"--deadline"}).err, Catch::Contains("a command is missing"));
}

TEST_CASE(
    "a model in the repository that is not loaded: the error names the command that loads it") {
  FakeServer server;
  v1::Model idle = model_of("idle", "bytes"), broken = model_of("broken", "bytes");
  for (v1::Model* model : {&idle, &broken}) model->set_state(v1::MODEL_STATE_UNAVAILABLE);
  idle.set_reason("not loaded");
  broken.set_reason("model.safetensors ends early");
  server.unloaded = {idle, broken};
  const auto err = [&server](std::vector<std::string> line) {
    line.insert(line.end(), {"--address", server.address()});
    const CommandResult result = run_lintel(line, "[1,2]\n");
    CHECK(result.code == 1);
    return result.err;
  };
  for (const std::vector<std::string>& line : std::vector<std::vector<std::string>>{
           {"generate", "--model", "idle", "--prompt", "a"},
           {"score", "--model", "idle", "--input", "-"},
           {"complete", "--model", "idle", "--unconditional", "1"},
           {"model", "get", "idle"}}) {
    CHECK(err(line) ==
          "lintel: model idle is not loaded; `lintel model load idle` loads it (NOT_FOUND)\n");
  }
  CHECK_THAT(err({"generate", "--model", "broken", "--prompt", "a"}),
             Catch::Contains("broken is not loaded (model.safetensors ends early); "
                             "`lintel model load broken` loads it"));
}

TEST_CASE("texts of the server name flags and commands, not fields and methods") {
  FakeServer server;
  server.failure = grpc::Status(grpc::StatusCode::FAILED_PRECONDITION,
                                "session a has a call that was interrupted: repeat it by its "
                                "call_id, or give it up by expected_position or Rewind");
  const auto err = [&server](std::vector<std::string> line) {
    line.insert(line.end(), {"--address", server.address()});
    return run_lintel(line).err;
  };
  CHECK(err({"session", "continue", "a"}) ==
        "lintel: session a has a call that was interrupted: repeat it with its --call-id, or give "
        "it up with `lintel session rewind` (FAILED_PRECONDITION)\n");
  server.failure = grpc::Status(grpc::StatusCode::FAILED_PRECONDITION,
                                "other bits: accept_other_numerics continues, model my_own stays");
  CHECK_THAT(err({"session", "restore", "-"}),
             Catch::Contains("--accept-other-numerics continues, model my_own stays"));
  const auto field = [&](const std::string& name, std::vector<std::string> line) {
    server.failure = detailed_status(grpc::StatusCode::INVALID_ARGUMENT, "no", name);
    return err(std::move(line));
  };
  const std::vector<std::string> create = {"session", "create"};
  CHECK_THAT(field("checkpoints.every_tokens", create), Catch::Contains(" --checkpoint-every: "));
  CHECK_THAT(field("checkpoints.keep", create), Catch::Contains(" --checkpoints: "));
  CHECK_THAT(field("header.durability", {"session", "restore", "-"}),
             Catch::Contains(" --durability: "));
  CHECK_THAT(field("session_id", {"state", "save", "a", "b"}), Catch::Contains(" SESSION: "));
  CHECK_THAT(field("from_position", {"session", "history", "a", "--format", "ids"}),
             Catch::Contains(" --from: "));
  CHECK_THAT(field("call_id", {"session", "continue", "a"}), Catch::Contains(" --call-id: "));
}

TEST_CASE("fork of a session in use: the error asks for --position") {
  FakeServer server;
  server.failure =
      detailed_status(grpc::StatusCode::ABORTED, "session a is in use by another call", "", "a");
  const auto fork = [&server](std::vector<std::string> more) {
    more.insert(more.begin(), {"session", "fork", "a", "--address", server.address()});
    return run_lintel(more).err;
  };
  CHECK(fork({}) ==
        "lintel: session a is in use by another call: a copy of it needs --position P, how many of "
        "its tokens the copy has (ABORTED)\n");
  CHECK(fork({"--position", "3"}) == "lintel: session a is in use by another call (ABORTED)\n");
}

TEST_CASE("a connection that is lost during a call: the error has no text of gRPC") {
  FakeServer server;
  server.failure = grpc::Status(grpc::StatusCode::UNAVAILABLE, "recvmsg:Connection reset by peer");
  const CommandResult result = run_lintel({"model", "list", "--address", server.address()});
  CHECK(result.code == 3);
  CHECK(result.err == "lintel: the connection to the server was lost (UNAVAILABLE)\n");
}

TEST_CASE("lintel help COMMAND prints the help of the command") {
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {}, {"health"}, {"session", "create"}, {"token", "new"}}) {
    std::vector<std::string> help = command, asked = command;
    asked.insert(asked.begin(), "help");
    help.push_back("--help");
    const CommandResult result = run_lintel(asked);
    CHECK(result.code == 0);
    CHECK(result.out == run_lintel(help).out);
    CHECK_THAT(result.out, Catch::Contains("Usage: lintel"));
  }
  CHECK_THAT(run_lintel({"help", "--help"}).out, Catch::Contains("Usage: lintel help"));
  CHECK(run_lintel({"help", "health", "-h"}).out == run_lintel({"health", "--help"}).out);
  const CommandResult unknown = run_lintel({"help", "genrate"});
  CHECK(unknown.code == 2);
  CHECK_THAT(unknown.err, Catch::Contains("did you mean generate?"));
  CHECK_THAT(run_lintel({"--help"}).out, Catch::Contains("help COMMAND"));
}

TEST_CASE("no server: the error names the address and the command to start one") {
  const CommandResult result = run_lintel({"generate", "--address", "127.0.0.1:1"});
  CHECK(result.code == 3);
  CHECK(result.err ==
        "lintel: no server answers at 127.0.0.1:1: Connection refused; start one with "
        "`lintel-server --model DIR --listen 127.0.0.1:1`, or name another with --address "
        "(UNAVAILABLE)\n");
}

TEST_CASE("refused fields are named by the flags that filled them") {
  FakeServer server;
  const auto refusal = [&server](const std::string& field, std::vector<std::string> flags) {
    server.failure = detailed_status(grpc::StatusCode::INVALID_ARGUMENT, "no", field);
    flags.insert(flags.begin(), {"generate", "--address", server.address()});
    return run_lintel(flags).err;
  };
  const auto flag = [](const std::string& name) {
    return Catch::Equals("lintel: " + name + ": makes no sense (INVALID_ARGUMENT)\n");
  };
  CHECK_THAT(refusal("max_new_tokens", {}), flag("--max-new-tokens"));
  CHECK_THAT(refusal("num_samples", {}), flag("--samples"));
  CHECK_THAT(refusal("sampling.top_p", {}), flag("--top-p"));
  CHECK_THAT(refusal("sampling.logit_bias[3]", {}), flag("--logit-bias"));
  CHECK_THAT(refusal("stop.strings[0]", {}), flag("--stop"));
  CHECK_THAT(refusal("stop.token_ids[0]", {}), flag("--stop-token"));
  CHECK_THAT(refusal("given[2].position", {}), flag("--given"));
  CHECK_THAT(refusal("time_limit", {}), flag("--time-limit"));
  CHECK_THAT(refusal("top_log2_probs", {}), flag("--top-log-probs"));
  CHECK_THAT(refusal("session_id", {}), flag("--session"));
  CHECK_THAT(refusal("prompt.tokens.ids[1]", {"--prompt-tokens", "1"}), flag("--prompt-tokens"));
  CHECK_THAT(refusal("prompt", {"--prompt-file", "-"}), flag("--prompt-file"));
  CHECK_THAT(refusal("some.other_field", {}), flag("some.other_field"));
}

TEST_CASE("health has a short deadline, after which the server is not serving") {
  FakeServer server;
  const auto now = std::chrono::system_clock::now();
  CHECK(run_lintel({"health", "--address", server.address()}).code == 0);
  CHECK(server.last_deadline() < now + std::chrono::seconds(60));
  server.hang_health = true;
  const CommandResult late =
      run_lintel({"health", "--address", server.address(), "--deadline", "0.2"});
  CHECK(late.code == 3);
  CHECK(late.out == "not serving\n");
  CHECK_THAT(late.err, Catch::Contains("--deadline"));
}

TEST_CASE("without --max-new-tokens a text ends where people still wait, and says so") {
  FakeServer server;
  server.model = model_of("text", "bytes");
  const CommandResult result =
      run_lintel({"generate", "--address", server.address(), "--prompt", "a", "--format", "jsonl"});
  CHECK(result.code == 0);
  CHECK(server.generate_requests().back().max_new_tokens() == 256);
  CHECK_THAT(result.err,
             Catch::Contains("stopped after 256 tokens") && Catch::Contains("--max-new-tokens"));
  server.model.mutable_limits()->set_max_new_tokens(100);
  run_lintel({"generate", "--address", server.address(), "--prompt", "a"});
  CHECK(server.generate_requests().back().max_new_tokens() == 100);
  const CommandResult asked = run_lintel(
      {"generate", "--address", server.address(), "--prompt", "a", "--max-new-tokens", "3"});
  CHECK(asked.err.empty());
}

TEST_CASE("a time limit that ends a text is reported on standard error, unless --quiet") {
  FakeServer server;
  server.model = model_of("text", "bytes");
  server.finish_reason = v1::FINISH_REASON_DEADLINE;
  const auto run = [&server](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "--address", server.address(), "--prompt", "a",
                               "--max-new-tokens", "3", "--seed", "1", "--time-limit", "0.5"});
    const CommandResult result = run_lintel(more);
    CHECK(result.code == 0);
    return result;
  };
  CHECK(run({}).err == "lintel: the time limit of 0.5 s ended it after 3 tokens\n");
  const CommandResult two = run({"--samples", "2"});
  CHECK(two.err == "lintel: the time limit of 0.5 s ended 2 of 2 samples after 6 tokens\n");
  CHECK_THAT(two.out, Catch::StartsWith("--- sample 0, seed 1, ended by the time limit\n"));
  CHECK(run({"--quiet"}).err.empty());
  server.finish_reason = v1::FINISH_REASON_LENGTH;
  CHECK(run({}).err.empty());
}

TEST_CASE("a deadline that cuts a text off is named, and the text stays") {
  FakeServer server;
  server.model = model_of("text", "bytes");
  server.hang = true;
  const CommandResult result = run_lintel({"generate", "--address", server.address(), "--prompt",
                                           "a", "--seed", "1", "--deadline", "1"});
  CHECK(result.code == 1);
  CHECK(result.out == std::string(1, static_cast<char>(fake_token(1, 1))));
  CHECK(result.err ==
        "lintel: it took longer than --deadline 1 (seconds); give it more (DEADLINE_EXCEEDED)\n");
}

TEST_CASE("without --model the only suitable model is taken") {
  FakeServer server;
  server.others = {model_of("text", "bytes"), model_of("ids", "tokens")};
  const auto run = [&server](std::vector<std::string> line) {
    line.insert(line.end(), {"--address", server.address()});
    return run_lintel(line, "[1,2]\n");
  };
  CHECK(run({"complete", "--unconditional", "1"}).code == 0);
  CHECK(server.generate_requests().back().model() == "tiny");
  CHECK(run({"generate", "--prompt", "a", "--max-new-tokens", "1"}).code == 0);
  CHECK(server.generate_requests().back().model() == "text");
  CHECK(run({"generate", "--prompt-file", "-", "--max-new-tokens", "1"}).code == 0);
  CHECK(server.generate_requests().back().model() == "text");
  CHECK(run({"generate", "--prompt-tokens", "1"}).code == 1);
  CHECK(run({"score", "--input", "-"}).code == 1);
  server.others.push_back(model_of("more", "image"));
  const CommandResult two = run({"complete", "--unconditional", "1"});
  CHECK(two.code == 2);
  CHECK_THAT(two.err, Catch::Contains("--model") && Catch::Contains("tiny, more"));
  // A model of tokens that has a tokenizer reads text, too.
  server.others[1].set_tokenizer("World");
  CHECK_THAT(
      run({"generate", "--prompt", "a"}).err,
      Catch::Contains("--model: several models that read text are loaded, name one: text, ids"));
}

TEST_CASE("invalid files are named with their flag") {
  FakeServer server;
  const TemporaryDirectory directory;
  const std::string path = directory.path().string();
  const auto err = [&server](std::vector<std::string> line, int code) {
    line.insert(line.end(), {"--address", server.address()});
    const CommandResult result = run_lintel(line);
    CHECK(result.code == code);
    return result.err;
  };
  CHECK_THAT(err({"generate", "--prompt-file", path}, 1),
             Catch::Contains("--prompt-file " + path + ": is a directory"));
  CHECK_THAT(err({"generate", "--prompt-file", path + "/none"}, 1),
             Catch::Contains("No such file or directory"));
  std::ofstream(path + "/empty").flush();
  CHECK_THAT(err({"score", "--input", path + "/empty"}, 1), Catch::Contains("holds no sequence"));
  CHECK(err({"generate", "--prompt-file", path + "/empty"}, 0).empty());
}

TEST_CASE("score uses the singular for one sequence") {
  FakeServer server;
  const CommandResult one =
      run_lintel({"score", "--address", server.address(), "--input", "-"}, "[0,1]\n");
  CHECK_THAT(one.err, Catch::StartsWith("1 sequence, 1 token: "));
}

TEST_CASE("token files are their owner's alone, and none is overwritten") {
  const TemporaryDirectory directory;
  const std::string out = (directory.path() / "alice.token").string();
  const std::string tokens = (directory.path() / "tokens").string();
  const mode_t umask_before = umask(0);
  const CommandResult made =
      run_lintel({"token", "new", "alice", "--out", out, "--append", tokens});
  umask(umask_before);
  CHECK(made.code == 0);
  CHECK(made.out.empty());
  CHECK(mode_of(out) == 0600);
  CHECK(mode_of(tokens) == 0600);
  const std::string token = text_of(out);
  CHECK(token.size() == 65);
  CHECK_THAT(text_of(tokens), Catch::StartsWith("alice generate,score sha256:"));
  const CommandResult again = run_lintel({"token", "new", "bob", "--out", out, "--append", tokens});
  CHECK(again.code == 1);
  CHECK_THAT(again.err, Catch::Contains("--out " + out));
  CHECK(text_of(out) == token);
  CHECK_THAT(text_of(tokens), !Catch::Contains("bob"));
  // A token that no server knows is not left behind.
  const std::string lost = (directory.path() / "lost").string();
  CHECK(run_lintel({"token", "new", "eve", "--out", lost, "--append", "/none/x"}).code == 1);
  CHECK_FALSE(std::filesystem::exists(lost));
  CHECK_THAT(run_lintel({"token", "new", "eve", "--out", lost}).out,
             Catch::StartsWith("eve generate,score sha256:"));
}

TEST_CASE("a terminal shows how long a server has been silent, and is then cleaned") {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  REQUIRE(terminal >= 0);
  REQUIRE(grantpt(terminal) == 0);
  REQUIRE(unlockpt(terminal) == 0);
  const int err = open(ptsname(terminal), O_RDWR | O_NOCTTY);
  REQUIRE(err >= 0);
  cli::Console console(STDIN_FILENO, STDOUT_FILENO, err);
  std::string drawn;
  const auto read_until = [&](const std::string& text) {
    char bytes[256];
    while (drawn.find(text) == std::string::npos) {
      const ssize_t got = read(terminal, bytes, sizeof bytes);
      if (got <= 0) break;
      drawn.append(bytes, static_cast<std::size_t>(got));
    }
  };
  {
    cli::Waiting waiting(console, "waiting for a test", std::chrono::milliseconds(1));
    read_until(" s");
    waiting.stop();
  }
  CHECK_THAT(drawn, Catch::Contains("waiting for a test, 0 s"));
  {
    // A text of the moment, which may take until it is cancelled.
    std::atomic<int> percent{0};
    cli::Waiting waiting(
        console,
        [&percent](Cancellation& cancellation) {
          if (++percent > 2) cancellation.wait_for(std::chrono::minutes(1));
          return "loading: " + std::to_string(percent) + " %";
        },
        std::chrono::milliseconds(1));
    read_until("loading: 2 %, 0 s");
    waiting.stop();
  }
  CHECK_THAT(drawn, Catch::Contains("loading: 1 %, 0 s"));
  console.err("end");
  drawn.clear();
  read_until("end");
  CHECK_THAT(drawn, Catch::EndsWith("\r\x1b[Kend"));
  close(err);
  close(terminal);
}

}  // namespace lintel::testing
