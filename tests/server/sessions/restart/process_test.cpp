// SPDX-License-Identifier: Apache-2.0
// lintel-server with --session-store: killed and restarted, and what prevents its start.
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <regex>

#include "grpc/health/v1/health.grpc.pb.h"
#include "inference/grpc_service.grpc.pb.h"
#include "tests/server/sessions/restart/server_process.h"
#include "tests/server/support/metrics_page.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Catch::Contains;
using Code = grpc::StatusCode;

struct Ended {
  int code = 0;
  std::string err;
};
Ended run(const std::vector<std::string>& flags) {
  Process server(flags);
  const int code = server.wait();
  return {code, server.err()};
}

TEST_CASE("the sessions of a killed server continue in the next one", "[threat-11]") {
  const Files files;
  KilledCall killed;
  {
    Server server(files.flags());
    killed = kill_in_call(server);
  }
  auto& [session, expected, seen] = killed;
  struct stat directory {};
  REQUIRE(stat(files.store.c_str(), &directory) == 0);
  CHECK((directory.st_mode & 0777) == 0700);

  Server server(files.flags());
  v1::GetSessionRequest get;
  get.set_id(session.id());
  v1::Session found;
  grpc::ClientContext context;
  REQUIRE(server.sessions->Get(&context, get, &found).ok());
  CHECK(found.interrupted().call_id() == "two");
  CHECK(found.interrupted().start_position() == 23);
  const auto at = 24 + static_cast<std::int64_t>(seen.size());
  v1::GenerateRequest rest = call_on(session.id(), "two", {4}, 3000);
  rest.set_from_position(at);
  const Generated repeated = server.generate(rest);
  REQUIRE(repeated.status.ok());
  CHECK(repeated.only().first_position == at);
  seen.insert(seen.end(), repeated.only().tokens.begin(), repeated.only().tokens.end());
  CHECK(seen == expected);
  server.process.send(SIGTERM);
  CHECK(server.process.wait() == 0);
  CHECK_THAT(server.process.err(),
             Contains("session store " + files.store + ": 1 sessions, 1 with an interrupted call"));
}

TEST_CASE("a session continues on a machine of other bits and says so, or is refused there",
          "[threat-71]") {
  const Files files;
  v1::Session session;
  {
    Server server(files.flags());
    REQUIRE(server.create(v1::DURABILITY_INPUT, &session).ok());
    REQUIRE(server.generate(call_on(session.id(), "one", {1, 2, 3}, 20)).status.ok());
  }
  const auto elsewhere = [&](const std::string& numerics) {
    std::vector<std::string> all = {"/usr/bin/env", "ONEDNN_MAX_CPU_ISA=AVX2"};
    for (const std::string& flag : files.flags({"--session-numerics", numerics})) {
      all.push_back(flag);
    }
    return all;
  };
  const auto found = [&](Server& server) {
    v1::GetSessionRequest get;
    get.set_id(session.id());
    v1::Session now;
    grpc::ClientContext context;
    REQUIRE(server.sessions->Get(&context, get, &now).ok());
    return now;
  };
  {
    Server server(elsewhere("strict"));
    if (found(server).numerics() == session.numerics()) {
      WARN("this machine computes the same bits with and without AVX-512");
      return;
    }
    const grpc::Status refused = server.generate(call_on(session.id(), "two", {4}, 3)).status;
    CHECK(refused.error_code() == Code::FAILED_PRECONDITION);
    CHECK(reason_of(refused) == "NUMERICS_CHANGED");
    CHECK(found(server).numerics_changed_at() == 0);
  }
  Server server(elsewhere("warn"));
  const Generated on = server.generate(call_on(session.id(), "two", {4}, 3));
  REQUIRE(on.status.ok());
  CHECK(on.only().finish.numerics_changed());
  CHECK(found(server).numerics_changed_at() == 23);
  server.process.send(SIGTERM);
  CHECK(server.process.wait() == 0);
  CHECK_THAT(server.process.err(), Contains("a machine of other bits"));
}

TEST_CASE("a store that cannot be opened ends the start with its reason, before a model is loaded",
          "[threat-61]") {
  const Files files;
  const auto refused = [&](const std::string& why) {
    std::ofstream(files.model + "/config.json", std::ios::app) << "}";
    const Ended ended = run(files.flags());
    CHECK(ended.code == 1);
    CHECK_THAT(ended.err, Contains(files.store) && Contains(why) && !Contains("config.json"));
  };
  SECTION("it is another's") {
    const Server first(files.flags());
    refused("in use by pid " + std::to_string(first.process.pid()));
  }
  SECTION("it is no store") {
    std::filesystem::create_directory(files.store);
    std::ofstream(files.store + "/letter.txt") << "Dear";
    refused("holds letter.txt, which is no file of a session store");
    CHECK(std::filesystem::file_size(files.store + "/letter.txt") == 4);
  }
  SECTION("it is a file") {
    std::ofstream(files.store) << "x";
    refused("Not a directory");
  }
  SECTION("it is damaged") {
    { const Server first(files.flags()); }
    std::filesystem::remove(files.store + "/sessions.db-wal");
    std::ofstream(files.store + "/sessions.db") << std::string(8192, 'x');
    refused("sessions.db");
  }
}

// The store's files may not grow any more: writes then fail, with an unknown effect.
void stop_growth(Server& server) {
  const rlimit none{1, 1};
  REQUIRE(prlimit(server.process.pid(), RLIMIT_FSIZE, &none, nullptr) == 0);
}

int metrics_port_of(const Server& server) {
  std::smatch port;
  REQUIRE(std::regex_search(server.process.err(), port,
                            std::regex("metrics on http://127.0.0.1:([0-9]+)/")));
  return std::stoi(port[1]);
}

// The server's health by the Open Inference Protocol, over gRPC.
bool kserve_says(Server& server, bool live) {
  const auto kserve = inference::GRPCInferenceService::NewStub(server.channel);
  grpc::ClientContext context;
  inference::ServerLiveResponse is_live;
  inference::ServerReadyResponse is_ready;
  REQUIRE((live ? kserve->ServerLive(&context, {}, &is_live)
                : kserve->ServerReady(&context, {}, &is_ready))
              .ok());
  return live ? is_live.live() : is_ready.ready();
}

TEST_CASE("store that breaks: every readiness answer turns, and liveness after its timeout",
          "[threat-65]") {
  const Files files;
  const bool ends = GENERATE(true, false);
  CAPTURE(ends);
  Server server(files.flags({"--metrics-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0",
                             "--store-broken-timeout", ends ? "2s" : "0"}));
  const int port = metrics_port_of(server), http = server.http_port();
  struct Says {
    int readyz, healthz, rest_ready, rest_live, rest_model;
    bool grpc_ready, grpc_live;
    bool operator==(const Says&) const = default;
  };
  const auto says = [&] {
    return Says{get(port, "/readyz").code,
                get(port, "/healthz").code,
                get(http, "/v2/health/ready").code,
                get(http, "/v2/health/live").code,
                get(http, "/v2/models/tokens/ready").code,
                kserve_says(server, false),
                kserve_says(server, true)};
  };
  CHECK(says() == Says{200, 200, 200, 200, 200, true, true});
  stop_growth(server);
  v1::Session other;
  CHECK(server.create(v1::DURABILITY_INPUT, &other).error_code() == Code::UNAVAILABLE);
  const auto began = std::chrono::steady_clock::now();
  CHECK(eventually([&] { return get(port, "/readyz").code == 503; }));
  CHECK(get(http, "/health").code == 503);
  const Says broken = says();
  if (std::chrono::steady_clock::now() - began < std::chrono::seconds(2)) {
    CHECK(broken == Says{503, 200, 503, 200, 503, false, true});
  }
  if (ends) {
    CHECK(eventually([&] { return get(port, "/healthz").code == 503; }));
    CHECK(says() == Says{503, 503, 503, 503, 503, false, false});
    CHECK(std::chrono::steady_clock::now() - began >= std::chrono::seconds(2));
    CHECK_THAT(get(port, "/healthz").body, Contains("the session store is broken"));
  } else {
    CHECK(says() == Says{503, 200, 503, 200, 503, false, true});
  }
}

TEST_CASE("a store that breaks turns readiness, and sessions in memory continue") {
  const Files files;
  Server server(files.flags({"--metrics-listen", "127.0.0.1:0"}));
  v1::Session stored, none;
  REQUIRE(server.create(v1::DURABILITY_INPUT, &stored).ok());
  REQUIRE(server.create(v1::DURABILITY_NONE, &none).ok());
  const auto health = grpc::health::v1::Health::NewStub(server.channel);
  const auto serves = [&] {
    grpc::health::v1::HealthCheckResponse reply;
    grpc::ClientContext context;
    return health->Check(&context, {}, &reply).ok() &&
           reply.status() == grpc::health::v1::HealthCheckResponse::SERVING;
  };
  const int port = metrics_port_of(server);
  CHECK(serves());
  CHECK(get(port, "/readyz").code == 200);
  stop_growth(server);
  v1::Session other;
  const grpc::Status refused = server.create(v1::DURABILITY_INPUT, &other);
  CHECK(refused.error_code() == Code::UNAVAILABLE);
  CHECK_THAT(refused.error_message(), Contains("the session store is broken"));
  CHECK(eventually([&] { return !serves(); }));
  CHECK(get(port, "/readyz").code == 503);
  CHECK(get(port, "/healthz").code == 200);
  CHECK(server.generate(call_on(stored.id(), "one", {1}, 3)).status.error_code() ==
        Code::UNAVAILABLE);
  CHECK(server.generate(call_on(none.id(), "", {1}, 3)).status.ok());
  server.process.send(SIGTERM);
  CHECK(server.process.wait() == 0);
  CHECK_THAT(server.process.err(), Contains("broken until a restart"));
}

}  // namespace
}  // namespace lintel::testing
