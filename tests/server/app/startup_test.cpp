// SPDX-License-Identifier: Apache-2.0
// What ends lintel-server before it serves: soon, with the flag and the reason, as the log is
// written.
#include "server/app/startup.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "model/lora/adapter.h"
#include "server/app/options.h"
#include "tests/support/catch.h"
#include "tests/support/certificate_authority.h"
#include "tests/support/process.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

using Catch::Contains;

struct Model {
  Model() { write_random_model(path, tiny_config(TinyModel::kTokens), /*seed=*/5); }
  TemporaryDirectory directory;
  const std::string path = directory.path() / "tiny";
};

struct Ended {
  int code = 0;
  std::string out, err;
};

// A command line of lintel-server, without HTTP where `flags` do not name it.
std::vector<std::string> command_of(const std::vector<std::string>& flags) {
  std::vector<std::string> words = {LINTEL_SERVER_BINARY};
  if (std::ranges::find(flags, "--http-listen") == flags.end()) {
    words.insert(words.end(), {"--http-listen", "off"});
  }
  words.insert(words.end(), flags.begin(), flags.end());
  return words;
}

// Runs lintel-server with these flags to its end.
Ended run(const std::vector<std::string>& flags) {
  Process server(command_of(flags));
  const int code = server.wait();
  return {code, server.out(), server.err()};
}

// A model whose load fails, too: the error under test has to come before.
struct BrokenModel : Model {
  BrokenModel() { std::ofstream(path + "/config.json", std::ios::app) << "}"; }
};

// Runs lintel-server under a limit of the shell: "-v 500000".
Ended run_limited(const std::string& limit, const std::string& model,
                  const std::vector<std::string>& before = {}) {
  std::vector<std::string> words = before;
  for (const std::string& word : std::vector<std::string>{
           "/bin/bash", "-c", "ulimit " + limit + " && exec \"$@\"", "sh", LINTEL_SERVER_BINARY,
           "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--metrics-listen",
           "127.0.0.1:0", "--workers", "2", "--log-level", "warn", "--model", model}) {
    words.push_back(word);
  }
  Process server(words);
  server.read_out_until("ready");  // or its end
  server.send(SIGKILL);
  const int code = server.wait();
  return {code, server.out(), server.err()};
}

TEST_CASE("a start with too few threads or too little memory ends with a line that says so") {
  const Model model;
  const auto check = [](const Ended& ended) {
    CHECK(ended.code == 1);
    CHECK(ended.out.empty());
    CHECK(std::ranges::count(ended.err, '\n') == 1);
    CHECK_THAT(ended.err, Contains("threads can run, a server of these flags needs") ||
                              Contains("there is not enough memory") ||
                              Contains("a thread cannot be started"));
  };
  for (const char* const limit : {"-v 150000", "-v 200000", "-v 300000"}) {
    INFO(limit);
    check(run_limited(limit, model.path));
  }
  // Around what it needs, a start may succeed.
  for (const char* const limit :
       {"-v 360000", "-v 390000", "-v 420000", "-v 450000", "-v 495000", "-v 540000", "-v 550000",
        "-v 570000", "-v 585000", "-v 600000", "-v 615000", "-v 630000", "-v 645000", "-v 700000",
        "-v 800000", "-v 1000000"}) {
    INFO(limit);
    const Ended ended = run_limited(limit, model.path);
    if (ended.out.empty()) check(ended);
  }
  // A server of 2 workers on a small machine has room well within this.
  CHECK_THAT(run_limited("-v 8000000", model.path).out, Contains("ready"));
  CHECK_THAT(run_limited("-v 300000", model.path).err, Contains("RLIMIT_AS"));
  const std::string program = "/usr/bin/setpriv";
  // Only root can be another user, whose threads alone count.
  if (geteuid() != 0 || !std::filesystem::exists(program)) return;
  const std::vector<std::string> other = {program, "--reuid", "54321", "--clear-groups"};
  for (const char* const limit : {"-u 2", "-u 6", "-u 12", "-u 20", "-u 22", "-u 30"}) {
    INFO(limit);
    const Ended ended = run_limited(limit, model.path, other);
    check(ended);
    CHECK_THAT(ended.err, Contains("ulimit -u"));
  }
}

TEST_CASE("a server that is ready has at most the threads that its start has tried") {
  const Model model;
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--http-listen", "off"},
        {"--http-listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--workers", "3"},
        {"--session-store", model.directory.path() / "store", "--session-store-threads", "5",
         "--http-listen", "127.0.0.1:0", "--http-threads", "7"}}) {
    std::vector<std::string> flags = {"lintel-server", "--model", model.path, "--listen",
                                      "127.0.0.1:0"};
    flags.insert(flags.end(), more.begin(), more.end());
    std::vector<char*> arguments;
    for (std::string& flag : flags) arguments.push_back(flag.data());
    ServerOptions options;
    std::string help;
    REQUIRE(parse_server_options(static_cast<int>(arguments.size()), arguments.data(), &options,
                                 &help));
    flags[0] = LINTEL_SERVER_BINARY;
    Process server(flags);
    server.read_out_until("ready");
    std::ifstream status("/proc/" + std::to_string(server.pid()) + "/status");
    int threads = 0;
    for (std::string word; status >> word;) {
      if (word == "Threads:") status >> threads;
    }
    CHECK(threads > 0);
    CHECK(threads <= threads_at_start(options));
    server.send(SIGKILL);
    server.wait();
  }
}

TEST_CASE("files of flags are checked before a model is loaded") {
  const BrokenModel model;
  const CertificateAuthority authority;
  const IssuedCertificate one = authority.issue("one"), two = authority.issue("two");
  const std::string tokens = model.directory.path() / "tokens";
  std::ofstream(tokens) << "alice\n";
  const std::string pickled = model.directory.path() / "model.pth";
  std::ofstream(pickled) << "PK";
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--tls-cert", "/no/c.pem", "--tls-key", one.key},
       "--tls-cert: /no/c.pem: cannot be read: No such file or directory"},
      {{"--tls-cert", one.certificate, "--tls-key", "/no/k.pem"},
       "--tls-key: /no/k.pem: cannot be read: No such file or directory"},
      {{"--tls-cert", one.certificate, "--tls-key", two.key}, "--tls-key: " + two.key + ": is not"},
      {{"--tls-cert", one.key, "--tls-key", one.key},
       "--tls-cert, --tls-key: " + one.key + ": holds a private key"},
      {{"--tls-cert", one.certificate, "--tls-key", one.certificate},
       "--tls-cert, --tls-key: " + one.certificate + ": holds a certificate"},
      {{"--tls-cert", one.certificate, "--tls-key", one.key, "--tls-client-ca", one.key},
       "--tls-key, --tls-client-ca: " + one.key + ": holds a private key"},
      {{"--auth-tokens", "/no/tokens"},
       "--auth-tokens: /no/tokens: cannot be read: No such file or directory"},
      {{"--auth-tokens", model.directory.path()}, "Is a directory"},
      {{"--auth-tokens", tokens}, "--auth-tokens: " + tokens + ", line 1:"},
      {{"--model-repository", "/no/models"}, "--model-repository: /no/models: No such file"},
      {{"--model-repository", tokens}, "--model-repository: " + tokens + ": Not a directory"},
      {{"--model", "other=/no/model"}, "--model: /no/model: No such file or directory"},
      {{"--model", tokens},
       "--model: " + tokens + ": expected a model's directory or a .gguf file"},
      {{"--model", pickled}, "training/README.md converts them"},
      {{"--adapter", "a=/no/adapter"}, "--adapter: /no/adapter: No such file or directory"},
      {{"--adapter", "tiny:a=" + tokens}, "--adapter: " + tokens + ": Not a directory"},
      {{"--initial-states", "/no/states"}, "--initial-states: /no/states: No such file"},
  };
  for (const auto& [more, why] : cases) {
    std::vector<std::string> flags = {"--model", model.path, "--listen", "127.0.0.1:0"};
    flags.insert(flags.end(), more.begin(), more.end());
    INFO(why);
    const Ended ended = run(flags);
    CHECK(ended.code == 1);
    CHECK(ended.out.empty());
    CHECK_THAT(ended.err, Contains(why) && !Contains("config.json"));
  }
}

TEST_CASE("--check-config says what a start would, loads no model and opens no port") {
  const Model good;
  const BrokenModel broken;
  Process first(command_of({"--model", good.path, "--listen", "127.0.0.1:0"}));
  const std::string line = first.read_out_until("\n");
  const std::string address = line.substr(line.rfind(' ') + 1, line.size() - line.rfind(' ') - 2);
  const Ended valid = run({"--check-config", "--model", broken.path, "--listen", address});
  INFO(valid.err);
  CHECK(valid.code == 0);
  CHECK(valid.out == "the configuration is valid\n");
  const std::string file = good.directory.path() / "server.toml";
  std::ofstream(file) << "wrokers = 2\n";
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--model", good.path, "--workers", "0"}, "--workers: '0' is not a whole number"},
      {{"--config", file}, "wrokers"},
      {{"--model", "/no/model"}, "--model: /no/model: No such file or directory"},
      {{"--model-repository", good.directory.path(), "--load-model", "other"},
       "--load-model other: no such model in "}};
  for (const auto& [more, why] : cases) {
    std::vector<std::string> flags = {"--check-config"};
    flags.insert(flags.end(), more.begin(), more.end());
    const Ended wrong = run(flags);
    CHECK(wrong.code == 2);
    CHECK(wrong.out.empty());
    CHECK_THAT(wrong.err, Contains(why));
  }
}

TEST_CASE("an adapter that does not fit the model ends the start with its name and file") {
  const Model model;
  const std::string adapter = model.path + "/adapters/bad";
  write_random_adapter(adapter, tiny_config(TinyModel::kTokens));
  std::ofstream(adapter + "/adapter_config.json") << R"({"peft_type": "LORA", "use_dora": true})";
  const Ended ended = run({"--model", model.path, "--listen", "127.0.0.1:0"});
  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, Contains("adapter bad of model tiny cannot be loaded") &&
                            Contains(adapter + "/adapter_config.json"));
  // And so one that --adapter gives.
  const TemporaryDirectory elsewhere;
  std::filesystem::rename(adapter, elsewhere.path() / "bad");
  const Ended given = run({"--model", model.path, "--listen", "127.0.0.1:0", "--adapter",
                           "mine=" + (elsewhere.path() / "bad").string()});
  CHECK(given.code == 1);
  CHECK_THAT(given.err, Contains("adapter mine of model tiny cannot be loaded") &&
                            Contains("bad/adapter_config.json"));
}

TEST_CASE("an initial state that is no snapshot ends the start with its file") {
  const Model model;
  const TemporaryDirectory states;
  std::ofstream(states.path() / "tutor.snapshot") << "dear";
  const Ended ended = run({"--model", model.path, "--listen", "127.0.0.1:0", "--initial-states",
                           states.path().string()});
  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, Contains("--initial-states: " + states.path().string() +
                                 "/tutor.snapshot: snapshot: "));
}

TEST_CASE("an address in use is reported before a model is loaded") {
  const Model good;
  const BrokenModel broken;
  Process first(command_of({"--model", good.path, "--listen", "127.0.0.1:0"}));
  const std::string line = first.read_out_until("\n");
  const std::string address = line.substr(line.rfind(' ') + 1, line.size() - line.rfind(' ') - 2);
  const Ended ended = run({"--model", broken.path, "--listen", address});
  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, Contains("cannot listen on " + address + ": Address already in use") &&
                            !Contains("config.json"));
  for (const char* const flag : {"--http-listen", "--metrics-listen"}) {
    INFO(flag);
    const Ended other = run({"--model", broken.path, "--listen", "127.0.0.1:0", flag, address});
    CHECK(other.code == 1);
    CHECK_THAT(other.err, Contains("cannot listen on " + address) &&
                              Contains("Address already in use") && !Contains("config.json"));
  }
}

TEST_CASE("the error for an address in use names its flag") {
  const Model model;
  Process first(command_of({"--model", model.path, "--listen", "127.0.0.1:0"}));
  const std::string line = first.read_out_until("\n");
  const std::string address = line.substr(line.rfind(' ') + 1, line.size() - line.rfind(' ') - 2);
  for (const std::string flag : {"--listen", "--http-listen", "--metrics-listen"}) {
    std::vector<std::string> flags = {"--model", model.path, flag, address};
    if (flag != "--listen") flags.insert(flags.end(), {"--listen", "127.0.0.1:0"});
    const Ended ended = run(flags);
    CHECK(ended.code == 1);
    CHECK_THAT(ended.err, Contains(flag + ": cannot listen on " + address + ": Address already"));
    CHECK_THAT(ended.err, !Contains("takes a free port"));
  }
  const Ended ended = run({"--listen", "127.0.0.1:0", "--http-listen", address});
  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, Contains("in use; --http-listen 127.0.0.1:0 takes a free port"));
}

TEST_CASE("one address for two flags is refused before a model is loaded") {
  const BrokenModel broken;
  const std::string address = "unix:" + (broken.directory.path() / "socket").string();
  const Ended ended = run({"--model", broken.path, "--listen", address, "--http-listen", address});
  CHECK(ended.code == 1);
  CHECK_THAT(ended.err,
             Contains("--http-listen: cannot listen on " + address) && !Contains("config.json"));
}

TEST_CASE("a start without a model serves the packaged ones, and its last line names the page") {
  Process server({LINTEL_SERVER_BINARY, "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0",
                  "--workers", "1"});
  const std::string out = server.read_out_until("/\n");
  CHECK_THAT(out, Catch::Matches("lintel-server ready on 127\\.0\\.0\\.1:[0-9]+\n"
                                 "gRPC on 127\\.0\\.0\\.1:[0-9]+, HTTP on 127\\.0\\.0\\.1:[0-9]+, "
                                 "page: http://127\\.0\\.0\\.1:[0-9]+/\n"));
  server.send(SIGTERM);
  CHECK(server.wait() == 0);
  for (const std::string name : {"mnist-linear-small", "text-linear-small"}) {
    CHECK_THAT(server.err(), Contains(name));
  }
}

TEST_CASE("two servers at once: HTTP's default port is the first one's, the second has none",
          "[threat-35]") {
  const Model model;
  const auto flags = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {LINTEL_SERVER_BINARY, "--model", model.path, "--listen",
                                      "127.0.0.1:0"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  // Another program of this machine may have the port, too: then the first one has none either.
  Process first(flags({}));
  first.read_out_until("\ngRPC on ");
  Process second(flags({"--log-level", "warn"}));
  const std::string without = "no HTTP: 127.0.0.1:8080 cannot be used\n";
  CHECK_THAT(second.read_out_until(without),
             Catch::Matches("lintel-server ready on (127\\.0\\.0\\.1:[0-9]+)\n"
                            "gRPC on 127\\.0\\.0\\.1:[0-9]+, " +
                            without));
  // A named address that is taken stays an error.
  const Ended named =
      run({"--model", model.path, "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:8080"});
  CHECK(named.code == 1);
  CHECK_THAT(named.err,
             Contains("--http-listen: cannot listen on 127.0.0.1:8080: Address already"));
  for (Process* const server : {&first, &second}) {
    server->send(SIGTERM);
    CHECK(server->wait() == 0);
  }
  CHECK_THAT(second.err(), Contains("HTTP is off: cannot listen on 127.0.0.1:8080: Address already "
                                    "in use; --http-listen 127.0.0.1:0 takes a free port"));
  const std::string with = "HTTP on 127.0.0.1:8080, page: http://127.0.0.1:8080/\n";
  CHECK_THAT(first.out(), Catch::EndsWith(with) || Catch::EndsWith(without));
}

TEST_CASE("a start without HTTP says nothing of it: off, or gRPC on a unix socket", "[threat-99]") {
  const Model model;
  const std::string socket = "unix:" + (model.directory.path() / "socket").string();
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--listen", socket}, {"--listen", "127.0.0.1:0", "--http-listen", "off"}}) {
    std::vector<std::string> words = {LINTEL_SERVER_BINARY, "--model", model.path};
    words.insert(words.end(), flags.begin(), flags.end());
    Process server(words);
    server.read_out_until("\n");
    server.send(SIGTERM);
    CHECK(server.wait() == 0);
    CHECK(std::ranges::count(server.out(), '\n') == 1);
    CHECK_THAT(server.err(), !Contains("HTTP"));
  }
  // The last line names a unix socket of HTTP, and no page, which no browser could open.
  const std::string http = "unix:" + (model.directory.path() / "http").string();
  Process server(
      {LINTEL_SERVER_BINARY, "--model", model.path, "--listen", socket, "--http-listen", http});
  CHECK_THAT(server.read_out_until("http\n"),
             Catch::EndsWith("gRPC on " + socket + ", HTTP on " + http + "\n"));
}

TEST_CASE("a server in whose memory not one session fits does not start") {
  const Model model;
  for (const std::string flag : {"--session-memory", "--identity-memory"}) {
    const Ended ended = run({"--model", model.path, "--listen", "127.0.0.1:0", flag, "100B"});
    CHECK(ended.code == 1);
    CHECK(ended.out.empty());
    CHECK_THAT(ended.err, Contains("model tiny: one session needs ") &&
                              Contains(" bytes, and " + flag + " is 100"));
  }
}

TEST_CASE("a server without 64 MiB for sessions does not start, and shows its plan of memory") {
  const Model model;
  const Ended ended = run({"--model", model.path, "--listen", "127.0.0.1:0", "--memory-limit",
                           "200MiB", "--request-memory", "100MiB"});
  CHECK(ended.code == 1);
  CHECK(ended.out.empty());
  for (const char* const part :
       {"memory: limit", "--memory-limit", "memory: weights", "memory: worker buffers",
        "memory: requests", "100 MiB", "memory: queues", "memory: connections", "memory: sessions",
        "memory: sum", "--session-memory auto has ", " 64MiB are required"}) {
    CHECK_THAT(ended.err, Contains(part));
  }
  // Sizes that are given are not checked against the limit.
  Process server(command_of({"--model", model.path, "--listen", "127.0.0.1:0", "--memory-limit",
                             "200MiB", "--request-memory", "100MiB", "--session-memory", "1GiB"}));
  server.read_out_until("ready on");
  server.send(SIGTERM);
  CHECK(server.wait() == 0);
  CHECK_THAT(server.err(), Contains("the sum is more than 0.9 of the limit"));
  CHECK_THAT(server.err(), Contains("model tiny: --session-memory holds "));
}

TEST_CASE("a start without a loaded model: a warning names the repository's models") {
  const TemporaryDirectory repository;
  const auto warning = [&] {
    Process server(
        command_of({"--model-repository", repository.path(), "--listen", "127.0.0.1:0"}));
    server.read_out_until("ready on");
    server.send(SIGTERM);
    CHECK(server.wait() == 0);
    return server.err();
  };
  CHECK_THAT(warning(), Contains("no model is loaded") &&
                            Contains(repository.path().string() + " has none yet"));
  write_random_model(repository.path() / "tiny", tiny_config(TinyModel::kTokens), /*seed=*/5);
  CHECK_THAT(warning(),
             Contains("no model is loaded") && Contains("--load-model") && Contains("one of tiny"));
}

TEST_CASE("the last error of the server is a line of JSON if the log is") {
  const BrokenModel model;
  const std::string config = model.directory.path() / "server.toml";
  std::ofstream(config) << "log-format = \"json\"\nmodel = [\"a\"\n";
  const std::vector<std::pair<std::vector<std::string>, int>> cases = {
      {{"--model", model.path}, 1},
      {{"--model", model.path, "--log-level", "off"}, 1},
      {{"--model", model.path, "--auth-tokens", "/no/tokens"}, 1},
      {{"--model", model.path, "--workers", "0"}, 2},
      {{"--model", model.path, "--wrokers", "2"}, 2},
      {{"--load-model", "a"}, 2},
      {{"--config", config}, 2},
  };
  for (const auto& [more, code] : cases) {
    std::vector<std::string> flags = more;
    if (more.empty() || more.front() != "--config") {
      flags.insert(flags.end(), {"--log-format", "json"});
    }
    const Ended ended = run(flags);
    CHECK(ended.code == code);
    std::istringstream lines(ended.err);
    nlohmann::json last;
    for (std::string line; std::getline(lines, line);) {
      INFO(line);
      REQUIRE_NOTHROW(last = nlohmann::json::parse(line));
    }
    INFO(ended.err);
    REQUIRE(last.is_object());
    CHECK(last["level"] == "critical");
    CHECK(last["time"].is_string());
    CHECK_FALSE(last["message"].get<std::string>().empty());
  }
}

}  // namespace
}  // namespace lintel::testing
