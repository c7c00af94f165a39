// SPDX-License-Identifier: Apache-2.0
// TLS, mutual TLS, and certificates that change while streams run.
#include <filesystem>
#include <fstream>
#include <thread>

#include "server/security/certificates.h"
#include "tests/server/support/service_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/certificate_authority.h"

namespace lintel::testing {
namespace {

namespace fs = std::filesystem;

std::string content(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

std::shared_ptr<grpc::ChannelCredentials> trusting(const CertificateAuthority& authority,
                                                   const IssuedCertificate* own = nullptr) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = content(authority.ca());
  if (own != nullptr) {
    options.pem_cert_chain = content(own->certificate);
    options.pem_private_key = content(own->key);
  }
  return grpc::SslCredentials(options);
}

ServerOptions tls_options(const IssuedCertificate& certificate) {
  ServerOptions options = test_options();
  options.security.tls_cert = certificate.certificate;
  options.security.tls_key = certificate.key;
  return options;
}

// A call over a connection of its own.
grpc::StatusCode call(TestServer& server, std::shared_ptr<grpc::ChannelCredentials> credentials) {
  const auto channel = grpc::CreateChannel(server.server().address(), std::move(credentials));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::ListModelsResponse response;
  return v1::ModelService::NewStub(channel)->List(&context, {}, &response).error_code();
}

void replace(const IssuedCertificate& served, const IssuedCertificate& by) {
  fs::copy_file(by.certificate, served.certificate, fs::copy_options::overwrite_existing);
  fs::copy_file(by.key, served.key, fs::copy_options::overwrite_existing);
}

}  // namespace

TEST_CASE("TLS serves clients that trust the server's authority; plain text and others get nothing",
          "[threat-1]") {
  const CertificateAuthority authority, foreign;
  TestServer server({"tokens"}, tls_options(authority.issue("server")));
  CHECK(call(server, trusting(authority)) == grpc::StatusCode::OK);
  CHECK(call(server, trusting(foreign)) == grpc::StatusCode::UNAVAILABLE);
  CHECK(call(server, grpc::InsecureChannelCredentials()) == grpc::StatusCode::UNAVAILABLE);
}

TEST_CASE("an expired server certificate is served, warned of, and refused by clients") {
  const CertificateAuthority authority;
  TestServer server({"tokens"}, tls_options(authority.issue("server", /*days=*/-1)));
  CHECK(call(server, trusting(authority)) == grpc::StatusCode::UNAVAILABLE);
}

TEST_CASE("mutual TLS turns away clients without a good certificate", "[threat-2]") {
  const CertificateAuthority authority, clients, foreign;
  ServerOptions options = tls_options(authority.issue("server"));
  options.security.tls_client_ca = clients.ca();
  TestServer server({"tokens"}, options);
  const IssuedCertificate good = clients.issue("alice");
  const IssuedCertificate expired = clients.issue("expired", /*days=*/-1);
  const IssuedCertificate unknown = foreign.issue("alice");
  CHECK(call(server, trusting(authority, &good)) == grpc::StatusCode::OK);
  CHECK(call(server, trusting(authority)) == grpc::StatusCode::UNAVAILABLE);
  CHECK(call(server, trusting(authority, &expired)) == grpc::StatusCode::UNAVAILABLE);
  CHECK(call(server, trusting(authority, &unknown)) == grpc::StatusCode::UNAVAILABLE);
}

TEST_CASE("a changed certificate is shown to new connections and drops no stream") {
  const CertificateAuthority before, after;
  const IssuedCertificate served = before.issue("server");
  ServerOptions options = tls_options(served);
  options.models.scheduling.workers = 0;
  TestServer server({"tokens"}, options);
  server.connect(trusting(before));

  grpc::ClientContext context;
  const auto stream = server.generation->Generate(&context, request_for("tokens", {1}, 20));
  REQUIRE(eventually([&] { return server.scheduler("tokens").stats().queued == 1; }));
  server.scheduler("tokens").run_one_step();
  Generated out;
  v1::GenerateResponse message;
  REQUIRE(stream->Read(&message));
  take_message(message, out);

  replace(served, after.issue("server"));
  CHECK(eventually([&] { return call(server, trusting(after)) == grpc::StatusCode::OK; }));
  CHECK(call(server, trusting(before)) == grpc::StatusCode::UNAVAILABLE);

  std::thread stepping([&] { run_until_idle(server.scheduler("tokens")); });
  while (stream->Read(&message)) take_message(message, out);
  stepping.join();
  CHECK(stream->Finish().ok());
  CHECK(out.only().tokens.size() == 20);
}

TEST_CASE("the clients' authority is reloaded too", "[threat-23]") {
  const CertificateAuthority authority, before, after;
  const TemporaryDirectory directory;
  const std::string ca = directory.path() / "clients.pem";
  fs::copy_file(before.ca(), ca);
  ServerOptions options = tls_options(authority.issue("server"));
  options.security.tls_client_ca = ca;
  TestServer server({"tokens"}, options);
  const IssuedCertificate old_client = before.issue("alice"), new_client = after.issue("alice");
  CHECK(call(server, trusting(authority, &old_client)) == grpc::StatusCode::OK);
  fs::copy_file(after.ca(), ca, fs::copy_options::overwrite_existing);
  CHECK(eventually(
      [&] { return call(server, trusting(authority, &new_client)) == grpc::StatusCode::OK; }));
  CHECK(call(server, trusting(authority, &old_client)) == grpc::StatusCode::UNAVAILABLE);
}

TEST_CASE("certificates that cannot be used leave the old ones in place, until they can",
          "[threat-24]") {
  const CertificateAuthority authority;
  const IssuedCertificate served = authority.issue("server");
  const IssuedCertificate other = authority.issue("other");
  Certificates certificates({served.certificate, served.key, ""});
  CHECK_FALSE(certificates.reload_if_changed());
  const auto current = [&] {
    std::uint64_t version = 0;
    return certificates.current(&version).certificate;
  };
  const std::string first = current();

  std::ofstream(served.certificate) << "no certificate";
  CHECK_FALSE(certificates.reload_if_changed());
  // The certificate alone: its key is yet to come.
  fs::copy_file(other.certificate, served.certificate, fs::copy_options::overwrite_existing);
  CHECK_FALSE(certificates.reload_if_changed());
  fs::remove(served.key);
  CHECK_FALSE(certificates.reload_if_changed());
  CHECK(current() == first);
  fs::copy_file(other.key, served.key);
  CHECK(certificates.reload_if_changed());
  CHECK(current() == content(other.certificate));
  CHECK(certificates.version() == 2);
}

TEST_CASE("invalid certificates are refused by the file's name") {
  const CertificateAuthority authority;
  const IssuedCertificate one = authority.issue("one"), two = authority.issue("two");
  CHECK_THROWS_WITH(Certificates({one.certificate, two.key, ""}),
                    Catch::Contains(two.key) && Catch::Contains(one.certificate));
  CHECK_THROWS_WITH(Certificates({one.key, one.key, ""}), Catch::Contains("no PEM certificate"));
  CHECK_THROWS_WITH(Certificates({one.certificate, one.certificate, ""}),
                    Catch::Contains("no PEM private key"));
  CHECK_THROWS_WITH(Certificates({one.certificate, one.key, "/no/such/ca"}),
                    Catch::Contains("/no/such/ca"));
  ServerOptions options = tls_options({one.certificate, two.key});
  CHECK_THROWS_WITH(TestServer({"tokens"}, options), Catch::Contains(two.key));
}

TEST_CASE("a connection past its age takes no new calls, and its streams have the grace",
          "[threat-23][threat-49]") {
  ServerOptions options = test_options();
  options.models.scheduling.workers = 0;
  options.connections.max_age_ms = std::chrono::milliseconds(50);
  const bool has_end = GENERATE(false, true);
  options.connections.max_age_grace_ms = std::chrono::milliseconds(has_end ? 50 : 0);
  TestServer server({"tokens"}, options);
  grpc::ClientContext context;
  const auto stream = server.generation->Generate(&context, request_for("tokens", {1}, 5));
  v1::GenerateResponse message;
  if (has_end) {
    // Nothing generates: the grace ends the stream, possibly before the request is queued.
    CHECK_FALSE(stream->Read(&message));
    CHECK(stream->Finish().error_code() == grpc::StatusCode::UNAVAILABLE);
    run_until_idle(server.scheduler("tokens"));
    return;
  }
  REQUIRE(eventually([&] { return server.scheduler("tokens").stats().queued == 1; }));
  // The channel leaves READY when it receives GOAWAY.
  CHECK(eventually([&] { return server.channel()->GetState(false) != GRPC_CHANNEL_READY; }));
  v1::ListModelsResponse response;
  grpc::ClientContext other;
  other.set_wait_for_ready(true);
  CHECK(server.models->List(&other, {}, &response).ok());
  std::thread stepping([&] { run_until_idle(server.scheduler("tokens")); });
  while (stream->Read(&message)) {
  }
  stepping.join();
  CHECK(stream->Finish().ok());
}

}  // namespace lintel::testing
