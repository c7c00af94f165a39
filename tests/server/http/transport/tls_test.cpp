// SPDX-License-Identifier: Apache-2.0
// HTTPS: the gRPC port's certificates, who has to show one, what it makes of them, and handshakes
// that come to nothing.
#include <openssl/ssl.h>

#include <boost/asio/ssl/context.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "lintel/v1/admin.grpc.pb.h"
#include "server/http/connect/rpc_format.h"
#include "server/http/transport/tls_contexts.h"
#include "server/security/certificates.h"
#include "tests/server/http/transport/tls_client.h"
#include "tests/server/support/metrics_page.h"
#include "tests/server/support/token_file.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;
namespace fs = std::filesystem;

constexpr const char* kModels = "/lintel.v1.ModelService/List";
constexpr const char* kLogLevel = "/lintel.v1.AdminService/GetLogLevel";

std::string whole_file(const std::string& path) {
  return {std::istreambuf_iterator<char>(std::ifstream(path, std::ios::binary).rdbuf()), {}};
}

ServerOptions with_https(const IssuedCertificate& own, const std::string& client_ca = "") {
  ServerOptions options = with_http();
  options.security.tls_cert = own.certificate;
  options.security.tls_key = own.key;
  options.security.tls_client_ca = client_ca;
  options.models.limits.max_new_tokens = 1'000'000'000;
  return options;
}

// A POST of JSON over a connection of its own.
HttpReply https_post(TlsClient& client, TestServer& server, const std::string& path,
                     const std::string& body = "{}", const std::string& headers = "") {
  HttpClient connection(client.wire(server.server().http_port()));
  connection.send(post_text(path, body, "application/json", headers));
  return connection.read();
}

std::shared_ptr<grpc::ChannelCredentials> grpc_credentials(const CertificateAuthority& authority,
                                                           const IssuedCertificate* own = nullptr) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = whole_file(authority.ca());
  if (own != nullptr) {
    options.pem_cert_chain = whole_file(own->certificate);
    options.pem_private_key = whole_file(own->key);
  }
  return grpc::SslCredentials(options);
}

void overwrite(const IssuedCertificate& served, const IssuedCertificate& by) {
  fs::copy_file(by.certificate, served.certificate, fs::copy_options::overwrite_existing);
  fs::copy_file(by.key, served.key, fs::copy_options::overwrite_existing);
}

std::string endless_stream() {
  v1::GenerateRequest request = request_for("tokens", {1}, 0);
  request.clear_max_new_tokens();
  return post_text(kGeneratePath, envelope(0, request.SerializeAsString()),
                   "application/connect+proto");
}

// A server in mutual TLS without tokens, and clients that it knows by their certificates.
struct KnownByCertificate {
  explicit KnownByCertificate(ServerOptions more = with_http())
      : own(authority.issue("server")),
        alice(authority.issue("alice")),
        bob(authority.issue("bob")) {
    const ServerOptions secure = with_https(own, authority.ca());
    more.security.tls_cert = secure.security.tls_cert;
    more.security.tls_key = secure.security.tls_key;
    more.security.tls_client_ca = secure.security.tls_client_ca;
    more.models.limits.max_new_tokens = secure.models.limits.max_new_tokens;
    server = std::make_unique<TestServer>(std::vector<std::string>{"tokens"}, more);
    server->connect(grpc_credentials(authority, &alice));  // over gRPC
  }

  const CertificateAuthority authority;
  const IssuedCertificate own, alice, bob;
  std::unique_ptr<TestServer> server;
};

}  // namespace

TEST_CASE("HTTPS is served with the certificate of the gRPC port, and nothing else is") {
  const CertificateAuthority authority, foreign;
  TestServer server({"tokens"}, with_https(authority.issue("server")));
  server.connect(grpc_credentials(authority));
  v1::ListModelsResponse models;
  grpc::ClientContext context;
  CHECK(server.models->List(&context, {}, &models).ok());

  TlsClient client(authority), stranger(foreign);
  const HttpReply reply = https_post(client, server, kModels);
  CHECK(reply.status == 200);
  CHECK_THAT(reply.body, Contains("tokens"));
  CHECK(client.protocol() == "http/1.1");  // and not HTTP/2, which it offered, too
  CHECK(https_post(stranger, server, kModels).status == 0);
  CHECK_THAT(stranger.problem(), Contains("certificate verify failed"));
  CHECK(post(server.server().http_port(), kModels, "{}").status == 0);
}

TEST_CASE("a long stream over HTTPS has the tokens of gRPC's") {
  const CertificateAuthority authority;
  TestServer server({"tokens"}, with_https(authority.issue("server")));
  server.connect(grpc_credentials(authority));
  const std::vector<std::int32_t> expected =
      generate(server, request_for("tokens", {1}, 5000)).only().tokens;
  REQUIRE(expected.size() == 5000);

  TlsClient client(authority);
  const HttpReply reply = https_post(
      client, server, kGeneratePath,
      R"({"model":"tokens","prompt":{"tokens":{"ids":[1]}},"maxNewTokens":5000,"sampling":{"seed":"7"}})");
  CHECK(reply.whole);
  std::vector<std::int32_t> tokens;
  std::istringstream lines(reply.body);
  for (std::string line; std::getline(lines, line);) {
    const auto message = nlohmann::json::parse(line);
    for (const auto& chunk : message.value("chunks", nlohmann::json::array())) {
      for (const auto& token : chunk["tokens"]) tokens.push_back(token.get<std::int32_t>());
    }
  }
  CHECK(tokens == expected);
}

TEST_CASE("mutual TLS over HTTP refuses clients without a valid certificate, with the reason",
          "[threat-38]") {
  const CertificateAuthority authority, clients, foreign;
  TestServer server({"tokens"}, with_https(authority.issue("server"), clients.ca()));
  const IssuedCertificate good = clients.issue("alice"), old = clients.issue("old", /*days=*/-1),
                          other = foreign.issue("alice");
  const bool before_1_3 = GENERATE(false, true);
  const std::tuple<const IssuedCertificate*, int, const char*> cases[] = {
      {&good, 200, ""},
      {nullptr, 0, before_1_3 ? "handshake failure" : "certificate required"},
      {&old, 0, "certificate expired"},
      {&other, 0, "unknown ca"}};
  for (const auto& [own, status, why] : cases) {
    TlsClient client(authority, own);
    if (before_1_3) client.use_tls_1_2();
    CHECK(https_post(client, server, kModels).status == status);
    CHECK_THAT(client.problem(), Contains(why));
  }
}

TEST_CASE("a client certificate that the server does not ask for gives no identity") {
  const CertificateAuthority authority, foreign;
  TestServer server({"tokens"}, with_https(authority.issue("server")));
  const IssuedCertificate own = foreign.issue("alice");
  TlsClient named(authority, &own), nameless(authority);
  const auto session = nlohmann::json::parse(
      https_post(named, server, "/lintel.v1.SessionService/Create", R"({"model":"tokens"})").body);
  const std::string get = nlohmann::json{{"id", session["id"]}}.dump();
  CHECK(https_post(nameless, server, "/lintel.v1.SessionService/Get", get).status == 200);
  CHECK(https_post(named, server, kLogLevel).status == 403);
}

TEST_CASE("a session belongs to the certificate's name over HTTPS as over gRPC") {
  KnownByCertificate house;
  TlsClient alice(house.authority, &house.alice), bob(house.authority, &house.bob);
  const std::string path = "/lintel.v1.SessionService/Get";
  const std::string get =
      nlohmann::json{{"id", create_session(*house.server, "tokens").id()}}.dump();
  CHECK(https_post(alice, *house.server, path, get).status == 200);
  CHECK(https_post(bob, *house.server, path, get).status == 404);
}

TEST_CASE("over HTTPS the named certificates have the role admin, no others", "[threat-39]") {
  ServerOptions options = with_http();
  options.security.admin_certificates = {"alice"};
  KnownByCertificate house(options);
  TlsClient alice(house.authority, &house.alice), bob(house.authority, &house.bob);
  CHECK(https_post(alice, *house.server, kLogLevel).status == 200);
  const HttpReply refused = https_post(bob, *house.server, kLogLevel);
  CHECK(refused.status == 403);
  CHECK_THAT(refused.body, Contains("--admin-certificate"));
  // A client's header never sets its identity, on any port.
  CHECK(https_post(bob, *house.server, kLogLevel, "{}",
                   "lintel-inner-certificate-bin: YWxpY2U=\r\nlintel-inner-key: \r\n")
            .status == 403);
  house.server->connect(grpc_credentials(house.authority, &house.bob));
  for (const char* const key : {"", "0123456789abcdef0123456789abcdef"}) {
    grpc::ClientContext context;
    context.AddMetadata("lintel-inner-key", key);
    context.AddMetadata("lintel-inner-certificate-bin", "alice");
    v1::LogLevel level;
    const grpc::Status status = v1::AdminService::NewStub(house.server->channel())
                                    ->GetLogLevel(&context, v1::GetLogLevelRequest(), &level);
    CHECK(status.error_code() == grpc::PERMISSION_DENIED);
  }
}

TEST_CASE("a certificate's streams over HTTPS and gRPC are counted together") {
  ServerOptions options = with_http();
  options.identity.max_streams = 1;
  KnownByCertificate house(options);
  TlsClient alice(house.authority, &house.alice), bob(house.authority, &house.bob);
  HttpClient running(alice.wire(house.server->server().http_port()));
  running.send(endless_stream());
  CHECK_THAT(running.read_raw(15), Contains("200 OK"));

  const grpc::Status refused =
      generate(*house.server, request_for("tokens", {1}, 2)).status;  // alice's, too
  CHECK(refused.error_code() == grpc::RESOURCE_EXHAUSTED);
  const auto quota = detail_of<google::rpc::QuotaFailure>(refused);
  REQUIRE(quota);
  CHECK(quota->violations(0).subject() == "identity:x509:alice");
  const std::string body = R"({"model":"tokens","prompt":{"tokens":{"ids":[1]}},"maxNewTokens":2})";
  CHECK(https_post(alice, *house.server, kGeneratePath, body).status == 429);
  CHECK(https_post(bob, *house.server, kGeneratePath, body).status == 200);
  running.close();
  CHECK(eventually(
      [&] { return https_post(alice, *house.server, kGeneratePath, body).status == 200; }));
}

TEST_CASE("a resumed TLS session keeps its identity while its authority is trusted",
          "[threat-38]") {
  const CertificateAuthority authority, before, after;
  const TemporaryDirectory directory;
  const std::string ca = directory.path() / "clients.pem";
  fs::copy_file(before.ca(), ca);
  ServerOptions options = with_https(authority.issue("server"), ca);
  options.security.admin_certificates = {"alice"};
  TestServer server({"tokens"}, options);
  const IssuedCertificate alice = before.issue("alice"), next = after.issue("alice");
  TlsClient client(authority, &alice);
  if (GENERATE(false, true)) client.use_tls_1_2();
  CHECK(https_post(client, server, kLogLevel).status == 200);
  client.resume();
  CHECK(https_post(client, server, kLogLevel).status == 200);
  CHECK(client.resumed());

  fs::copy_file(after.ca(), ca, fs::copy_options::overwrite_existing);
  TlsClient newcomer(authority, &next);
  CHECK(eventually([&] { return https_post(newcomer, server, kLogLevel).status == 200; }));
  CHECK(https_post(client, server, kLogLevel).status == 0);
  CHECK_THAT(client.problem(), Contains("unknown ca"));
}

TEST_CASE("a kept connection of a client whose authority is trusted no more ends with its age",
          "[threat-23]") {
  const CertificateAuthority authority, before, after;
  const TemporaryDirectory directory;
  const std::string ca = directory.path() / "clients.pem";
  fs::copy_file(before.ca(), ca);
  ServerOptions options = with_https(authority.issue("server"), ca);
  options.connections.max_age_ms = std::chrono::milliseconds(1000);
  TestServer server({"tokens"}, options);
  const IssuedCertificate alice = before.issue("alice"), next = after.issue("alice");
  TlsClient client(authority, &alice), newcomer(authority, &next);
  HttpClient kept(client.wire(server.server().http_port()));
  kept.send(post_text(kModels, "{}", "application/json"));
  CHECK(kept.read().status == 200);

  fs::copy_file(after.ca(), ca, fs::copy_options::overwrite_existing);
  CHECK(eventually([&] { return https_post(newcomer, server, kModels).status == 200; }));
  int answers = 0;
  for (bool is_open = true; is_open; ++answers) {
    kept.send(post_text(kModels, "{}", "application/json"));
    const HttpReply reply = kept.read();
    is_open = reply.status == 200 && reply.header("connection") != "close" && answers < 1'000'000;
  }
  CHECK(answers < 1'000'000);
  CHECK(kept.ended());
  CHECK(https_post(client, server, kModels).status == 0);
  CHECK_THAT(client.problem(), Contains("unknown ca"));
}

TEST_CASE("a gRPC client on the HTTPS port receives an error that names the mistake") {
  const CertificateAuthority authority;
  TestServer server({"tokens"}, with_https(authority.issue("server")));
  const auto channel = grpc::CreateChannel(
      "localhost:" + std::to_string(server.server().http_port()), grpc_credentials(authority));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  v1::ListModelsResponse models;
  const grpc::Status status = v1::ModelService::NewStub(channel)->List(&context, {}, &models);
  CHECK(status.error_code() == grpc::UNIMPLEMENTED);
  CHECK_THAT(status.error_message(), Contains("HTTP/1.1, not gRPC"));
}

TEST_CASE("a changed certificate is shown to new HTTPS connections and drops no stream") {
  const CertificateAuthority before, after;
  const IssuedCertificate served = before.issue("server");
  ServerOptions options = with_https(served);
  options.models.scheduling.workers = 0;
  TestServer server({"tokens"}, options);
  TlsClient old_client(before), new_client(after);
  HttpClient stream(old_client.wire(server.server().http_port()));
  stream.send(post_text(kGeneratePath,
                        envelope(0, request_for("tokens", {1}, 20).SerializeAsString()),
                        "application/connect+proto"));
  REQUIRE(eventually([&] { return server.scheduler("tokens").stats().queued == 1; }));

  overwrite(served, after.issue("server"));
  CHECK(eventually([&] { return https_post(new_client, server, kModels).status == 200; }));
  CHECK(https_post(old_client, server, kModels).status == 0);
  CHECK_THAT(old_client.problem(), Contains("certificate verify failed"));

  std::thread stepping([&] { run_until_idle(server.scheduler("tokens")); });
  const HttpReply reply = stream.read();
  stepping.join();
  CHECK(reply.whole);
  CHECK(reply.body.ends_with(envelope(kEndOfStream, "{}")));
  // The connection continues with the certificate it was made with.
  stream.send(post_text(kModels, "{}", "application/json"));
  CHECK(stream.read().status == 200);
}

TEST_CASE("tokens are required over HTTPS, with certificates or without") {
  const TokenFile file;
  const CertificateAuthority authority;
  const IssuedCertificate alice = authority.issue("alice");
  const bool mutual = GENERATE(false, true);
  ServerOptions options =
      with_https(authority.issue("server"), mutual ? authority.ca() : std::string());
  options.security.auth_tokens = file.path;
  TestServer server({"tokens"}, options);
  TlsClient client(authority, mutual ? &alice : nullptr);
  CHECK(https_post(client, server, kModels).status == 401);
  const std::string root = "Authorization: Bearer token-root\r\n";
  CHECK(https_post(client, server, kLogLevel, "{}", root).status == 200);
  const std::string bob = "Authorization: Bearer token-bob\r\n";
  CHECK(https_post(client, server, kLogLevel, "{}", bob).status == 403);
}

TEST_CASE("an endless handshake is ended by timeout, garbage at once, and others are served") {
  const CertificateAuthority authority;
  ServerOptions options = with_https(authority.issue("server"));
  options.http.header_timeout_ms = std::chrono::milliseconds(1000);
  TestServer server({"tokens"}, options);
  const int port = server.server().http_port();
  HttpClient silent(port), halfway(port);
  halfway.send(std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11));
  for (const std::string& garbage :
       {std::string("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), std::string(600, '\xff'),
        std::string("\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", 10)}) {
    HttpClient client(port);
    client.send(garbage);
    CHECK(client.read().status == 0);
  }
  TlsClient client(authority);
  CHECK(https_post(client, server, kModels).status == 200);
  CHECK(silent.ended());
  CHECK(halfway.ended());
  CHECK(comes_to(server, "lintel_http_timeouts_total", 2));
  CHECK(comes_to(server, "lintel_http_connections", 0));
}

TEST_CASE("clients over TLS that go, or take nothing, end their calls") {
  const CertificateAuthority authority;
  ServerOptions options = with_https(authority.issue("server"));
  options.http.write_timeout_ms = std::chrono::milliseconds(200);
  TestServer server({"tokens"}, options);
  TlsClient client(authority);
  HttpClient stream(client.wire(server.server().http_port(), /*receive_buffer_bytes=*/4096));
  stream.send(endless_stream());
  CHECK_THAT(stream.read_raw(15), Contains("200 OK"));
  SECTION("gone") { stream.close(); }
  SECTION("takes nothing") {}
  CHECK(comes_to(server, "lintel_streams", 0));
  CHECK(comes_to(server, "lintel_http_connections", 0));
}

TEST_CASE("TLS before 1.2 is refused regardless of the machine's OpenSSL configuration",
          "[threat-38]") {
  const CertificateAuthority authority;
  const IssuedCertificate own = authority.issue("server");
  TlsContexts contexts(
      std::make_shared<Certificates>(CertificatePaths{own.certificate, own.key, ""}));
  SSL_CTX* const server_side = contexts.current()->native_handle();
  SSL_CTX_set_security_level(server_side, 0);
  REQUIRE(SSL_CTX_set_min_proto_version(server_side, 0) == 1);
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> client_side(
      SSL_CTX_new(TLS_client_method()), &SSL_CTX_free);
  SSL_CTX_set_security_level(client_side.get(), 0);
  for (const auto& [version, taken] : {std::pair{TLS1_VERSION, false},
                                       {TLS1_1_VERSION, false},
                                       {TLS1_2_VERSION, true},
                                       {TLS1_3_VERSION, true}}) {
    INFO(version);
    REQUIRE(SSL_CTX_set_min_proto_version(client_side.get(), version) == 1);
    REQUIRE(SSL_CTX_set_max_proto_version(client_side.get(), version) == 1);
    const std::unique_ptr<SSL, decltype(&SSL_free)> server(SSL_new(server_side), &SSL_free),
        client(SSL_new(client_side.get()), &SSL_free);
    BIO *near = nullptr, *far = nullptr;
    REQUIRE(BIO_new_bio_pair(&near, 0, &far, 0) == 1);
    SSL_set_bio(server.get(), near, near);
    SSL_set_bio(client.get(), far, far);
    for (int i = 0; i < 10; ++i) {
      SSL_connect(client.get());
      SSL_accept(server.get());
    }
    CHECK((SSL_is_init_finished(server.get()) == 1) == taken);
  }
}

}  // namespace lintel::testing
