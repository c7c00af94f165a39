// SPDX-License-Identifier: Apache-2.0
// The programs over TLS and with tokens.
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/cli/processes.h"
#include "tests/support/catch.h"
#include "tests/support/certificate_authority.h"

namespace lintel::testing {

TEST_CASE("lintel talks TLS and mutual TLS with --tls-ca, --tls-cert and --tls-key") {
  const CertificateAuthority authority;
  const IssuedCertificate own = authority.issue("server"), client = authority.issue("client");
  const ServerProcess server({TinyModel::kTokens}, {"--tls-cert", own.certificate, "--tls-key",
                                                    own.key, "--tls-client-ca", authority.ca()});
  const std::vector<std::string> health = {"health", "--deadline", "10"};
  const auto with = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), health.begin(), health.end());
    return server.lintel(flags);
  };
  const Result good =
      with({"--tls-ca", authority.ca(), "--tls-cert", client.certificate, "--tls-key", client.key});
  CHECK(good.code == 0);
  CHECK(good.out == "serving\n");
  const Result plain = with({});
  CHECK(plain.code == 3);
  CHECK_THAT(plain.err, Catch::Contains("does the server speak TLS?"));
  const Result unknown = with({"--tls-ca", authority.ca()});
  CHECK(unknown.code == 3);
  CHECK_THAT(unknown.err, !Catch::Contains("does the server speak TLS?"));
  CHECK(with({"--tls-ca", authority.ca(), "--tls-cert", client.certificate}).code == 2);
  CHECK(with({"--tls-ca", "/no/such/ca"}).code == 1);

  const std::vector<std::string> without_ca = {"--tls-cert", client.certificate, "--tls-key",
                                               client.key};
  CHECK(with(without_ca).code == 3);  // the system's authorities have not signed it
  setenv("SSL_CERT_FILE", authority.ca().c_str(), 1);
  CHECK(with(without_ca).code == 0);
  setenv("SSL_CERT_FILE", "/no/such/ca", 1);
  CHECK(with(without_ca).code == 1);
  unsetenv("SSL_CERT_FILE");

  const Result generated = server.lintel(
      {"generate", "--prompt-tokens", "1,2", "--max-new-tokens", "5", "--format", "tokens",
       "--tls-ca", authority.ca(), "--tls-cert", client.certificate, "--tls-key", client.key});
  INFO(generated.err);
  CHECK(generated.code == 0);
}

TEST_CASE("a token that lintel makes authenticates its owner, with its roles", "[threat-19]") {
  const TemporaryDirectory directory;
  const std::string file = directory.path() / "tokens";
  const auto run = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), LINTEL_CLI);
    Process command(arguments);
    const int code = command.wait();
    return Result{code, command.out(), command.err()};
  };
  const Result made = run({"token", "new", "alice", "--append", file});
  REQUIRE(made.code == 0);
  REQUIRE(made.out.size() == 65);
  const std::string alice = made.out.substr(0, 64);
  CHECK(run({"token", "new", "root", "--roles", "admin", "--append", file}).out != made.out);
  const std::string root_line = run({"token", "new", "root2", "--roles", "admin"}).out;
  const std::string root = root_line.substr(0, 64);
  CHECK(root_line.substr(65, 19) == "root2 admin sha256:");
  std::ofstream(file, std::ios::app) << root_line.substr(65);
  CHECK(run({"token", "new", "x", "--roles", "king"}).code == 2);
  CHECK(run({"token", "new", "a b"}).code == 2);

  const ServerProcess server({TinyModel::kTokens}, {"--auth-tokens", file});
  CHECK(server.lintel({"health"}).code == 0);
  CHECK_THAT(server.lintel({"model", "list"}).err,
             Catch::EndsWith("; --token TOKEN or @FILE gives one (UNAUTHENTICATED)\n"));
  CHECK(server.lintel({"model", "list", "--token", alice}).code == 0);
  std::ofstream(directory.path() / "alice") << alice << "\n";
  const std::string from_file = "@" + (directory.path() / "alice").string();
  CHECK(server.lintel({"session", "create", "--token", from_file}).code == 0);
  CHECK(server.lintel({"session", "list", "--json", "--token", root}).json().size() == 1);
  CHECK_THAT(server.lintel({"admin", "log-level", "--token", alice}).err,
             Catch::Contains("PERMISSION_DENIED"));
  CHECK(server.lintel({"admin", "log-level", "debug", "--token", root}).out == "debug\n");
  CHECK(server.lintel({"admin", "log-level", "--token", root}).out == "debug\n");
  CHECK(server.lintel({"health", "--token", "a b"}).code == 2);
  CHECK(server.lintel({"health", "--token", "@/no/such"}).code == 1);
}

TEST_CASE("lintel token refuses a name that the server would refuse") {
  const TemporaryDirectory directory;
  const std::string file = directory.path() / "tokens";
  const auto append = [&file](const std::string& name) {
    Process command({LINTEL_CLI, "token", "new", name, "--append", file});
    return command.wait();
  };
  for (const std::string& name :
       {std::string(), std::string("a b"), std::string("#a"), std::string("a:b"),
        std::string("a/b"), std::string("d\xc3\xa9j\xc3\xa0"), std::string(65, 'a')}) {
    INFO(name);
    CHECK(append(name) == 2);
  }
  CHECK_FALSE(std::filesystem::exists(file));
  CHECK(append("Ann-2_x.y@example.org") == 0);
  CHECK(append(std::string(64, 'a')) == 0);
  const ServerProcess server({TinyModel::kTokens}, {"--auth-tokens", file});
  CHECK(server.lintel({"health"}).code == 0);
}

TEST_CASE("a token's entry is a line of its own, also in a file without a final newline") {
  const TemporaryDirectory directory;
  const std::string file = directory.path() / "tokens";
  const std::string first = "carol admin sha256:" + std::string(64, '0');
  const auto [before, kept] = GENERATE_COPY(table<std::string, std::string>(
      {{"", ""}, {first, first + "\n"}, {first + "\n", first + "\n"}}));
  std::ofstream(file) << before;
  Process command({LINTEL_CLI, "token", "new", "alice", "--append", file});
  REQUIRE(command.wait() == 0);
  std::ostringstream after;
  after << std::ifstream(file).rdbuf();
  CHECK_THAT(after.str(), Catch::StartsWith(kept + "alice generate,score sha256:"));
}

TEST_CASE("a token is not sent in plain text to another machine", "[threat-18]") {
  Process command({LINTEL_CLI, "health", "--address", "192.0.2.1:50051", "--token", "secret",
                   "--deadline", "5"});
  CHECK(command.wait() == 2);
  CHECK_THAT(command.err(), Catch::Contains("plain text") && Catch::Contains("--tls-ca") &&
                                !Catch::Contains("secret"));
}

}  // namespace lintel::testing
