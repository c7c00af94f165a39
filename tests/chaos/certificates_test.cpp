// SPDX-License-Identifier: Apache-2.0
// Handshakes that must fail, many times over, while other clients continue.
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>

#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/chaos/chaos_server.h"
#include "tests/chaos/sockets.h"
#include "tests/support/catch.h"
#include "tests/support/certificate_authority.h"

namespace lintel::testing {
namespace {

std::string content(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

std::shared_ptr<grpc::ChannelCredentials> credentials(const CertificateAuthority& trusted,
                                                      const IssuedCertificate* own = nullptr) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = content(trusted.ca());
  if (own != nullptr) {
    options.pem_cert_chain = content(own->certificate);
    options.pem_private_key = content(own->key);
  }
  return grpc::SslCredentials(options);
}

// A call over a connection of its own.
grpc::StatusCode call(const std::string& address,
                      const std::shared_ptr<grpc::ChannelCredentials>& with) {
  const auto health = grpc::health::v1::Health::NewStub(new_channel(address, with));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  grpc::health::v1::HealthCheckResponse response;
  return health->Check(&context, {}, &response).error_code();
}

// True if a handshake of openssl's own client succeeds with these arguments.
bool shakes_hands(const std::string& address, const std::string& arguments) {
  const std::string command = "openssl s_client -connect " + address + " -verify_return_error " +
                              arguments + " </dev/null >/dev/null 2>&1";
  return std::system(command.c_str()) == 0;
}

}  // namespace

TEST_CASE("wrong, expired and missing certificates are refused, and others served meanwhile") {
  const CertificateAuthority authority, clients, foreign;
  const IssuedCertificate own = authority.issue("server"), good = clients.issue("alice"),
                          old = clients.issue("old", /*days=*/-1), other = foreign.issue("alice"),
                          unsigned_one = {foreign.ca(), foreign.ca() + ".key"};
  ChaosServer server({.flags = {"--tls-cert", own.certificate, "--tls-key", own.key,
                                "--tls-client-ca", clients.ca()},
                      .credentials = credentials(authority, &good)});
  const std::string& address = server.address();
  const std::string with_good = "-CAfile " + authority.ca() + " -cert " + good.certificate +
                                " -key " + good.key + " -alpn h2 ";
  CHECK(shakes_hands(address, with_good + "-tls1_2"));

  struct Wrong {
    const char* what;
    std::shared_ptr<grpc::ChannelCredentials> with;
  };
  const Wrong wrong[] = {
      {"no client certificate", credentials(authority)},
      {"an expired client certificate", credentials(authority, &old)},
      {"a client certificate of another authority", credentials(authority, &other)},
      {"a client certificate that signed itself", credentials(authority, &unsigned_one)},
      {"a client that trusts another authority", credentials(foreign, &good)},
      {"plain text", grpc::InsecureChannelCredentials()},
  };
  int refused = 0;
  const auto round = [&] {
    for (const Wrong& one : wrong) {
      INFO(one.what);
      CHECK(call(address, one.with) == grpc::StatusCode::UNAVAILABLE);
      ++refused;
      CHECK(server.generate_reference() == server.reference());
    }
    for (const char* protocol : {"-tls1 ", "-tls1_1 "}) {
      INFO(protocol);
      CHECK_FALSE(shakes_hands(address, with_good + protocol + "-cipher DEFAULT@SECLEVEL=0"));
      ++refused;
    }
    // No handshake at all: plain HTTP/2, garbage, the beginning of a handshake, and silence.
    for (const std::string& bytes :
         {http2::hello(), std::string(1000, '\x16'), std::string("\x16\x03\x01\x02\x00\x01", 6)}) {
      const Socket socket = Socket::connect(server.port());
      socket.try_write(bytes);
      ++refused;
      if (bytes.size() > 6) socket.read_to_end();
    }
    Socket::connect(server.port()).reset();
    CHECK(server.generate_reference() == server.reference());
  };
  round();
  server.take_baseline();
  for (int i = 0; i < 5; ++i) round();
  server.check_recovered(std::to_string(refused) + " handshakes refused");
  CHECK(server.stop() == 0);
}

TEST_CASE("HTTPS handshakes that fail or never end are let go, and others served meanwhile",
          "[threat-38]") {
  const CertificateAuthority authority, clients, foreign;
  const IssuedCertificate own = authority.issue("server"), good = clients.issue("alice"),
                          old = clients.issue("old", /*days=*/-1), other = foreign.issue("alice");
  ChaosServer server({.flags = {"--tls-cert", own.certificate, "--tls-key", own.key,
                                "--tls-client-ca", clients.ca(), "--http-header-timeout", "500ms",
                                "--http-max-client-connections", "300"},
                      .http = true,
                      .credentials = credentials(authority, &good)});
  const int port = server.http_port();
  const std::string address = "127.0.0.1:" + std::to_string(port);
  // A client of TLS 1.2 hears before the end of the handshake that it is refused.
  const auto client_with = [&](const IssuedCertificate& one) {
    return "-CAfile " + authority.ca() + " -tls1_2 -cert " + one.certificate + " -key " + one.key;
  };
  REQUIRE(shakes_hands(address, client_with(good)));
  int refused = 0;
  const auto round = [&] {
    for (const std::string& arguments :
         {"-tls1_2 -CAfile " + authority.ca(), client_with(old), client_with(other),
          client_with(good) + " -CAfile " + foreign.ca(),
          client_with(good) + " -tls1_1 -cipher DEFAULT@SECLEVEL=0"}) {
      INFO(arguments);
      CHECK_FALSE(shakes_hands(address, arguments));
      ++refused;
    }
    // Plain HTTP, garbage, the beginning of a handshake, and silence: fifty of each.
    std::vector<Socket> sockets;
    for (int i = 0; i < 50; ++i) {
      for (const std::string& bytes :
           {std::string("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), std::string(1000, '\xff'),
            std::string("\x16\x03\x01\x02\x00\x01", 6), std::string()}) {
        sockets.push_back(Socket::connect(port));
        sockets.back().try_write(bytes);
        ++refused;
      }
    }
    CHECK(shakes_hands(address, client_with(good)));
    CHECK(server.generate_reference() == server.reference());
    for (const Socket& socket : sockets) socket.read_to_end();  // until it is closed
    CHECK(eventually([&] { return server.metric("lintel_http_connections") == 0; }));
  };
  for (int i = 0; i < 5; ++i)
    round();  // until OpenSSL's memory, in every thread's arena, has grown
  server.take_baseline();
  for (int i = 0; i < 5; ++i) round();
  CHECK(server.metric("lintel_http_timeouts_total") >= 10 * 100);
  server.check_recovered(std::to_string(refused) + " HTTPS handshakes refused");
  CHECK(server.stop() == 0);
}

TEST_CASE(
    "clients refuse a server whose certificate expired, and it serves those that do not look") {
  const CertificateAuthority authority;
  const IssuedCertificate own = authority.issue("server"), old = authority.issue("old", -1);
  const TemporaryDirectory directory;
  const std::string certificate = directory.path() / "cert", key = directory.path() / "key";
  const auto install = [&](const IssuedCertificate& from) {
    std::ofstream(certificate) << content(from.certificate);
    std::ofstream(key) << content(from.key);
  };
  install(own);
  ChaosServer server({.flags = {"--tls-cert", certificate, "--tls-key", key},
                      .credentials = credentials(authority)});
  // The certificate expires while it is served: connected clients stay.
  install(old);
  CHECK(eventually([&] {
    return call(server.address(), credentials(authority)) == grpc::StatusCode::UNAVAILABLE;
  }));
  CHECK(server.generate_reference() == server.reference());
  // A file that is no certificate leaves the last one in place.
  std::ofstream(certificate) << "no certificate";
  CHECK(eventually([&] { return server.log().find("certificate") != std::string::npos; }));
  install(own);
  CHECK(eventually(
      [&] { return call(server.address(), credentials(authority)) == grpc::StatusCode::OK; }));
  server.check_recovered("a server certificate expired and renewed");
}

}  // namespace lintel::testing
