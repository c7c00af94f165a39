// SPDX-License-Identifier: Apache-2.0
// A shared store behind TLS that asks who comes.
#include <fstream>

#include "tests/server/redis_lab/sockets.h"
#include "tests/server/sessions/shared_storage/shared_servers.h"
#include "tests/support/catch.h"
#include "tests/support/certificate_authority.h"

namespace lintel::testing {
namespace {

using Catch::Contains;

// A Redis server that takes TLS on a port of its own, from a user "lintel" alone.
struct GuardedStore {
  GuardedStore() : certificate(authority.issue("store")), port(free_port()) {
    write("acl", "user default on nopass ~* +@all\nuser lintel on >secret ~lintel1:* +@all\n");
    write("good", "lintel\nsecret\n");
    write("bad", "lintel\nsecrets\n");
    RedisServer::Options options;
    options.arguments = {
        "--tls-port",     std::to_string(port), "--tls-cert-file",    certificate.certificate,
        "--tls-key-file", certificate.key,      "--tls-ca-cert-file", authority.ca(),
        "--aclfile",      path("acl")};
    redis.emplace(options);
  }
  std::string url(const std::string& host) const {
    return "rediss://" + host + ":" + std::to_string(port);
  }
  std::string path(const std::string& name) const { return directory.path() / name; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    std::filesystem::permissions(path(name), std::filesystem::perms(0600));
  }

  const TemporaryDirectory directory;
  const CertificateAuthority authority;
  const IssuedCertificate certificate;
  const std::uint16_t port;
  std::optional<RedisServer> redis;
};

TEST_CASE("sessions continue over TLS, with a client's certificate and a user's password",
          "[threat-12]") {
  const GuardedStore store;
  const Files files;
  const IssuedCertificate own = store.authority.issue("server");
  const std::vector<std::string> guarded = {"--session-store-ca",          store.authority.ca(),
                                            "--session-store-cert",        own.certificate,
                                            "--session-store-key",         own.key,
                                            "--session-store-credentials", store.path("good")};
  v1::Session session;
  std::vector<std::int32_t> seen;
  for (const std::string host : {"localhost", "127.0.0.1"}) {
    Server server(flags_with(files, store.url(host), guarded));
    if (session.id().empty()) REQUIRE(server.create(v1::DURABILITY_INPUT, &session).ok());
    const Generated done = server.generate(call_on(session.id(), host, {4}, 3));
    REQUIRE(done.status.ok());
    seen.push_back(static_cast<std::int32_t>(done.only().first_position));
  }
  CHECK(seen[1] > seen[0]);
}

TEST_CASE("a store with a wrong certificate, or that does not know the server, is refused",
          "[threat-12]") {
  const GuardedStore store;
  const CertificateAuthority other;
  const Files files;
  const IssuedCertificate own = store.authority.issue("server");
  const auto refusal = [&](const std::string& ca, const std::string& credentials) {
    Process server(flags_with(
        files, store.url("localhost"),
        {"--session-store-ca", ca, "--session-store-cert", own.certificate, "--session-store-key",
         own.key, "--session-store-credentials", store.path(credentials)}));
    CHECK(server.wait() != 0);
    return server.err();
  };
  CHECK_THAT(refusal(other.ca(), "good"), Contains("its certificate is refused"));
  CHECK_THAT(refusal(store.authority.ca(), "bad"), Contains("WRONGPASS"));
}

}  // namespace
}  // namespace lintel::testing
