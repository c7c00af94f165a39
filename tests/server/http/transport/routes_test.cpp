// SPDX-License-Identifier: Apache-2.0
// Every route of the server: who may call it, from where, and with how long a body.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "server/http/transport/http_routes.h"
#include "tests/server/support/http_client.h"
#include "tests/server/support/token_file.h"
#include "tests/support/catch.h"
#include "tests/support/eventually.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

constexpr const char* kAlice = "Authorization: Bearer token-alice\r\n";

// A path that goes to the route.
std::string path_of(const HttpRoute& route) {
  std::string path = route.path;
  for (const std::string_view wildcard : {"{}", "{*}"}) {
    for (std::size_t at = path.find(wildcard); at != std::string::npos; at = path.find(wildcard)) {
      path.replace(at, wildcard.size(), "nosuch");
    }
  }
  return path;
}

// The lines of a request that each carry `token` by one of the headers of the path's protocol.
std::vector<std::string> token_lines(const HttpRoutes& routes, const HttpRoute& route,
                                     const std::string& token) {
  std::vector<std::string> lines;
  for (const std::string& name : routes.protocol_of(path_of(route)).token_headers) {
    lines.push_back(name + (name == "authorization" ? ": Bearer " : ": ") + token + "\r\n");
  }
  return lines;
}

// The answer to a request without a body.
HttpReply answer_of(int port, const HttpRoute& route, const std::string& headers) {
  const std::string length = route.method == "GET" ? "" : "Content-Length: 0\r\n";
  return request(port, route.method + " " + path_of(route) + " HTTP/1.1\r\nHost: localhost\r\n" +
                           length + headers + "\r\n");
}

// A port of the loopback that was free just now.
int port_that_is_free() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  ::close(fd);
  return ntohs(address.sin_port);
}

// The end of a pipe that is written to. REQUIRES: another thread will open its other end.
class WrittenPipe {
 public:
  explicit WrittenPipe(const std::filesystem::path& path) {
    REQUIRE(eventually([&] {
      fd_ = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
      return fd_ >= 0;
    }));
  }
  ~WrittenPipe() { close(); }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

}  // namespace

TEST_CASE("routes: where tokens are set, each needs one but health and the page",
          "[threat-2][threat-101]") {
  const TokenFile tokens;
  ServerOptions options = with_http();
  options.security.auth_tokens = tokens.path;
  options.monitoring.metrics_listen.reset();  // so that /metrics is among them
  TestServer server({"tokens"}, options);
  const int port = server.server().http_port();
  const std::set<std::string> open = {"/health",
                                      "/ping",
                                      "/v2/health/live",
                                      "/v2/health/ready",
                                      "/v2/models/{}/ready",
                                      "/v2/models/{}/versions/{}/ready"};
  std::map<std::string, int> found;
  const HttpRoutes& routes = server.server().http_routes();
  for (const HttpRoute* const route : routes.all()) {
    INFO(route->method << " " << route->path);
    ++found[route->path];
    const HttpReply without = answer_of(port, *route, "");
    CHECK(without.status > 0);
    // Headers that the page's files alone have.
    const bool is_page = !without.header("content-security-policy").empty();
    CHECK(route->is_open == (is_page || open.contains(route->path)));
    CHECK((without.status == 401) == !route->is_open);
    const std::vector<std::string> unknown = token_lines(routes, *route, "nosuch");
    CHECK(!unknown.empty());
    for (const std::string& line : unknown) {
      INFO(line);
      CHECK((answer_of(port, *route, line).status == 401) == !route->is_open);
    }
    for (const std::string& line : token_lines(routes, *route, "token-alice")) {
      INFO(line);
      CHECK(answer_of(port, *route, line).status != 401);
    }
  }
  for (const std::string& path : open) CHECK(found.contains(path));
  for (const char* const path :
       {"/metrics", "/tokenize", "/detokenize", "/apply-template", "/props", "/v1/models",
        "/v1/models/{*}", "/v1/chat/completions/input_tokens", "/v2/models/{}/stats",
        "/v2/models/{}/config", "/v2/repository/index", "/v2/repository/models/{}/load"}) {
    INFO(path);
    CHECK(found.contains(path));
  }
}

TEST_CASE("routes: each refuses pages of other origins, names of others, and bodies that are long",
          "[threat-101]") {
  const TokenFile tokens;
  ServerOptions options = with_http();
  options.security.auth_tokens = tokens.path;
  options.connections.max_message_bytes = 8192;
  options.monitoring.metrics_listen.reset();
  TestServer server({"tokens"}, options);
  const int port = server.server().http_port();
  const HttpRoutes& routes = server.server().http_routes();
  for (const HttpRoute* const route : routes.all()) {
    INFO(route->method << " " << route->path);
    const std::string token = token_lines(routes, *route, "token-alice").front();
    CHECK(answer_of(port, *route, token + "Origin: https://evil.example\r\n").status == 403);
    const std::string begin = route->method + " " + path_of(*route) + " HTTP/1.1\r\nHost: ";
    CHECK(request(port, begin + "evil.example\r\n" + token + "\r\n").status == 403);
    if (route->method == "GET") continue;
    CHECK(request(port, begin + "localhost\r\nContent-Length: 8193\r\n" + token + "\r\n").status ==
          413);
  }
}

TEST_CASE("health: 200 without a token, 503 with the reason while no model can answer") {
  const TokenFile tokens;
  const TemporaryDirectory files;
  ServerOptions options = with_http();
  options.security.auth_tokens = tokens.path;
  options.models.repository = files.path();
  for (const char* const name : {"held", "broken"}) {
    write_random_model(files.path() / name, tiny_config(TinyModel::kTokens), /*seed=*/5);
  }
  std::filesystem::resize_file(files.path() / "broken/model.safetensors", 700);
  // The load of this model does not end before the file is closed.
  const auto held = files.path() / "held.jinja";
  REQUIRE(mkfifo(held.c_str(), 0600) == 0);
  options.models.chat_templates = {{"held", held}};
  const SteadyClock clock;
  TestServer server(options, clock, {});
  const int port = server.server().http_port();
  const auto load = [port](const char* name) {
    return post(port, "/v2/repository/models/" + std::string(name) + "/load", "",
                "application/json", "Authorization: Bearer token-root\r\n")
        .status;
  };
  const auto health = [port](const char* path = "/health") {
    return request(port, "GET " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  };
  // An operator has loaded nothing yet.
  for (const char* const path : {"/health", "/ping"}) {
    CHECK(health(path).status == 200);
    CHECK(health(path).body == R"({"status":"ok"})");
  }
  CHECK(load("broken") == 400);
  CHECK(health().status == 503);
  CHECK_THAT(health().body, Catch::Contains("no model could be loaded"));
  std::thread loading([&] { CHECK(load("held") == 200); });
  CHECK(eventually(
      [&] { return health().body.find("a model is being loaded") != std::string::npos; }));
  CHECK(health("/ping").status == 503);
  std::ofstream(held).close();
  loading.join();
  CHECK(health().status == 200);
}

TEST_CASE("health: 503 while the models of the start are loaded, and so is every other route") {
  const TemporaryDirectory files;
  write_random_model(files.path() / "held", tiny_config(TinyModel::kTokens), /*seed=*/5);
  const auto held = files.path() / "held.jinja";
  REQUIRE(mkfifo(held.c_str(), 0600) == 0);
  const int port = port_that_is_free();
  ServerOptions options = with_http();
  options.http.listen->port = port;
  options.models.repository = files.path();
  options.models.load = {"held"};
  options.models.chat_templates = {{"held", held}};
  const SteadyClock clock;
  std::unique_ptr<LintelServer> server;
  std::jthread loading([&] { server = std::make_unique<LintelServer>(options, clock); });
  WrittenPipe pipe(held);  // the load reads until it is closed
  const auto get = [port](const char* path) {
    return request(port, "GET " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  };
  const auto is_loading = Catch::Contains("the server starts: its models are being loaded");
  for (const char* const path : {"/health", "/ping"}) {
    const HttpReply reply = get(path);
    CHECK(reply.status == 503);
    CHECK(reply.header("retry-after") == "1");
    CHECK_THAT(reply.body, Catch::Contains("unavailable_error") && is_loading);
  }
  for (const char* const path : {"/", "/v1/models", "/v2/health/live", "/api/tags"}) {
    CAPTURE(path);
    const HttpReply reply = get(path);
    CHECK(reply.status == 503);
    CHECK(reply.header("retry-after") == "1");
    CHECK_THAT(reply.body, is_loading);
  }
  CHECK(get("/no_such").status == 404);
  CHECK(post(port, "/v1/chat/completions", "{}").status == 503);
  CHECK(post(port, "/v1/messages", "{}").status == 529);
  pipe.close();
  loading.join();
  CHECK(get("/health").status == 503);  // it does not serve yet
  server->start();
  CHECK(get("/health").status == 200);
  CHECK(get("/health").header("retry-after").empty());
  const HttpReply not_ready = get("/v2/models/nosuch/ready");
  CHECK(not_ready.status == 503);
  CHECK(not_ready.header("retry-after") == "1");
  CHECK(get("/").status == 200);
  CHECK(get("/v1/models").status == 200);
}

TEST_CASE("metrics: on the HTTP port where no port is set for them, with a token") {
  const TokenFile tokens;
  ServerOptions options = with_http();
  options.security.auth_tokens = tokens.path;
  const bool has_port = GENERATE(false, true);
  if (!has_port) options.monitoring.metrics_listen.reset();
  TestServer server({"tokens"}, options);
  const auto metrics = [&](const std::string& headers) {
    return request(server.server().http_port(),
                   "GET /metrics HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n");
  };
  if (has_port) {
    CHECK(metrics(kAlice).status == 404);
    return;
  }
  CHECK(metrics("").status == 401);
  const HttpReply page = metrics(kAlice);
  CHECK(page.status == 200);
  CHECK_THAT(page.header("content-type"), Catch::Contains("version=0.0.4"));
  CHECK_THAT(page.body, Catch::Contains("lintel_http_connections"));
}

}  // namespace lintel::testing
