// SPDX-License-Identifier: Apache-2.0
// lintel-bench serve on models of text, and on servers that ask for TLS and a token.
#include "bench/report.h"
#include "server/app/lintel_server.h"
#include "tests/bench/bench_program.h"
#include "tests/support/catch.h"
#include "tests/support/certificate_authority.h"

namespace lintel::testing {
namespace {

// The token is token-bench; the file has its SHA-256.
constexpr const char* kTokens =
    "bench generate sha256:8da601c8e54ef108ed8fdd56ccbbd809588362ea0c24a1f05c719199c8376e11\n";

std::vector<std::string> short_serve(std::vector<std::string> more) {
  more.insert(more.begin(), {"serve", "--concurrency", "2", "--repeats", "1", "--seconds", "0.2"});
  return more;
}

void check_numbers(const bench::Report& report, std::size_t columns) {
  const auto& row = report.tables.at(0).rows.at(0);
  for (std::size_t i = 1; i < columns; ++i) {
    CAPTURE(i);
    REQUIRE(row[i].value());
    CHECK(*row[i].value() > 0);
  }
}

}  // namespace

TEST_CASE("serve and speed measure a model whose sequences have no end") {
  const Bench bench;
  bench.succeed(
      short_serve({"--model", bench.endless_model(), "--json", bench.path("serve.json")}));
  check_numbers(bench::read_report(bench.path("serve.json")), 10);

  const Result speed = bench.succeed({"speed", "--model", bench.endless_model(), "--repeats", "1",
                                      "--batch", "2", "--workers", "1", "--seconds", "0.01"});
}

TEST_CASE("a server that asks for TLS and a token is measured with the command line's flags") {
  const Bench bench;
  const CertificateAuthority authority;
  const IssuedCertificate certificate = authority.issue("server");
  bench.write("tokens", kTokens);
  bench.write("token", "token-bench\n");
  ServerOptions options;
  options.listen.port = 0;
  options.security.tls_cert = certificate.certificate;
  options.security.tls_key = certificate.key;
  options.security.auth_tokens = bench.path("tokens");
  options.models.directories = {{"theirs", bench.endless_model()}};
  const SteadyClock clock;
  LintelServer server(options, clock);
  server.start();
  const std::vector<std::string> target = {"--target", server.address(),
                                           "--tls-ca", authority.ca(),
                                           "--json",   bench.path("target.json")};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), target.begin(), target.end());
    return bench.run(short_serve(std::move(more)));
  };

  const Result measured = with({"--token", "@" + bench.path("token")});
  INFO(measured.err);
  REQUIRE(measured.code == 0);
  check_numbers(bench::read_report(bench.path("target.json")), 2);

  const Result stranger = with({});
  CHECK(stranger.code != 0);
  CHECK_THAT(stranger.err, Catch::Contains("UNAUTHENTICATED"));
  const Result plain =
      bench.run(short_serve({"--target", "192.0.2.1:1", "--token", "@" + bench.path("token")}));
  CHECK(plain.code == 2);
  CHECK_THAT(plain.err, Catch::Contains("in plain text"));
}

}  // namespace lintel::testing
