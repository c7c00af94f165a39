// SPDX-License-Identifier: Apache-2.0
// Tokens, roles and owners of sessions.
#include <functional>
#include <future>

#include "grpc/health/v1/health.grpc.pb.h"
#include "lintel/v1/admin.grpc.pb.h"
#include "server/rpc/call_scope.h"
#include "server/security/bearer_tokens.h"
#include "tests/server/support/calls_as.h"
#include "tests/server/support/generic_call.h"
#include "tests/server/support/service_fixture.h"
#include "tests/server/support/token_file.h"
#include "tests/support/catch.h"
#include "tests/support/certificate_authority.h"

namespace lintel::testing {
namespace {

using Code = grpc::StatusCode;

Code list_as(TestServer& server, const std::string& who, int* count) {
  grpc::ClientContext context;
  set_token(context, who);
  v1::ListSessionsResponse page;
  const Code code = server.sessions->List(&context, {}, &page).error_code();
  *count = page.sessions_size();
  return code;
}
Code models_as(TestServer& server, const std::string& who) {
  grpc::ClientContext context;
  set_token(context, who);
  v1::ListModelsResponse response;
  return server.models->List(&context, {}, &response).error_code();
}
grpc::Status log_level_status(TestServer& server, const std::string& who) {
  grpc::ClientContext context;
  set_token(context, who);
  v1::LogLevel level;
  return v1::AdminService::NewStub(server.channel())->GetLogLevel(&context, {}, &level);
}
Code log_level_as(TestServer& server, const std::string& who) {
  return log_level_status(server, who).error_code();
}

// A message to a service of gRPC's own; its code.
Code call_foreign(TestServer& server, const std::string& method, const std::string& who,
                  const std::string& message) {
  grpc::ClientContext context;
  set_token(context, who);
  GenericCall call(server.channel(), method, context);
  call.write_last(message);
  call.read();
  return call.finish().error_code();
}

const std::string kReflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
const std::string kChannelz = "/grpc.channelz.v1.Channelz/GetServers";

}  // namespace

TEST_CASE("each method requires its role, health none", "[threat-2][threat-21][threat-72]") {
  const TokenFile file;
  ServerOptions options = options_with(file);
  options.monitoring.channelz = true;
  TestServer server({"tokens"}, options);
  struct Row {
    const char* who;
    Code generate, score, create, list, models, admin;
  };
  constexpr Code kOk = Code::OK, kNo = Code::PERMISSION_DENIED, kWho = Code::UNAUTHENTICATED;
  const Row rows[] = {
      {"alice", kOk, kOk, kOk, kOk, kOk, kNo},  {"bob", kOk, kNo, kOk, kOk, kOk, kNo},
      {"carol", kNo, kOk, kNo, kOk, kOk, kNo},  {"root", kNo, kNo, kNo, kOk, kOk, kOk},
      {"", kWho, kWho, kWho, kWho, kWho, kWho}, {"mallory", kWho, kWho, kWho, kWho, kWho, kWho},
  };
  for (const Row& row : rows) {
    INFO("as '" << row.who << "'");
    v1::Session session;
    int count = 0;
    const grpc::Status generated = generate_as(server, row.who, request_for("tokens", {1}, 3));
    CHECK(generated.error_code() == row.generate);
    // Strangers are refused by gRPC, which takes a code and a text from us.
    CHECK((row.generate == kNo) == detail_of<google::rpc::ErrorInfo>(generated).has_value());
    CHECK(score_as(server, row.who).error_code() == row.score);
    CHECK(create_as(server, row.who, &session).error_code() == row.create);
    CHECK(list_as(server, row.who, &count) == row.list);
    CHECK(models_as(server, row.who) == row.models);
    CHECK(log_level_as(server, row.who) == row.admin);
    CHECK(call_foreign(server, kReflection, row.who, "") == (row.models == kOk ? kOk : kWho));
    CHECK(call_foreign(server, kChannelz, row.who, "") == row.admin);
  }
  grpc::ClientContext context;
  grpc::health::v1::HealthCheckResponse health;
  CHECK(grpc::health::v1::Health::NewStub(server.channel())->Check(&context, {}, &health).ok());
}

TEST_CASE("two tokens in one call are ambiguous, and refused", "[threat-22]") {
  const TokenFile file;
  ServerOptions options = options_with(file);
  options.monitoring.channelz = true;
  TestServer server({"tokens"}, options);
  grpc::ClientContext context;
  set_token(context, "alice");
  set_token(context, "root");
  v1::ListModelsResponse response;
  CHECK(server.models->List(&context, {}, &response).error_code() == Code::UNAUTHENTICATED);
  // gRPC's own services, which see no token, are no exception.
  for (const std::string& method : {kReflection, kChannelz}) {
    for (const char* last : {"alice", "root"}) {
      grpc::ClientContext both;
      set_token(both, last == std::string("root") ? "alice" : "root");
      set_token(both, last);
      GenericCall call(server.channel(), method, both);
      CHECK(call.finish().error_code() == Code::UNAUTHENTICATED);
    }
  }
}

TEST_CASE("a session is NOT_FOUND for all identities but the one that made it", "[threat-3]") {
  const TokenFile file;
  TestServer server({"tokens"}, options_with(file));
  v1::Session session;
  REQUIRE(create_as(server, "alice", &session).ok());
  v1::GenerateRequest request = request_for("", {1}, 3);
  request.set_session_id(session.id());
  for (const char* other : {"bob", "both"}) {
    INFO(other);
    const grpc::Status generated = generate_as(server, other, request);
    CHECK(generated.error_code() == Code::NOT_FOUND);
    // The same text as for a session that never existed.
    v1::GenerateRequest unknown = request;
    unknown.set_session_id(std::string(32, 'a'));
    std::string expected = generate_as(server, other, unknown).error_message();
    expected.replace(expected.find(std::string(32, 'a')), 32, session.id());
    CHECK(generated.error_message() == expected);

    v1::GetSessionRequest get;
    get.set_id(session.id());
    v1::Session got;
    grpc::ClientContext getting;
    set_token(getting, other);
    CHECK(server.sessions->Get(&getting, get, &got).error_code() == Code::NOT_FOUND);
    v1::DeleteSessionRequest remove;
    remove.set_id(session.id());
    google::protobuf::Empty nothing;
    grpc::ClientContext removing;
    set_token(removing, other);
    CHECK(server.sessions->Delete(&removing, remove, &nothing).error_code() == Code::NOT_FOUND);
  }
  int count = -1;
  CHECK(list_as(server, "bob", &count) == Code::OK);
  CHECK(count == 0);
  CHECK(list_as(server, "alice", &count) == Code::OK);
  CHECK(count == 1);
  CHECK(list_as(server, "root", &count) == Code::OK);
  CHECK(count == 1);
  CHECK(generate_as(server, "alice", request).ok());
}

// A server in mutual TLS without tokens, and its clients.
struct MutualTls {
  explicit MutualTls(std::vector<std::string> admins = {}) : server({"tokens"}, options(admins)) {}

  // From now on the calls come from a client of this name.
  void connect_as(const std::string& name) {
    const IssuedCertificate client = authority.issue(name);
    const auto text = [](const std::string& file) {
      return std::string(std::istreambuf_iterator<char>(std::ifstream(file).rdbuf()), {});
    };
    server.connect(
        grpc::SslCredentials({text(authority.ca()), text(client.key), text(client.certificate)}));
  }

  ServerOptions options(std::vector<std::string> admins) const {
    const IssuedCertificate own = authority.issue("server");
    ServerOptions options = test_options();
    options.security.tls_cert = own.certificate;
    options.security.tls_key = own.key;
    options.security.tls_client_ca = authority.ca();
    options.security.admin_certificates = std::move(admins);
    return options;
  }

  const CertificateAuthority authority;
  TestServer server;
};

TEST_CASE("in mutual TLS without tokens a session belongs to the certificate's name",
          "[threat-3]") {
  MutualTls tls;
  tls.connect_as("alice");
  const v1::Session session = create_session(tls.server, "tokens");
  v1::GenerateRequest request = request_for("", {1}, 3);
  request.set_session_id(session.id());
  CHECK(generate(tls.server, request).status.ok());
  tls.connect_as("bob");
  CHECK(generate(tls.server, request).status.error_code() == Code::NOT_FOUND);
}

TEST_CASE("in mutual TLS without tokens the named certificates have the role admin, no others",
          "[threat-72]") {
  MutualTls tls({"carol", "alice"});
  tls.connect_as("alice");
  CHECK(log_level_status(tls.server, "").ok());
  for (const char* const name : {"bob", "alic", "alice2", "x509:alice"}) {
    INFO(name);
    tls.connect_as(name);
    const grpc::Status refused = log_level_status(tls.server, "");
    CHECK(refused.error_code() == Code::PERMISSION_DENIED);
    // The certificate gives the role here: no token could.
    CHECK_THAT(refused.error_message(), Catch::Contains("--admin-certificate"));
  }
}

TEST_CASE("tokens are reloaded, and an invalid file leaves the old ones",
          "[threat-23][threat-24]") {
  const TokenFile file;
  TestServer server({"tokens"}, options_with(file));
  CHECK(models_as(server, "alice") == Code::OK);
  file.write("alice generate");
  // Until the maintenance has looked at it, and after.
  for (int i = 0; i < 1000; ++i) REQUIRE(models_as(server, "alice") == Code::OK);
  file.write(token_line("dave", "score"));
  CHECK(eventually([&] { return models_as(server, "dave") == Code::OK; }));
  CHECK(models_as(server, "alice") == Code::UNAUTHENTICATED);
}

TEST_CASE("a token file is refused by line, and never quoted", "[threat-19][threat-20]") {
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      BearerTokenTable(text, "tokens");
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  };
  const std::string good = token_line("a", "generate");
  CHECK(BearerTokenTable("\n # x\n" + good + good, "f").size() == 2);
  CHECK_THAT(refusal(""), Catch::Contains("no token"));
  CHECK_THAT(refusal(good + "mallory secretsecret"), Catch::Contains("line 2"));
  CHECK_THAT(refusal("mallory secretsecret"), !Catch::Contains("secretsecret"));
  CHECK_THAT(refusal("a dance sha256:" + std::string(64, '0')), Catch::Contains("dance"));
  CHECK_THAT(refusal("a/b score sha256:" + std::string(64, '0')), Catch::Contains("name"));
  CHECK_THAT(refusal("a score sha256:" + std::string(63, '0')), Catch::Contains("hash"));
  CHECK_THAT(refusal("a score sha256:" + std::string(64, 'g')), Catch::Contains("hexadecimal"));
  CHECK_THAT(refusal("a score md5:" + std::string(64, '0')), Catch::Contains("hash"));
  CHECK_THROWS_WITH(BearerTokens("/no/such/tokens"), Catch::Contains("/no/such/tokens"));

  const BearerTokenTable table(good, "f");
  CHECK(table.find("token-a")->name == "a");
  CHECK(table.find("token-a")->roles.has(Role::kGenerate));
  CHECK_FALSE(table.find("token-a")->roles.has(Role::kAdmin));
  for (const char* wrong : {"", "token-", "token-ab", "Token-a"}) CHECK_FALSE(table.find(wrong));
}

TEST_CASE("a bearer token follows the scheme, in any case") {
  CHECK(bearer_token("Bearer abc") == "abc");
  CHECK(bearer_token("bearer abc") == "abc");
  CHECK(bearer_token("Bearer  abc") == "abc");
  CHECK(bearer_token("Bearer   abc") == "abc");
  for (const char* none : {"", "Bearer", "Bearer ", "Bearer  ", "Basic abc", "abc", "Bearerabc"}) {
    CHECK(bearer_token(none).empty());
  }
}

TEST_CASE("tokens work over TLS as they do on the loopback", "[threat-21]") {
  const CertificateAuthority authority;
  const IssuedCertificate own = authority.issue("server");
  const TokenFile file;
  ServerOptions options = options_with(file);
  options.security.tls_cert = own.certificate;
  options.security.tls_key = own.key;
  TestServer server({"tokens"}, options);
  const std::string ca(std::istreambuf_iterator<char>(std::ifstream(authority.ca()).rdbuf()), {});
  server.connect(grpc::SslCredentials({ca, "", ""}));
  CHECK(models_as(server, "alice") == Code::OK);
  CHECK(models_as(server, "") == Code::UNAUTHENTICATED);
  CHECK(call_foreign(server, kReflection, "", "") == Code::UNAUTHENTICATED);
  CHECK(call_foreign(server, kReflection, "alice", "") == Code::OK);
}

}  // namespace lintel::testing
