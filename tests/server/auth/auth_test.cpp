// Tokens, roles, whose session is whose, and what one identity may use.
#include <catch2/catch.hpp>
#include <functional>
#include <future>

#include "grpc/health/v1/health.grpc.pb.h"
#include "lintel/v1/admin.grpc.pb.h"
#include "server/auth/bearer_tokens.h"
#include "server/call/call_scope.h"
#include "tests/server/support/generic_call.h"
#include "tests/server/support/service_fixture.h"
#include "tests/server/support/token_file.h"
#include "tests/support/certificate_authority.h"

namespace lintel::testing {
namespace {

using Code = grpc::StatusCode;

// Calls as `who`.
grpc::Status generate_as(TestServer& server, const std::string& who,
                         const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  set_token(context, who);
  const auto reader = server.generation->Generate(&context, request);
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  return reader->Finish();
}
grpc::Status score_as(TestServer& server, const std::string& who) {
  v1::ScoreRequest request;
  for (int i = 0; i < 3; ++i) {
    if (i == 0) request.add_sequences();
    request.mutable_sequences(0)->mutable_tokens()->add_ids(i);
  }
  grpc::ClientContext context;
  set_token(context, who);
  const auto reader = server.generation->Score(&context, request);
  v1::ScoreResponse message;
  while (reader->Read(&message)) {
  }
  return reader->Finish();
}
grpc::Status create_as(TestServer& server, const std::string& who, v1::Session* session) {
  grpc::ClientContext context;
  set_token(context, who);
  return server.sessions->Create(&context, {}, session);
}
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

TEST_CASE("each method wants its role, health none") {
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
      {"", kWho, kWho, kWho, kWho, kWho, kWho}, {"nobody", kWho, kWho, kWho, kWho, kWho, kWho},
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

TEST_CASE("two tokens in one call are ambiguous, and refused") {
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

TEST_CASE("a session is NOT_FOUND for everybody but the identity that made it") {
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
    // Word for word what is said of a session that never was.
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

TEST_CASE("in mutual TLS without tokens a session belongs to the certificate's name") {
  MutualTls tls;
  tls.connect_as("alice");
  const v1::Session session = create_session(tls.server, "tokens");
  v1::GenerateRequest request = request_for("", {1}, 3);
  request.set_session_id(session.id());
  CHECK(generate(tls.server, request).status.ok());
  tls.connect_as("bob");
  CHECK(generate(tls.server, request).status.error_code() == Code::NOT_FOUND);
}

TEST_CASE("in mutual TLS without tokens the named certificates have the role admin, no others") {
  MutualTls tls({"carol", "alice"});
  tls.connect_as("alice");
  CHECK(log_level_status(tls.server, "").ok());
  for (const char* const name : {"bob", "alic", "alice2", "x509:alice"}) {
    INFO(name);
    tls.connect_as(name);
    const grpc::Status refused = log_level_status(tls.server, "");
    CHECK(refused.error_code() == Code::PERMISSION_DENIED);
    // What gives the role here: no token could.
    CHECK_THAT(refused.error_message(), Catch::Contains("--admin-certificate"));
  }
}

TEST_CASE("tokens are reloaded, and a file that makes no sense leaves the old ones") {
  const TokenFile file;
  TestServer server({"tokens"}, options_with(file));
  CHECK(models_as(server, "alice") == Code::OK);
  file.write("alice generate");
  // Until the housekeeping has looked at it, and after.
  for (int i = 0; i < 1000; ++i) REQUIRE(models_as(server, "alice") == Code::OK);
  file.write(token_line("dave", "score"));
  CHECK(eventually([&] { return models_as(server, "dave") == Code::OK; }));
  CHECK(models_as(server, "alice") == Code::UNAUTHENTICATED);
}

TEST_CASE("a token file is refused by line, and never quoted") {
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

TEST_CASE("a bearer token is what follows the scheme, in any case") {
  CHECK(bearer_token("Bearer abc") == "abc");
  CHECK(bearer_token("bearer abc") == "abc");
  for (const char* none : {"", "Bearer", "Bearer ", "Basic abc", "abc", "Bearerabc"}) {
    CHECK(bearer_token(none).empty());
  }
}

void check_quota(const grpc::Status& status, const std::string& identity) {
  CHECK(status.error_code() == Code::RESOURCE_EXHAUSTED);
  const auto failure = detail_of<google::rpc::QuotaFailure>(status);
  REQUIRE(failure);
  REQUIRE(failure->violations_size() == 1);
  CHECK(failure->violations(0).subject() == "identity:" + identity);
  const auto retry = detail_of<google::rpc::RetryInfo>(status);
  REQUIRE(retry);
  CHECK(retry->retry_delay().seconds() + retry->retry_delay().nanos() > 0);
}

TEST_CASE("streams of one identity are bounded, and of nobody else") {
  const TokenFile file;
  ServerOptions options = options_with(file);
  options.models.scheduling.workers = 0;
  options.identity.max_streams = 2;
  TestServer server({"tokens"}, options);
  Scheduler& scheduler = server.scheduler("tokens");
  const auto request = request_for("tokens", {1}, 5);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>> streams;
  const auto open = [&](const char* who) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    set_token(*contexts.back(), who);
    streams.push_back(server.generation->Generate(contexts.back().get(), request));
    return eventually([&] { return scheduler.stats().queued == streams.size(); });
  };
  REQUIRE(open("alice"));
  REQUIRE(open("alice"));
  check_quota(generate_as(server, "alice", request), "alice");
  check_quota(score_as(server, "alice"), "alice");
  REQUIRE(open("bob"));
  run_until_idle(scheduler);
  for (auto& stream : streams) {
    v1::GenerateResponse message;
    while (stream->Read(&message)) {
    }
    CHECK(stream->Finish().ok());
  }
  // Who has a stream's status has its place again; refused calls kept none.
  streams.clear();
  REQUIRE(open("alice"));
  run_until_idle(scheduler);
  v1::GenerateResponse message;
  while (streams[0]->Read(&message)) {
  }
  CHECK(streams[0]->Finish().ok());
}

TEST_CASE("tokens a second of one identity are what its calls run at once a burst is used up") {
  const TokenFile file;
  ServerOptions options = options_with(file);
  options.identity.tokens_per_second = 10;
  options.identity.token_burst = 100;
  options.models.scheduling.workers = 0;
  ManualClock clock;
  TestServer server({"tokens"}, options, clock);
  Scheduler& scheduler = server.scheduler("tokens");
  // How long a call takes, but for the model's own time.
  const auto time_of = [&](const std::function<grpc::Status()>& call) {
    auto status = std::async(std::launch::async, call);
    const auto over = [&] {
      return status.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    };
    std::chrono::milliseconds passed{0};
    CHECK(eventually([&] {
      while (scheduler.run_one_step()) {
      }
      if (over()) return true;
      if (scheduler.stats().running == 0) return false;
      clock.advance(std::chrono::milliseconds(100));
      passed += std::chrono::milliseconds(100);
      return false;
    }));
    CHECK(status.get().ok());
    return passed;
  };
  const auto generate = [&](const std::string& who, unsigned max_new_tokens) {
    return time_of([&, who, max_new_tokens] {
      return generate_as(server, who, request_for("tokens", {1}, max_new_tokens));
    });
  };
  CHECK(generate("alice", 59) == std::chrono::milliseconds(0));  // 1 + 59 of 100
  const auto second = generate("alice", 59);                     // 20 more than there are
  CHECK(second >= std::chrono::milliseconds(1800));
  CHECK(second <= std::chrono::milliseconds(2200));
  CHECK(generate("bob", 59) == std::chrono::milliseconds(0));
  // Scoring is paid for too.
  const auto scored = time_of([&] { return score_as(server, "alice"); });
  CHECK(scored <= std::chrono::milliseconds(600));
  // A stop token ends the first call after one value or so: it pays for no more.
  clock.advance(std::chrono::seconds(100));
  v1::GenerateRequest stops = request_for("tokens", {1}, 99);
  for (int token = 0; token < 50; ++token) stops.mutable_stop()->add_token_ids(token);
  CHECK(time_of([&] { return generate_as(server, "alice", stops); }) ==
        std::chrono::milliseconds(0));
  CHECK(generate("alice", 90) == std::chrono::milliseconds(0));
}

TEST_CASE("a call that would wait long before it begins is refused, and told for how long") {
  const TokenFile file;
  ServerOptions options = options_with(file);
  options.identity.tokens_per_second = 1;
  options.identity.token_burst = 1;
  options.models.scheduling.workers = 0;
  ManualClock clock;
  TestServer server({"tokens"}, options, clock);
  Scheduler& scheduler = server.scheduler("tokens");
  // A step reads more of a prompt than is saved up.
  grpc::ClientContext context;
  set_token(context, "alice");
  const auto reader =
      server.generation->Generate(&context, request_for("tokens", std::vector<int>(200, 1), 1));
  REQUIRE(eventually([&] { return scheduler.stats().queued == 1; }));
  while (scheduler.run_one_step()) {
  }
  const auto debt = static_cast<std::int64_t>(scheduler.stats().prompt_tokens) - 1;
  REQUIRE(debt > 20);
  REQUIRE(debt < 200);
  const grpc::Status refused = generate_as(server, "alice", request_for("tokens", {1}, 1));
  check_quota(refused, "alice");
  const auto retry = detail_of<google::rpc::RetryInfo>(refused)->retry_delay().seconds();
  CHECK(retry >= debt - 11);
  CHECK(retry <= debt - 9);
  check_quota(score_as(server, "alice"), "alice");
  context.TryCancel();
}

TEST_CASE("sessions and memory of one identity are bounded") {
  const TokenFile file;
  ServerOptions options = options_with(file);
  options.sessions.max_sessions_per_owner = 2;
  TestServer server({"tokens"}, options);
  v1::Session session;
  CHECK(create_as(server, "alice", &session).ok());
  CHECK(create_as(server, "alice", &session).ok());
  check_quota(create_as(server, "alice", &session), "alice");
  CHECK(create_as(server, "bob", &session).ok());

  options.sessions.max_sessions_per_owner = 0;
  options.sessions.bytes_per_owner = 128 << 10;  // a call needs some 40 KB beside its state
  TestServer small({"tokens"}, options);
  std::int64_t taken = 0;
  grpc::Status refused;
  while ((refused = create_as(small, "alice", &session)).ok()) taken += session.state_bytes();
  check_quota(refused, "alice");
  CHECK(taken <= 128 << 10);
  CHECK(taken + session.state_bytes() > 128 << 10);
  check_quota(generate_as(small, "alice", request_for("tokens", {1}, 3)), "alice");
  CHECK(generate_as(small, "bob", request_for("tokens", {1}, 3)).ok());
}

TEST_CASE("tokens work over TLS as they do on the loopback") {
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
