// SPDX-License-Identifier: Apache-2.0
// The HTTP port: connections, limits, identities, and clients that are slow or gone.
#include <nlohmann/json.hpp>
#include <thread>

#include "server/http/connect/rpc_format.h"
#include "tests/server/support/calls_as.h"
#include "tests/server/support/http_client.h"
#include "tests/server/support/metrics_page.h"
#include "tests/server/support/token_file.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

constexpr const char* kList = "/lintel.v1.ModelService/List";

v1::GenerateRequest endless() {
  v1::GenerateRequest request = request_for("tokens", {1}, 0);
  request.clear_max_new_tokens();
  return request;
}

std::string endless_post(const std::string& headers = "") {
  return post_text(kGeneratePath, envelope(0, endless().SerializeAsString()),
                   "application/connect+proto", headers);
}

ServerOptions unlimited() {
  ServerOptions options = with_http();
  options.models.limits.max_new_tokens = 1'000'000'000;
  return options;
}

HttpReply post_as(TestServer& server, const std::string& who, const std::string& path,
                  const std::string& body) {
  const std::string token = who.empty() ? "" : "Authorization: Bearer token-" + who + "\r\n";
  return post(server.server().http_port(), path, body, "application/json", token);
}

}  // namespace

TEST_CASE("a connection serves one request after the other, also when they come at once") {
  TestServer server({"bytes"}, with_http());
  HttpClient client(server.server().http_port());
  for (int i = 0; i < 3; ++i) {
    client.send(post_text(kList, "{}", "application/json"));
    CHECK(client.read().status == 200);
  }
  const std::string one = post_text(kList, "{}", "application/json");
  client.send(one + one + "GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n" + one);
  CHECK(client.read().status == 200);
  CHECK(client.read().status == 200);
  CHECK(client.read().status == 404);
  CHECK(client.read().status == 200);
  client.send(post_text(kList, "{}", "application/json", "Connection: close\r\n"));
  CHECK(client.read().header("connection") == "close");
  CHECK(client.ended());
}

TEST_CASE("a connection serves the next request after one with large headers") {
  ServerOptions options = with_http();
  options.http.max_header_bytes = 64 << 10;
  TestServer server({"bytes"}, options);
  HttpClient client(server.server().http_port());
  const std::string large =
      post_text(kList, "{}", "application/json", "X-Large: " + std::string(40'000, 'x') + "\r\n");
  for (int i = 0; i < 3; ++i) {
    for (std::size_t at = 0; at < large.size(); at += 1400) client.send(large.substr(at, 1400));
    CHECK(client.read().status == 200);
    client.send(post_text(kList, "{}", "application/json"));
    CHECK(client.read().status == 200);
  }
}

TEST_CASE("HTTP/1.0 clients, HEAD, chunked bodies and expectations are served") {
  TestServer server({"bytes"}, with_http());
  const int port = server.server().http_port();
  const std::string body = R"({"prompt":{"text":"ab"},"maxNewTokens":3})";
  const HttpReply old = request(port, "POST " + kGeneratePath + " HTTP/1.0\r\nContent-Length: " +
                                          std::to_string(body.size()) + "\r\n\r\n" + body);
  CHECK(old.status == 200);
  CHECK(old.header("transfer-encoding").empty());
  CHECK_THAT(old.body, Catch::StartsWith("{\"chunks\"") && Contains("\"finished\""));

  const HttpReply chunked =
      request(port, "POST " + std::string(kList) +
                        " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                        "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n");
  CHECK(chunked.status == 200);

  HttpClient waiting(port);
  waiting.send(
      "POST " + std::string(kList) +
      " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
      "Expect: 100-continue\r\n\r\n");
  CHECK(waiting.read().status == 100);
  waiting.send("{}");
  CHECK(waiting.read().status == 200);
  CHECK(request(port, "GET " + kGeneratePath + " HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .header("allow") == "POST");
}

TEST_CASE("a request beyond a limit is refused with the limit, and the server continues",
          "[threat-26]") {
  ServerOptions options = with_http();
  options.http.max_header_bytes = 2048;
  options.connections.max_message_bytes = 8192;
  TestServer server({"bytes"}, options);
  const int port = server.server().http_port();
  const HttpReply head =
      post(port, kList, "{}", "application/json", "X-Long: " + std::string(4000, 'x') + "\r\n");
  CHECK(head.status == 431);
  CHECK_THAT(head.body, Contains("2048 bytes"));
  const HttpReply body = post(port, kList, std::string(9000, ' '));
  CHECK(body.status == 413);
  CHECK_THAT(body.body, Contains("8192 bytes") && Contains("--max-message-size"));
  const std::string chunk = "1000\r\n" + std::string(4096, ' ') + "\r\n";
  const HttpReply chunked =
      request(port, "POST " + std::string(kList) +
                        " HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" +
                        chunk + chunk + chunk);
  CHECK(chunked.status == 413);
  CHECK(request(port, "NO SUCH THING\r\n\r\n").status == 400);
  CHECK(request(port, "POST " + std::string(kList) + " HTTP/1.1\r\n\r\n").status == 400);
  CHECK(post(port, kList, "{}").status == 200);
}

TEST_CASE("a client that sends its request too slowly is answered 408, and its connection ends",
          "[threat-26]") {
  ServerOptions options = with_http();
  options.http.header_timeout_ms = std::chrono::milliseconds(400);
  options.http.body_timeout_ms = std::chrono::milliseconds(400);
  options.http.idle_timeout_ms = std::chrono::milliseconds(400);
  TestServer server({"bytes"}, options);
  const int port = server.server().http_port();
  HttpClient head(port);
  head.send("POST /x HTTP/1.1\r\nHost: ");
  const HttpReply late = head.read();
  CHECK(late.status == 408);
  CHECK_THAT(late.body, Contains("400 ms"));
  CHECK(head.ended());
  HttpClient body(port);
  body.send("POST " + std::string(kList) +
            " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{");
  CHECK(body.read().status == 408);
  HttpClient idle(port);
  idle.send(post_text(kList, "{}", "application/json"));
  CHECK(idle.read().status == 200);
  CHECK(idle.ended());
  CHECK(HttpClient(port).ended());
  CHECK(comes_to(server, "lintel_http_connections", 0));
}

TEST_CASE("bodies that are being read share their memory, and release it", "[threat-26]") {
  ServerOptions options = with_http();
  options.http.memory_bytes = 10'000;
  TestServer server({"bytes"}, options);
  const int port = server.server().http_port();
  const auto send_part = [](HttpClient& client) {
    client.send("POST " + std::string(kList) +
                " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\n" +
                std::string(6000, ' '));
  };
  HttpClient one(port), other(port);
  send_part(one);
  CHECK(comes_to(server, "lintel_http_body_bytes", 6000));
  send_part(other);
  const HttpReply refused = other.read();
  CHECK(refused.status == 503);
  CHECK_THAT(refused.body, Contains("--http-memory"));
  CHECK_FALSE(refused.header("retry-after").empty());
  other.close();
  CHECK(comes_to(server, "lintel_http_body_bytes", 6000));
  one.send(std::string(2998, ' ') + "{}");
  CHECK(one.read().status == 200);
  CHECK(comes_to(server, "lintel_http_body_bytes", 0));
  send_part(one);  // as many again
  CHECK(comes_to(server, "lintel_http_body_bytes", 6000));
  one.close();
  CHECK(comes_to(server, "lintel_http_body_bytes", 0));
}

TEST_CASE("connections beyond their number are answered with 503, and others take their place",
          "[threat-26]") {
  ServerOptions options = with_http();
  SECTION("of all clients") { options.http.max_connections = 2; }
  SECTION("of one address") { options.http.max_client_connections = 2; }
  TestServer server({"bytes"}, options);
  const int port = server.server().http_port();
  HttpClient one(port), two(port);
  for (HttpClient* const client : {&one, &two}) {
    client->send(post_text(kList, "{}", "application/json"));
    CHECK(client->read().status == 200);
  }
  HttpClient three(port);
  const HttpReply refused = three.read();
  CHECK(refused.status == 503);
  CHECK(refused.whole);
  CHECK(json::parse(refused.body)["code"] == "unavailable");
  one.close();
  CHECK(eventually([&] { return post(port, kList, "{}").status == 200; }));
  CHECK(values(server.server()).at("lintel_http_connections_refused_total") >= 1);
}

TEST_CASE("tokens and roles are asked for over HTTP as over gRPC") {
  const TokenFile file;
  ServerOptions options = with_http();
  options.security.auth_tokens = file.path;
  TestServer server({"bytes"}, options);
  const std::string generate_body = R"({"prompt":{"text":"ab"},"maxNewTokens":3})";
  const std::string score_path = "/lintel.v1.GenerationService/Score";
  const std::string score_body = R"({"sequences":[{"text":"abc"}]})";

  const HttpReply stranger = post_as(server, "", kGeneratePath, generate_body);
  CHECK(stranger.status == 401);
  CHECK(json::parse(stranger.body)["code"] == "unauthenticated");
  CHECK(post_as(server, "mallory", kGeneratePath, generate_body).status == 401);
  CHECK(post_as(server, "bob", kGeneratePath, generate_body).status == 200);
  CHECK(post_as(server, "bob", score_path, score_body).status == 403);
  CHECK(post_as(server, "carol", score_path, score_body).status == 200);
  CHECK(post_as(server, "bob", "/lintel.v1.AdminService/GetLogLevel", "{}").status == 403);
  CHECK(post_as(server, "root", "/lintel.v1.AdminService/GetLogLevel", "{}").status == 200);
  // A stranger's body is not read.
  HttpClient client(server.server().http_port());
  client.send("POST " + kGeneratePath +
              " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n");
  CHECK(client.read().status == 401);
}

TEST_CASE("plain HTTP on a public address: no caller has the role admin") {
  ServerOptions options = with_http();
  options.security.insecure_public = true;
  const bool is_public = GENERATE(false, true);
  if (is_public) options.http.listen = ListenAddress{"0.0.0.0", 0, ""};
  TestServer server({"bytes"}, options);
  const HttpReply reply = post_as(server, "", "/lintel.v1.AdminService/GetLogLevel", "{}");
  CHECK(reply.status == (is_public ? 403 : 200));
  CHECK(post_as(server, "", kList, "{}").status == 200);
}

TEST_CASE("a gRPC client cannot claim to call over HTTP", "[threat-39]") {
  const TokenFile file;
  ServerOptions options = with_http();
  options.security.auth_tokens = file.path;
  TestServer server({"bytes"}, options);
  grpc::ClientContext context;
  set_token(context, "bob");
  context.AddMetadata("lintel-inner-key", "");
  context.AddMetadata("lintel-inner-certificate-bin", "root");
  v1::ScoreRequest request;
  request.add_sequences()->set_text("abc");
  const auto reader = server.generation->Score(&context, request);
  v1::ScoreResponse message;
  CHECK_FALSE(reader->Read(&message));
  CHECK(reader->Finish().error_code() == grpc::PERMISSION_DENIED);
}

TEST_CASE("an identity's streams over HTTP and gRPC are counted together") {
  const TokenFile file;
  ServerOptions options = unlimited();
  options.security.auth_tokens = file.path;
  options.identity.max_streams = 1;
  TestServer server({"tokens"}, options);
  HttpClient running(server.server().http_port());
  running.send(endless_post("Authorization: Bearer token-bob\r\n"));
  CHECK_THAT(running.read_raw(15), Contains("200 OK"));

  CHECK(generate_as(server, "bob", request_for("tokens", {1}, 2)).error_code() ==
        grpc::RESOURCE_EXHAUSTED);
  const std::string body = R"({"prompt":{"tokens":{"ids":[1]}},"maxNewTokens":2})";
  const HttpReply refused = post_as(server, "bob", kGeneratePath, body);
  CHECK(refused.status == 429);
  CHECK_FALSE(refused.header("retry-after").empty());
  CHECK(post_as(server, "both", kGeneratePath, body).status == 200);
  running.close();
  CHECK(eventually([&] { return post_as(server, "bob", kGeneratePath, body).status == 200; }));
}

TEST_CASE("a client that disconnects in mid-stream ends its call") {
  TestServer server({"tokens"}, unlimited());
  HttpClient client(server.server().http_port());
  client.send(endless_post());
  CHECK_THAT(client.read_raw(100'000), Contains("200 OK"));
  CHECK(comes_to(server, "lintel_streams", 1));
  client.close();
  CHECK(comes_to(server, "lintel_streams", 0));
  CHECK(comes_to(server, "lintel_http_connections", 0));
}

TEST_CASE("a client that reads nothing stops its stream, and gets all of it once it reads",
          "[threat-34]") {
  ServerOptions options = unlimited();
  options.streaming.outbox_tokens = 256;
  TestServer server({"tokens"}, options);
  v1::GenerateRequest request = request_for("tokens", {1}, 400'000);
  request.set_max_tokens_per_message(16);
  HttpClient client(plain_wire(server.server().http_port(), /*receive_buffer_bytes=*/4096));
  client.send(post_text(kGeneratePath, envelope(0, request.SerializeAsString()),
                        "application/connect+proto"));
  const std::string generated = R"(lintel_tokens_total{model="tokens",kind="generated"})";
  double before = -1;
  int still = 0;  // looks at the same count
  CHECK(eventually([&] {
    const double count = values(server.server())[generated];
    still = count > 0 && count == std::exchange(before, count) ? still + 1 : 0;
    return still > 20;
  }));
  CHECK(before < 200'000);  // of twice as many
  const HttpReply reply = client.read();
  CHECK(reply.whole);
  CHECK(reply.body.ends_with(envelope(kEndOfStream, "{}")));
}

TEST_CASE("a hundred HTTP connections that read nothing do not keep another's request waiting",
          "[threat-55]") {
  ServerOptions options = unlimited();
  options.models.scheduling.workers = 1;
  options.models.scheduling.max_batch_rows = 16;
  options.streaming.outbox_tokens = 16'384;
  TestServer server({"tokens"}, options);
  Scheduler& scheduler = server.scheduler("tokens");
  const int port = server.server().http_port();
  constexpr std::size_t kUnread = 100;
  std::vector<std::unique_ptr<HttpClient>> unread;
  for (std::size_t i = 0; i < kUnread; ++i) {
    unread.push_back(std::make_unique<HttpClient>(plain_wire(port, /*receive_buffer_bytes=*/4096)));
    unread.back()->send(endless_post());
  }
  REQUIRE(eventually([&] {
    const Scheduler::Stats stats = scheduler.stats();
    return stats.running + stats.queued == kUnread;
  }));
  // The other connection's turn comes before all the unread streams are full.
  const v1::GenerateRequest wanted = request_for("tokens", {2}, 20);
  const HttpReply reply = post(port, kGeneratePath, envelope(0, wanted.SerializeAsString()),
                               "application/connect+proto");
  const std::uint64_t produced = scheduler.stats().generated_tokens;
  CHECK(reply.status == 200);
  CHECK(reply.whole);
  INFO(produced << " tokens in all");
  CHECK(produced < kUnread * static_cast<std::size_t>(options.streaming.outbox_tokens) / 2);
}

TEST_CASE("a client that takes nothing for the write timeout is gone") {
  ServerOptions options = unlimited();
  options.http.write_timeout_ms = std::chrono::milliseconds(200);
  TestServer server({"tokens"}, options);
  HttpClient client(plain_wire(server.server().http_port(), /*receive_buffer_bytes=*/4096));
  client.send(endless_post());
  CHECK_THAT(client.read_raw(15), Contains("200 OK"));
  CHECK(comes_to(server, "lintel_streams", 0));
  CHECK(comes_to(server, "lintel_http_timeouts_total", 1));
}

TEST_CASE("a drain lets streams end, closes idle connections and takes no new ones") {
  ServerOptions options = with_http();
  options.models.scheduling.workers = 0;
  TestServer server({"tokens"}, options);
  const int port = server.server().http_port();
  HttpClient idle(port), running(port);
  idle.send(post_text(kList, "{}", "application/json"));
  CHECK(idle.read().status == 200);
  running.send(post_text(kGeneratePath,
                         envelope(0, request_for("tokens", {1}, 3000).SerializeAsString()),
                         "application/connect+proto"));
  REQUIRE(eventually([&] { return server.scheduler("tokens").stats().queued == 1; }));
  std::thread draining([&] { CHECK(server.server().drain(std::chrono::seconds(60))); });
  // The stream lasts for as long as nothing steps.
  CHECK(comes_to(server, "lintel_http_connections", 1));
  CHECK(idle.ended());
  run_until_idle(server.scheduler("tokens"));
  const HttpReply reply = running.read();
  draining.join();
  CHECK(reply.whole);
  CHECK(reply.body.ends_with(envelope(kEndOfStream, "{}")));
}

TEST_CASE("pages of other origins call only where a flag names them", "[threat-36]") {
  ServerOptions options = with_http();
  const auto from = [](int port, const std::string& origin, const std::string& host = "localhost") {
    return request(port, "POST " + std::string(kList) + " HTTP/1.1\r\nHost: " + host +
                             "\r\nOrigin: " + origin +
                             "\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}");
  };
  SECTION("no flag") {
    TestServer server({"bytes"}, options);
    const int port = server.server().http_port();
    CHECK(from(port, "https://example.org").status == 403);
    CHECK(from(port, "null").status == 403);
    CHECK(from(port, "http://localhost").status == 200);
    CHECK(from(port, "http://localhost:1").status == 403);  // another server's page
    // An attacker's name that resolves to this server.
    CHECK(from(port, "http://evil.example", "evil.example").status == 403);
    CHECK(from(port, "http://localhost").header("access-control-allow-origin").empty());
  }
  SECTION("one origin") {
    options.http.cors_origins = {"https://example.org"};
    TestServer server({"bytes"}, options);
    const int port = server.server().http_port();
    const HttpReply reply = from(port, "https://example.org");
    CHECK(reply.status == 200);
    CHECK(reply.header("access-control-allow-origin") == "https://example.org");
    CHECK(reply.header("vary") == "origin");
    CHECK(from(port, "https://example.com").status == 403);
    const HttpReply preflight = request(
        port, "OPTIONS " + std::string(kList) +
                  " HTTP/1.1\r\nHost: localhost\r\nOrigin: https://example.org\r\n"
                  "Access-Control-Request-Method: POST\r\n"
                  "Access-Control-Request-Headers: content-type,connect-protocol-version\r\n\r\n");
    CHECK(preflight.status == 204);
    CHECK(preflight.header("access-control-allow-headers") ==
          "content-type,connect-protocol-version");
    CHECK(preflight.header("access-control-allow-methods") == "GET, POST, DELETE");
  }
  SECTION("all") {
    options.http.cors_origins = {"*"};
    TestServer server({"bytes"}, options);
    CHECK(from(server.server().http_port(), "https://any.example")
              .header("access-control-allow-origin") == "*");
  }
}

TEST_CASE("on a loopback address the server is called by a name of this machine or an allowed one",
          "[threat-37]") {
  ServerOptions options = with_http();
  options.http.cors_origins = {"https://page.example", "http://other.example:8080"};
  options.http.allowed_hosts = {"proxy.example", "Named.Example:81", "[fd00::1]"};
  TestServer server({"bytes"}, options);
  const int port = server.server().http_port();
  const auto status = [&](const std::string& method, const std::string& target,
                          const std::string& host, const std::string& more = "") {
    return request(port, method + " " + target + " HTTP/1.1\r\nConnection: close\r\nHost: " + host +
                             "\r\n" + more + "\r\n")
        .status;
  };
  for (const char* const host :
       {"localhost", "LOCALHOST:8080", "localhost.", "a.localhost:1", "127.0.0.1:8080", "127.8.8.8",
        "[::1]", "[::1]:8080", "page.example", "PAGE.example", "other.example:8080",
        "proxy.example", "proxy.example:9000", "named.example:81", "[fd00::1]", "[fd00::1]:9"}) {
    CAPTURE(host);
    CHECK(status("GET", "/v2", host) == 200);
  }
  const std::string list = "/lintel.v1.ModelService/List?encoding=json&message=%7B%7D";
  for (const char* const host :
       {"evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example",
        "evillocalhost", "other.example", "named.example", "named.example:82", "192.168.1.1",
        "[fd00::2]", "[::2]:80", "evil.example:127.0.0.1", "localhost@evil.example"}) {
    CAPTURE(host);
    for (const char* const method : {"GET", "HEAD", "POST", "OPTIONS", "PUT"}) {
      for (const std::string& target : {std::string("/"), std::string("/v2"), list,
                                        std::string("/v2/health/live"), std::string("/nothing")}) {
        CHECK(status(method, target, host) == 403);
      }
    }
    CHECK(status("POST", kList, host, "Origin: http://" + std::string(host) + "\r\n") == 403);
    // A host in the address takes precedence.
    CHECK(status("GET", "http://" + std::string(host) + "/v2", "localhost") == 403);
    CHECK(status("GET", "http://localhost/v2", host) == 200);
  }
  CHECK(status("GET", "/v2", "localhost\r\nHost: evil.example") == 400);
  const HttpReply refused = request(
      port, "GET /v2 HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\n\r\n");
  CHECK_THAT(refused.body, Contains("evil.example") && Contains("--http-allowed-host"));
  CHECK(refused.header("access-control-allow-origin").empty());
  // No browser leaves it out.
  CHECK(request(port, "GET /v2 HTTP/1.0\r\n\r\n").status == 200);
  // A page of an allowed name is the server's own.
  CHECK(status("GET", "/v2", "proxy.example:81", "Origin: https://proxy.example:81\r\n") == 200);
}

TEST_CASE("where other machines can connect, and where every page may call, any name will do") {
  ServerOptions options = with_http();
  options.security.insecure_public = true;
  SECTION("public") { options.http.listen = ListenAddress{"0.0.0.0", 0, ""}; }
  SECTION("every page") { options.http.cors_origins = {"*"}; }
  TestServer server({"bytes"}, options);
  CHECK(request(server.server().http_port(), "GET /v2 HTTP/1.1\r\nHost: any.example\r\n\r\n")
            .status == 200);
}

TEST_CASE("sessions are listed by no GET", "[threat-37]") {
  TestServer server({"bytes"}, with_http());
  const int port = server.server().http_port();
  const std::string path = "/lintel.v1.SessionService/List";
  const HttpReply refused =
      request(port, "GET " + path +
                        "?connect=v1&encoding=json&message=%7B%7D HTTP/1.1\r\n"
                        "Host: localhost\r\n\r\n");
  CHECK(refused.status == 405);
  CHECK(refused.header("allow") == "POST");
  CHECK(post(port, path, "{}").status == 200);
}

TEST_CASE("a gRPC client on the HTTP port receives an error that names the mistake") {
  TestServer server({"bytes"}, with_http());
  const int port = server.server().http_port();
  const auto list = [&] {
    const auto channel = grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                             grpc::InsecureChannelCredentials());
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::ListModelsResponse models;
    return v1::ModelService::NewStub(channel)->List(&context, {}, &models);
  };
  for (int i = 0; i < 2; ++i) {
    const grpc::Status status = list();
    CHECK(status.error_code() == grpc::UNIMPLEMENTED);
    CHECK_THAT(status.error_message(), Contains("HTTP/1.1, not gRPC") && Contains("--listen"));
  }
  CHECK(comes_to(server, "lintel_http_connections", 0));
  // Only a connection's first words are of HTTP/2, and frames that never end are not read for ever.
  HttpClient later(port);
  later.send(post_text(kList, "{}", "application/json"));
  CHECK(later.read().status == 200);
  later.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  CHECK(later.read().status == 400);
  HttpClient endless(port);
  endless.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string("\xff\xff\xff\4\0\0\0\0\0", 9));
  endless.send(std::string(200'000, 'a'));
  endless.read_raw(18);  // its settings
  CHECK(endless.read_raw(1).empty());
  CHECK(comes_to(server, "lintel_http_connections", 0));
}

TEST_CASE("an HTTP connection past --max-connection-age takes no new request", "[threat-23]") {
  ServerOptions options = unlimited();
  options.connections.max_age_ms = std::chrono::milliseconds(1000);
  options.connections.max_age_grace_ms = std::chrono::milliseconds(0);  // to the streams' end
  TestServer server({"tokens"}, options);
  const int port = server.server().http_port();
  HttpClient idle(port), busy(port), running(port);
  running.send(endless_post());
  CHECK_THAT(running.read_raw(15), Contains("200 OK"));
  idle.send(post_text(kList, "{}", "application/json"));
  CHECK(idle.read().status == 200);
  // A busy connection is closed by "connection: close" of an answer, or between two requests.
  const auto began = std::chrono::steady_clock::now();
  int answers = 0;
  bool was_told = false;
  while (!was_told && std::chrono::steady_clock::now() < began + std::chrono::seconds(60)) {
    busy.send(post_text(kList, "{}", "application/json"));
    const HttpReply reply = busy.read();
    if (reply.status == 0) break;
    REQUIRE(reply.status == 200);
    ++answers;
    was_told = reply.header("connection") == "close";
  }
  CHECK(answers > 1);
  CHECK(busy.ended());
  CHECK(std::chrono::steady_clock::now() < began + std::chrono::seconds(30));
  CHECK(idle.ended());
  // The stream continues.
  CHECK(running.read_raw(100'000).size() == 100'000);
  CHECK(values(server.server()).at("lintel_streams") == 1);
  running.close();
  CHECK(comes_to(server, "lintel_http_connections", 0));
  CHECK(post(port, kList, "{}").status == 200);
}

TEST_CASE("an HTTP stream ends with the grace of its connection's age, and not before") {
  ServerOptions options = unlimited();
  options.connections.max_age_ms = std::chrono::milliseconds(100);
  options.connections.max_age_grace_ms = std::chrono::milliseconds(200);
  TestServer server({"tokens"}, options);
  const auto began = std::chrono::steady_clock::now();
  HttpClient running(server.server().http_port());
  running.send(endless_post());
  while (!running.read_raw(4096).empty()) {
  }
  CHECK(std::chrono::steady_clock::now() >= began + std::chrono::milliseconds(300));
  CHECK(comes_to(server, "lintel_streams", 0));
  CHECK(comes_to(server, "lintel_http_connections", 0));
}

TEST_CASE("a page cannot make a browser send a form that is taken for JSON", "[threat-36]") {
  ServerOptions options = with_http();
  options.http.cors_origins = {"*"};
  TestServer server({"bytes"}, options);
  const int port = server.server().http_port();
  const std::string form = "application/x-www-form-urlencoded";
  CHECK(post(port, kList, "{}", form).status == 200);
  CHECK(post(port, kList, "{}", form, "Origin: https://example.org\r\n").status == 415);
  CHECK(post(port, kList, "{}", "text/plain").status == 415);
}

TEST_CASE("every answer over HTTP says which server it comes from") {
  ServerOptions options = with_http();
  options.replica_id = "server-2";
  TestServer server({"bytes"}, options);
  const int port = server.server().http_port();
  CHECK(post(port, kList, "{}").header("lintel-replica") == "server-2");
  const auto unknown = request(port, "GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n");
  CHECK(unknown.header("lintel-replica") == "server-2");
}

TEST_CASE("the request's id comes back, and HTTP requests are counted") {
  TestServer server({"bytes"}, with_http());
  const int port = server.server().http_port();
  CHECK(post(port, kList, "{}", "application/json", "X-Request-Id: mine-7\r\n")
            .header("x-request-id") == "mine-7");
  CHECK(post(port, kList, "{}").header("x-request-id").size() == 32);
  CHECK(request(port, "GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n").status == 404);
  CHECK(comes_to(server, R"(lintel_http_answers_total{status="2xx"})", 2));
  CHECK(comes_to(server, R"(lintel_http_answers_total{status="4xx"})", 1));
  CHECK(comes_to(server, R"(lintel_http_connections_accepted_total)", 3));
  CHECK(comes_to(server, R"(lintel_requests_total{method="lintel.v1.ModelService/List",code="OK"})",
                 2));
}

}  // namespace lintel::testing
