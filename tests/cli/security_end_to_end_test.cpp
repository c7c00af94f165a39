// The programs over TLS and with tokens.
#include <catch2/catch.hpp>
#include <cstdlib>

#include "tests/cli/processes.h"
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
  CHECK(with({}).code == 3);
  CHECK(with({"--tls-ca", authority.ca()}).code == 3);
  CHECK(with({"--tls-ca", authority.ca(), "--tls-cert", client.certificate}).code == 2);
  CHECK(with({"--tls-ca", "/no/such/ca"}).code == 1);

  const Result generated = server.lintel(
      {"generate", "--prompt-tokens", "1,2", "--max-new-tokens", "5", "--format", "tokens",
       "--tls-ca", authority.ca(), "--tls-cert", client.certificate, "--tls-key", client.key});
  INFO(generated.err);
  CHECK(generated.code == 0);
}

TEST_CASE("a token is not sent in plain text to another machine") {
  Process command({LINTEL_CLI, "health", "--address", "192.0.2.1:50051", "--token", "secret",
                   "--deadline", "5"});
  CHECK(command.wait() == 2);
  CHECK_THAT(command.err(), Catch::Contains("plain text") && Catch::Contains("--tls-ca") &&
                                !Catch::Contains("secret"));
}

}  // namespace lintel::testing
