// SPDX-License-Identifier: Apache-2.0
// The way to the server: addresses, proxies, and connections that fail.
#include <grpcpp/support/client_interceptor.h>

#include <cstdlib>

#include "client/lib/channel.h"
#include "client/lib/repeat.h"
#include "tests/client/support/connect_proxy.h"
#include "tests/client/support/fake_server.h"
#include "tests/client/support/run_lintel.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

// Sets proxies in the environment as an administrator does, for the length of a scope.
class ProxyEnvironment {
 public:
  explicit ProxyEnvironment(const std::string& proxy) {
    for (const char* name : kNames) setenv(name, ("http://" + proxy).c_str(), 1);
  }
  ~ProxyEnvironment() {
    for (const char* name : kNames) unsetenv(name);
  }

 private:
  static constexpr const char* kNames[] = {"http_proxy", "https_proxy", "grpc_proxy"};
};

constexpr const char* kElsewhere = "lintel.invalid:50051";  // a reserved name

// gRPC's status after connect() failed with this errno's text.
grpc::Status failed_connect(const std::string& address, const std::string& text) {
  return {grpc::StatusCode::UNAVAILABLE,
          "failed to connect to all addresses; last error: UNKNOWN: " + address +
              ": Failed to connect to remote host: " + text};
}

// Fails the first calls of a channel before anything is sent.
class FailingFirst : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  FailingFirst(int& to_fail, grpc::Status status) : to_fail_(to_fail), status_(status) {}

  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new Interceptor(to_fail_-- > 0, status_);
  }

 private:
  class Interceptor : public grpc::experimental::Interceptor {
   public:
    Interceptor(bool fails, grpc::Status status) : fails_(fails), status_(status) {}
    void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
      using grpc::experimental::InterceptionHookPoints;
      if (!fails_) return methods->Proceed();
      if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_RECV_STATUS)) {
        *methods->GetRecvStatus() = status_;
      }
      if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
        return methods->Hijack();
      }
      if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_RECV_MESSAGE)) {
        methods->FailHijackedRecvMessage();
      }
      methods->Proceed();
    }

   private:
    const bool fails_;
    const grpc::Status status_;
  };
  int& to_fail_;
  const grpc::Status status_;
};

// A client whose first `to_fail` calls fail so.
Client failing_first(const FakeServer& server, int& to_fail, const grpc::Status& status) {
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(std::make_unique<FailingFirst>(to_fail, status));
  return Client(
      grpc::experimental::CreateCustomChannelWithInterceptors(
          server.address(), grpc::InsecureChannelCredentials(), {}, std::move(interceptors)),
      std::chrono::seconds(20));
}

}  // namespace

TEST_CASE("an address has a port, a machine, and no protocol") {
  CHECK(full_address("localhost") == "localhost:50051");
  CHECK(full_address("10.0.0.1") == "10.0.0.1:50051");
  CHECK(full_address("10.0.0.1:7") == "10.0.0.1:7");
  CHECK(full_address("::1") == "[::1]:50051");
  CHECK(full_address("[::1]") == "[::1]:50051");
  CHECK(full_address("[::1]:7") == "[::1]:7");
  CHECK(full_address("unix:/run/lintel") == "unix:/run/lintel");
  CHECK_THROWS_WITH(full_address("http://a:1"), Catch::Contains("without http://"));
  CHECK(proxy_address("proxy:3128") == "proxy:3128");
  CHECK(proxy_address("http://proxy:3128/") == "proxy:3128");
  CHECK_THROWS_WITH(proxy_address("proxy"), Catch::Contains("the port is missing"));
  CHECK_THROWS_WITH(proxy_address("https://proxy:1"), Catch::Contains("HTTP proxy"));
  for (const char* local : {"localhost:1", "127.0.0.1:1", "127.1.2.3:1", "[::1]:1", "unix:x"}) {
    CHECK(is_local_address(local));
  }
  for (const char* far : {"10.0.0.1:1", "localhost.example:1", "127.0.0.1.example:1", "[::2]:1"}) {
    CHECK_FALSE(is_local_address(far));
  }
}

TEST_CASE("proxies of the environment are used only on request") {
  FakeServer server;
  ConnectProxy proxy(server.address());
  const ProxyEnvironment environment(proxy.address());
  CHECK(run_lintel({"health", "--address", server.address(), "--token", "secret"}).code == 0);
  CHECK(run_lintel({"health", "--address", kElsewhere, "--deadline", "20"}).code == 3);
  CHECK(proxy.asked().empty());
}

TEST_CASE("a requested proxy is used, but not to this machine") {
  FakeServer server;
  ConnectProxy proxy(server.address());
  const auto health = [&proxy](const std::string& address, std::vector<std::string> more) {
    more.insert(more.begin(), {"health", "--address", address, "--proxy", proxy.address()});
    return run_lintel(more);
  };
  CHECK(health(server.address(), {"--token", "secret"}).code == 0);
  CHECK(proxy.asked().empty());
  const CommandResult through = health(kElsewhere, {});
  INFO(through.err);
  CHECK(through.code == 0);
  CHECK(proxy.asked() == std::vector<std::string>{"CONNECT " + std::string(kElsewhere)});
}

TEST_CASE("a token does not go through a proxy in plain text") {
  FakeServer server;
  ConnectProxy proxy(server.address());
  const CommandResult result = run_lintel(
      {"health", "--address", kElsewhere, "--proxy", proxy.address(), "--token", "secret"});
  CHECK(result.code == 2);
  CHECK_THAT(result.err, Catch::Contains(proxy.address()) && Catch::Contains("plain text") &&
                             !Catch::Contains("secret"));
  CHECK(proxy.asked().empty());
}

TEST_CASE("a failure that is not of connect is no connect failure") {
  const auto odd = [](const grpc::Status& status) {
    const auto failure = connect_failure(status, /*encrypted=*/false);
    REQUIRE(failure);
    return failure->odd;
  };
  CHECK(odd(failed_connect("ipv4:127.0.0.1:5", "No such file or directory")));
  CHECK(odd(failed_connect("ipv6:%5B::1%5D:5", "Success")));
  CHECK_FALSE(odd(failed_connect("unix:/x", "No such file or directory")));
  CHECK_FALSE(odd(failed_connect("ipv4:127.0.0.1:5", "Connection refused")));
  CHECK_FALSE(odd({grpc::StatusCode::UNAVAILABLE, "DNS resolution failed for a:1: any text"}));
  CHECK(connect_failure(failed_connect("ipv4:127.0.0.1:5", "Connection refused"), false)->reason ==
        "Connection refused");
  const auto wrong_name = connect_failure(
      {grpc::StatusCode::UNAVAILABLE,
       "failed to connect to all addresses; last error: UNKNOWN: Peer name localhost is not in "
       "peer certificate"},
      /*encrypted=*/true);
  CHECK_THAT(wrong_name->reason, Catch::Contains("its certificate is for other names"));
  CHECK_FALSE(wrong_name->hint.empty());  // and not: start a server
  CHECK_FALSE(connect_failure({grpc::StatusCode::UNAVAILABLE, "Socket closed"}, false));
  CHECK_FALSE(
      connect_failure({grpc::StatusCode::INTERNAL, "failed to connect to all addresses"}, false));
}

TEST_CASE("a lost connection is distinguished from a server's error") {
  const auto lost = [](const std::string& text) {
    return is_lost_connection({grpc::StatusCode::UNAVAILABLE, text});
  };
  for (const char* text : {"Socket closed", "recvmsg:Connection reset by peer", "Broken pipe",
                           "GOAWAY received", "keepalive watchdog timeout", "Transport closed"}) {
    INFO(text);
    CHECK(lost(text));
  }
  CHECK_FALSE(lost("model a is being loaded"));
  CHECK_FALSE(lost("failed to connect to all addresses; last error: UNKNOWN: Connection refused"));
  CHECK_FALSE(is_lost_connection({grpc::StatusCode::INTERNAL, "Socket closed"}));
  CHECK_FALSE(is_lost_connection({grpc::StatusCode::UNAVAILABLE, "Socket closed", "details"}));
}

TEST_CASE("a first connection with an unknown failure is retried once") {
  FakeServer server;
  const auto odd = failed_connect("ipv4:127.0.0.1:5", "No such file or directory");
  v1::GenerateRequest request;
  request.set_max_new_tokens(2);
  int to_fail = 1;
  CHECK(failing_first(server, to_fail, odd).get_model().name() == "tiny");
  to_fail = 1;
  CHECK(failing_first(server, to_fail, odd).generate(request).at(0).tokens.size() == 2);
  to_fail = 2;
  CHECK_THROWS_AS(failing_first(server, to_fail, odd).get_model(), CallError);
  CHECK(to_fail == 0);
  to_fail = 1;
  const auto refused = failed_connect("ipv4:127.0.0.1:5", "Connection refused");
  CHECK_THROWS_AS(failing_first(server, to_fail, refused).get_model(), CallError);
  to_fail = 1;
  const grpc::Status gone(grpc::StatusCode::UNAVAILABLE, "Socket closed");
  CHECK_THROWS_AS(failing_first(server, to_fail, gone).generate(request), CallError);
}

}  // namespace lintel::testing
