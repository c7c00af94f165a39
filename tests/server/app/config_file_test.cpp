// SPDX-License-Identifier: Apache-2.0
// The file of --config, and the errors for unknown flags and keys.
#include <fstream>
#include <sstream>
#include <tuple>

#include "server/app/options.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

using Catch::Contains;

// The options and the error of a command line, one of them empty.
struct Parsed {
  ServerOptions options;
  std::string error;
};

Parsed parse(std::vector<std::string> flags) {
  std::vector<const char*> argv = {"lintel-server"};
  for (const std::string& flag : flags) argv.push_back(flag.c_str());
  Parsed parsed;
  std::string help;
  try {
    parse_server_options(static_cast<int>(argv.size()), argv.data(), &parsed.options, &help);
  } catch (const UsageError& error) {
    parsed.error = error.what();
  }
  return parsed;
}

struct File {
  Parsed parse(const std::string& text, std::vector<std::string> flags = {}) const {
    std::ofstream(path) << text;
    flags.insert(flags.begin(), {"--config", path});
    return testing::parse(std::move(flags));
  }
  std::string error(const std::string& text) const { return parse(text).error; }
  // "FILE, line N: "
  std::string at(int line) const { return path + ", line " + std::to_string(line) + ": "; }

  TemporaryDirectory directory;
  const std::string path = directory.path() / "server.toml";
};

TEST_CASE("a configuration file is read as TOML and as INI") {
  const File file;
  const Parsed good = file.parse(
      "; of INI\n# of TOML\n\n"
      "model = [\n  \"x=weights/a b#1\",  # the first\n  'other=weights/\\b',\n]\n"
      "listen = unix:/run/lintel.sock  # without quotes\n"
      "session-memory=\"64MiB\"\r\n"
      "  workers = 5\n"
      "admin-certificate = \"O=a \\\"b\\\", c\"\n"
      "tls-cert = c\ntls-key = k\ntls-client-ca = ca\n"
      "channelz\n"
      "insecure-public = false");
  CHECK(good.error.empty());
  REQUIRE(good.options.models.directories.size() == 2);
  CHECK(good.options.models.directories[0].path == "weights/a b#1");
  CHECK(good.options.models.directories[1].path == "weights/\\b");
  CHECK(good.options.listen.unix_path == "/run/lintel.sock");
  CHECK(good.options.sessions.session_memory_bytes == 64u << 20);
  CHECK(good.options.models.scheduling.workers == 5);
  CHECK(good.options.security.admin_certificates == std::vector<std::string>{"O=a \"b\", c"});
  CHECK(good.options.monitoring.channelz);
  CHECK_FALSE(good.options.security.insecure_public);
}

TEST_CASE("an error in a configuration file names the file and line") {
  const File file;
  const std::vector<std::tuple<std::string, int, std::string>> cases = {
      {"model = [\"a\"", 1, "] of its list"},
      {"# first\nmodel = [\"a\"\nworkers = 2\n", 2, "] of its list"},
      {"model = [\"a\",\nworkers = 2\n", 1, "] of its list"},
      {"model = [\"a\" \"b\"]\n", 1, "comma"},
      {"model = \"a\n", 1, "\" at the end"},
      {"model = \"a\"\nlisten = '127.0.0.1:1\n", 2, "' at the end"},
      {"model = \"a\\qb\"\n", 1, "\\q"},
      {"model = \"a\" b\n", 1, "'b' stands after"},
      {"model = a b\n", 1, "needs quotes"},
      {"model = a]\n", 1, "'a]'"},
      {"model = \"a\"\n\nworkers =\n", 3, "workers: a value is missing"},
      {"model = \"a\"\nworkers\n", 2, "workers: a value is missing"},
      {"[server]\nmodel = \"a\"\n", 1, "no sections"},
      {"model = \"a\"\nworkers = 1\nworkers = 2\n", 3,
       "given twice, first in " + file.path + ", line 2"},
      {"model = \"a\"\nworkers = [1, 2]\n", 2, "one value"},
      {"model = \"a\"\nchannelz = maybe\n", 2, "true or false"},
      {"model = \"a\"\nwrokers = 2\n", 2, "no key wrokers, did you mean workers?"},
      {"model = \"a\"\nmax_batch_rows = 2\n", 2, "did you mean max-batch-rows?"},
      {"model = \"a\"\nconfig = \"b\"\n", 2, "command line"},
      {"model = \"a\"\nworkers = 0\n", 2, "--workers: '0' is not a whole number from 1 to 1024"},
      {"model = \"a\"\nlog-level = loud\n", 2, "--log-level: 'loud' is not one of"},
      {"model = \"a\"\nsession-memory = 1KBB\n", 2, "--session-memory"},
  };
  for (const auto& [text, line, why] : cases) {
    INFO(text);
    const std::string error = file.error(text);
    CHECK(error.find(file.at(line)) == 0);
    CHECK_THAT(error, Contains(why));
  }
}

TEST_CASE("an error of the command line does not name the configuration file") {
  const File file;
  const Parsed parsed = file.parse("model = \"a\"\nworkers = 3\n", {"--workers", "0"});
  CHECK(parsed.error == "--workers: '0' is not a whole number from 1 to 1024");
}

TEST_CASE("a configuration file that cannot be read: the error has the reason") {
  CHECK(parse({"--config", "/no/such.toml"}).error ==
        "--config: /no/such.toml: No such file or directory");
  CHECK(parse({"--config", "/tmp"}).error == "--config: /tmp: Is a directory");
}

TEST_CASE("an unknown flag: the error suggests a similar one") {
  CHECK(parse({"--model", "m", "--wrokers", "2"}).error ==
        "there is no flag --wrokers, did you mean --workers?");
  CHECK(parse({"--model", "m", "--max_batch_rows=2"}).error ==
        "there is no flag --max_batch_rows, did you mean --max-batch-rows?");
  CHECK(parse({"--model", "m", "--xyzzy"}).error == "there is no flag --xyzzy");
  // Flags of other servers.
  CHECK(parse({"-m", "m"}).error == "there is no flag -m: --model PATH names a model");
  for (const char* const flag : {"-hf", "--hf-repo"}) {
    CHECK(parse({flag, "org/x"}).error ==
          std::string("there is no flag ") + flag +
              ": ORG/NAME[:QUANT] of a hub is given without a flag: lintel-server ORG/NAME");
  }
  CHECK(parse({"-ngl", "99", "--model", "m"}).error ==
        "there is no flag -ngl: models are computed on the CPU");
  for (const char* const flag : {"--port", "--host"}) {
    CHECK_THAT(parse({"--model", "m", flag, "1"}).error,
               Contains(std::string("there is no flag ") + flag + ": --http-listen HOST:PORT"));
  }
  CHECK_THAT(parse({"--model", "m", "--ctx-size", "1"}).error, Contains("--max-prompt-tokens"));
  CHECK_THAT(parse({"--n-predict", "9", "--model", "m"}).error, Contains(": --max-new-tokens N"));
  CHECK_THAT(parse({"--api-key", "k", "--model", "m"}).error, Contains(": --auth-tokens FILE"));
  CHECK(parse({"more", "--model", "m"}).error == "'more' belongs to no flag");
  CHECK_THAT(parse({"/tmp"}).error, Contains("--model"));
  CHECK_THAT(parse({"--model", "m", "--log-level", "wran"}).error, Contains("did you mean warn?"));
  CHECK_THAT(parse({"--model", "m", "--log-format", "jsn"}).error, Contains("did you mean json?"));
  CHECK_THAT(parse({"--model", "m", "--speculation", "autom"}).error,
             Contains("one of: off, auto, on") && Contains("did you mean auto?"));
  CHECK(parse({"--model"}).error == "--model: a value is missing: --model [NAME=]PATH");
  CHECK(parse({"--model", "m", "--workers", "2", "--workers", "3"}).error ==
        "--workers: is given more than once");
}

TEST_CASE("help explains the flags and fits a terminal of 80 columns") {
  const char* const argv[] = {"lintel-server", "--help"};
  ServerOptions options;
  std::string help;
  REQUIRE_FALSE(parse_server_options(2, argv, &options, &help));
  CHECK_THAT(help, Contains("Without --model, --models, --model-repository and --config") &&
                       Contains("Examples:") && Contains("lintel-server --config") &&
                       Contains("Exit status: 0"));
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    const bool is_heading = !line.empty() && line.back() == ':' && line.front() != ' ';
    INFO(line);
    CHECK((line.size() <= 80 || is_heading));
  }
}

TEST_CASE("an error of flags is reported in the log's format") {
  const File file;
  CHECK(parse({"--log-format", "json", "--model", "m", "--wrokers"}).options.logging.json);
  CHECK(parse({"--workers=0", "--model", "m", "--log-format=json"}).options.logging.json);
  CHECK(parse({"--log-format", "json"}).options.logging.json);
  CHECK(file.parse("model = [\nlog-format = \"json\"\n").options.logging.json);
  CHECK(file.parse("log-format = json\nworkers = 0\n").options.logging.json);
  CHECK_FALSE(file.parse("log-format = json\n", {"--workers", "0", "--log-format", "text"})
                  .options.logging.json);
}

}  // namespace
}  // namespace lintel::testing
