// SPDX-License-Identifier: Apache-2.0
// What runs out: room for the log, memory for sessions, descriptors.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>

#include "tests/chaos/chaos_server.h"
#include "tests/chaos/sockets.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

grpc::Status create_session(const std::shared_ptr<grpc::Channel>& channel, std::string* id) {
  grpc::ClientContext context;
  v1::CreateSessionRequest request;
  request.set_model("tokens");
  v1::Session session;
  const grpc::Status status =
      v1::SessionService::NewStub(channel)->Create(&context, request, &session);
  *id = session.id();
  return status;
}

bool try_delete(const ChaosServer& server, const std::string& id) {
  grpc::ClientContext context;
  v1::DeleteSessionRequest request;
  request.set_id(id);
  google::protobuf::Empty nothing;
  return v1::SessionService::NewStub(server.channel())->Delete(&context, request, &nothing).ok();
}

}  // namespace

TEST_CASE("full log: the server continues without it") {
  struct Place {
    const char* what;
    const char* shell;
  };
  const Place places[] = {
      {"a full disk", "exec 2>/dev/full \"$@\""},
      {"a file as large as files may be", "ulimit -f 4; exec \"$@\""},
  };
  for (const Place& place : places) {
    INFO(place.what);
    ChaosServer server({.flags = {"--log-level", "debug"}, .shell = place.shell});
    for (int i = 0; i < 200; ++i) REQUIRE(server.generate_reference() == server.reference());
    server.check_recovered("200 calls with their log on " + std::string(place.what) + ", " +
                           std::to_string(server.log().size()) + " bytes of it written");
    CHECK(server.stop() == 0);
  }
}

TEST_CASE("memory limit: new sessions are refused, and existing ones lose nothing") {
  ChaosServer server({.flags = {"--session-memory", "1MiB", "--max-queue-wait", "0"}});
  constexpr int kPart = 20;  // of the reference's 60 tokens, three times
  int refused = 0;
  std::vector<std::string> sessions;
  const auto fill = [&] {
    // The memory of the last call is released after its client has heard of its end.
    REQUIRE(eventually([&] { return server.metric("lintel_session_bytes") == 0; }));
    std::string id;
    grpc::Status status;
    while ((status = create_session(server.channel(), &id)).ok()) sessions.push_back(id);
    CHECK(status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
    CHECK_THAT(status.error_message(), Catch::Contains("1048576"));
    REQUIRE(sessions.size() > 20);
  };
  // Each continues where it was, while new ones and calls without one are refused.
  const auto go_on = [&](int part) {
    std::atomic<bool> done{false};
    int taken = 0;
    std::thread others([&] {
      const auto channel = new_channel(server.address());
      const auto count = [&](const grpc::Status& status) {
        ++(status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED ? refused : taken);
      };
      std::string id;
      while (!done) {
        count(create_session(channel, &id));
        count(generate(channel, ChaosServer::reference_request()).status);
      }
    });
    const auto first = static_cast<std::ptrdiff_t>(part * kPart);
    for (const std::string& id : sessions) {
      v1::GenerateRequest request = ChaosServer::reference_request();
      request.set_session_id(id);
      request.set_max_new_tokens(kPart);
      if (part > 0) request.clear_prompt();
      const Answer answer = generate(server.channel(), request);
      INFO(answer.status.error_message());
      CHECK(answer.status.ok());
      const auto expected = server.reference().tokens.begin() + first;
      CHECK(std::equal(answer.tokens.begin(), answer.tokens.end(), expected, expected + kPart));
    }
    done = true;
    others.join();
    CHECK(taken == 0);
  };
  const auto empty = [&] {
    for (const std::string& id : sessions) CHECK(try_delete(server, id));
    sessions.clear();
  };
  fill();
  empty();
  server.take_baseline();
  fill();
  for (int part = 0; part < 3; ++part) go_on(part);
  CHECK(server.metric("lintel_sessions") == static_cast<double>(sessions.size()));
  CHECK(server.serving());
  const std::size_t most = sessions.size();
  empty();
  server.check_recovered(std::to_string(most) + " sessions at the limit, " +
                         std::to_string(refused) + " refusals");
}

namespace {

// The number of bytes in the line of the log's plan that has `name`, as "224 MiB" or "21.6 GiB".
double planned_bytes(const std::string& log, const std::string& name) {
  const std::size_t at = log.find("memory: " + name);
  REQUIRE(at != std::string::npos);
  std::istringstream words(log.substr(at + 8 + name.size()));
  double number = 0;
  std::string unit;
  words >> number >> unit;
  return number * (unit == "GiB" ? 1 << 30 : 1 << 20);
}

std::size_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::size_t kilobytes = 0;
  while (file >> name >> kilobytes && name != "MemAvailable:") file >> name;  // "kB"
  return kilobytes * 1024;
}

// Fills the memory of sessions under this --memory-limit, and compares.
void check_plan(const std::string& limit, const std::string& shell) {
  INFO(limit);
  const TemporaryDirectory directory;
  ModelConfig config = tiny_config(TinyModel::kTokens);
  config.n_layers = 4;
  config.d_head = 256;
  config.d_model = 512;
  config.attention.assign(4, config.attention.front());
  const std::string path = (directory.path() / "tokens").string();
  write_random_model(path, config, /*seed=*/7);  // whose states have 2 MiB
  ChaosServer server({.flags = {"--memory-limit", limit}, .models = {path}, .shell = shell});
  const double sum = planned_bytes(server.log(), "sum");
  const double budget = server.metric("lintel_session_limit_bytes");
  CHECK(sum <= 0.9 * planned_bytes(server.log(), "limit") + (1 << 20));
  int sessions = 0;
  std::string id;
  while (create_session(server.channel(), &id).ok()) {
    v1::GenerateRequest request = tokens_request(/*seed=*/1, /*max_new_tokens=*/3);
    request.set_session_id(id);
    CHECK(generate(server.channel(), request).status.ok());
    ++sessions;
  }
  CHECK(server.metric("lintel_session_bytes") > 0.9 * budget);
  const auto rss = static_cast<double>(server.usage().rss_bytes);
  std::cerr << "memory plan of " << limit << ": " << sessions << " sessions, " << rss / (1 << 20)
            << " MiB resident of " << sum / (1 << 20) << " planned\n";
  CHECK(rss > 0.9 * budget);
  CHECK(rss <= 1.05 * sum);
  CHECK(server.stop() == 0);
}

// Starts the program in a control group of its own with so many bytes, where that can be made.
const char* const kInGroup =
    "group=/sys/fs/cgroup/memory/lintel_test_$$\n"
    "mkdir $group 2>/dev/null && echo 536870912 > $group/memory.limit_in_bytes && "
    "echo $$ > $group/cgroup.procs\n"
    "exec \"$@\"";

}  // namespace

TEST_CASE("memory plan: a server with full sessions stays within it, in huge pages",
          "[memory_plan]") {
  const char* const huge_pages = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 exec \"$@\"";
  check_plan("512MiB", huge_pages);
  check_plan("2GiB", huge_pages);
  // Its sessions take 18 GiB.
  if (available_bytes() > std::size_t{20} << 30) check_plan("24GiB", huge_pages);
}

TEST_CASE("memory plan: the limit of a control group holds", "[memory_plan]") {
  const std::filesystem::path groups = "/sys/fs/cgroup/memory";
  const std::filesystem::path probe = groups / "lintel_probe";
  std::error_code error;
  if (!std::filesystem::create_directory(probe, error)) return;  // for root alone, and v1
  std::filesystem::remove(probe, error);
  check_plan("auto", kInGroup);  // the system would end a server that takes more
  for (const auto& entry : std::filesystem::directory_iterator(groups, error)) {
    if (entry.path().filename().string().starts_with("lintel_test_")) ::rmdir(entry.path().c_str());
  }
}

TEST_CASE("exhausted descriptors: streams continue, and later clients are served again",
          "[threat-50]") {
  ChaosServer server({.shell = "ulimit -n 48; exec \"$@\""});
  int made = 0;
  const auto exhaust = [&](bool with_metrics) {
    grpc::ClientContext context;
    const auto stream =
        v1::GenerationService::NewStub(server.channel())->Generate(&context, endless_request());
    v1::GenerateResponse message;
    REQUIRE(stream->Read(&message));
    std::vector<Socket> connections;
    for (int i = 0; i < 200; ++i, ++made) {
      connections.push_back(Socket::connect(server.port()));
      connections.back().try_write(http2::hello());
    }
    CHECK(eventually([&] { return server.usage().descriptors >= 24; }));
    CHECK(server.usage().descriptors < 28);  // the others are kept
    for (int i = 0; with_metrics && i < 60; ++i, ++made) {
      connections.push_back(Socket::connect(server.metrics_port()));
    }
    CHECK(eventually([&] { return server.usage().descriptors >= (with_metrics ? 40 : 24); }));
    // Connected clients stay connected.
    CHECK(server.generate_reference() == server.reference());
    for (int i = 0; i < 100; ++i) REQUIRE(stream->Read(&message));
    context.TryCancel();
    while (stream->Read(&message)) {
    }
    CHECK(stream->Finish().error_code() == grpc::StatusCode::CANCELLED);
    // Others wait or are refused, and no thread spins meanwhile: 100 ticks are a second.
    CHECK(eventually([&] {
      const std::uint64_t before = server.cpu_ticks();
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      return server.cpu_ticks() - before <= 10;
    }));
    connections.clear();
    CHECK(eventually([&] { return server.usage().descriptors <= server.baseline().descriptors; }));
    CHECK(server.serving());
  };
  exhaust(false);
  server.take_baseline();
  exhaust(false);
  exhaust(true);
  server.check_recovered(std::to_string(made) + " connections with 48 descriptors");
  CHECK(server.stop() == 0);
}

}  // namespace lintel::testing
