// SPDX-License-Identifier: Apache-2.0
// Flags of the connection: every sub-command heeds every one of them, before the environment.
#include <chrono>
#include <cstdlib>
#include <fstream>

#include "tests/client/support/fake_server.h"
#include "tests/client/support/run_lintel.h"
#include "tests/support/catch.h"
#include "tests/support/certificate_authority.h"

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

struct Command {
  std::vector<std::string> words;
  bool takes_model = false;
  bool names_model = false;  // the model is an argument, and wins over --model
};

const std::vector<Command>& commands() {
  static const std::vector<Command> all = {
      {{"generate", "--prompt-tokens", "1", "--max-new-tokens", "1"}, true},
      {{"complete", "--unconditional", "1"}, true},
      {{"score", "--input", "-"}, true},
      {{"session", "create"}, true},
      {{"session", "get", "id"}},
      {{"session", "list"}, true},
      {{"session", "continue", "id", "--prompt-tokens", "1", "--max-new-tokens", "1"}, true},
      {{"session", "delete", "id"}},
      {{"model", "list"}},
      {{"model", "get"}, true},
      {{"model", "load", "name"}},
      {{"model", "unload", "name"}},
      {{"model", "load-adapter", "name"}, true},
      {{"model", "unload-adapter", "name"}, true},
      {{"admin", "log-level"}},
      {{"health"}},
  };
  return all;
}

std::string text_of(const Command& command) {
  std::string text = "lintel";
  for (const std::string& word : command.words) text += " " + word;
  return text;
}

CommandResult run(const Command& command, const std::vector<std::string>& flags) {
  std::vector<std::string> line = command.words;
  line.insert(line.end(), flags.begin(), flags.end());
  return run_lintel(line, "[1,2]\n");
}

}  // namespace

TEST_CASE("every sub-command takes its connection from its flags and not from the environment") {
  FakeServer server;
  const CertificateAuthority authority;
  const IssuedCertificate own = authority.issue("client");
  for (const Command& command : commands()) {
    INFO(text_of(command));
    const std::vector<std::string> there = {"--address", server.address()};
    const auto with = [&there](std::vector<std::string> more) {
      more.insert(more.end(), there.begin(), there.end());
      return more;
    };
    {
      const ScopedVariable variable("LINTEL_ADDRESS", "127.0.0.1:1");
      CHECK(run(command, {"--deadline", "20"}).code == 3);
      const CommandResult result = run(command, there);
      INFO(result.err);
      CHECK(result.code == 0);
    }
    {
      const ScopedVariable variable("LINTEL_TOKEN", "of-the-environment");
      CHECK(run(command, there).code == 0);
      CHECK(server.last_seen().token == "Bearer of-the-environment");
      CHECK(run(command, with({"--token", "of-the-flag"})).code == 0);
      CHECK(server.last_seen().token == "Bearer of-the-flag");
    }
    {
      const ScopedVariable variable("LINTEL_DEADLINE", "7000");
      const auto now = std::chrono::system_clock::now();
      CHECK(run(command, there).code == 0);
      CHECK(server.last_deadline() > now + std::chrono::seconds(6000));
      CHECK(run(command, with({"--deadline", "70"})).code == 0);
      CHECK(server.last_deadline() < now + std::chrono::seconds(6000));
    }
    if (command.takes_model) {
      const ScopedVariable variable("LINTEL_MODEL", "of-the-environment");
      server.model.set_name("of-the-flag");  // the name of a chosen model
      CHECK(run(command, with({"--model", "of-the-flag"})).code == 0);
      CHECK(server.last_seen().model == "of-the-flag");
      server.model.set_name("of-the-environment");
      CHECK(run(command, there).code == 0);
      CHECK(server.last_seen().model == "of-the-environment");
    }
    {
      const ScopedVariable variable("LINTEL_TLS_CA", "/environment.pem");
      CHECK_THAT(run(command, there).err, Catch::Contains("/environment.pem"));
      const std::string err = run(command, with({"--tls-ca", "/flag.pem"})).err;
      CHECK_THAT(err, Catch::Contains("--tls-ca") && Catch::Contains("/flag.pem"));
    }
    {
      const ScopedVariable variable("LINTEL_TLS_CERT", "/environment.pem");
      const std::string err =
          run(command, with({"--tls-cert", "/flag.pem", "--tls-key", own.key})).err;
      CHECK_THAT(err, Catch::Contains("--tls-cert") && Catch::Contains("/flag.pem"));
    }
    {
      const ScopedVariable variable("LINTEL_TLS_KEY", "/environment.pem");
      const std::string err =
          run(command, with({"--tls-cert", own.certificate, "--tls-key", "/flag.pem"})).err;
      CHECK_THAT(err, Catch::Contains("--tls-key") && Catch::Contains("/flag.pem"));
    }
    {
      const ScopedVariable variable("LINTEL_PROXY", "environment");
      CHECK_THAT(run(command, there).err, Catch::Contains("--proxy 'environment'"));
      CHECK_THAT(run(command, with({"--proxy", "flag"})).err, Catch::Contains("--proxy 'flag'"));
    }
  }
}

TEST_CASE("a variable that makes no sense fails the commands that read it alone") {
  const ScopedVariable variable("LINTEL_DEADLINE", "soon");
  CHECK(run_lintel({"token", "new", "alice"}).code == 0);
  CHECK(run_lintel({"model", "list"}).code == 2);
  FakeServer server;
  CHECK(run_lintel({"model", "list", "--deadline", "20", "--address", server.address()}).code == 0);
}

TEST_CASE("an address may lack its port, and an invalid one is refused with its flag") {
  // No server listens at the default port of another loopback address.
  const CommandResult alone = run_lintel({"health", "--address", "127.255.255.254"});
  CHECK(alone.code == 3);
  CHECK_THAT(alone.err, Catch::Contains("no server answers at 127.255.255.254:50051") &&
                            Catch::Contains("lintel-server --model DIR"));
  for (const char* address :
       {"http://127.0.0.1:50051", "https://a", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:70000",
        "127.0.0.1:x", ":50051", "a b", "::1:50051x", "[::1", "a:1/b"}) {
    INFO(address);
    const CommandResult result = run_lintel({"health", "--address", address});
    CHECK(result.code == 2);
    CHECK_THAT(result.err, Catch::Contains("lintel: --address '" + std::string(address) + "': "));
  }
}

TEST_CASE("TLS files with other content are refused before the server is called") {
  const CertificateAuthority authority;
  const IssuedCertificate own = authority.issue("one"), other = authority.issue("other");
  const auto error = [](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"health", "--address", "127.0.0.1:1"});
    const CommandResult result = run_lintel(flags);
    CHECK(result.code == 1);
    return result.err;
  };
  CHECK_THAT(
      error({"--tls-ca", own.key}),
      Catch::Contains("--tls-ca") && Catch::Contains("holds no certificate but a private key"));
  CHECK_THAT(error({"--tls-ca", "/"}), Catch::Contains("--tls-ca") && Catch::Contains("directory"));
  CHECK_THAT(error({"--tls-cert", own.certificate, "--tls-key", own.certificate}),
             Catch::Contains("--tls-key") && Catch::Contains("no private key but a certificate"));
  CHECK_THAT(error({"--tls-cert", own.certificate, "--tls-key", other.key}),
             Catch::Contains("--tls-key") && Catch::Contains("is not the key of"));
  const CommandResult alone = run_lintel({"health", "--tls-cert", own.certificate});
  CHECK(alone.code == 2);
  CHECK_THAT(alone.err, Catch::Contains("--tls-cert and --tls-key go together"));
}

}  // namespace lintel::testing
