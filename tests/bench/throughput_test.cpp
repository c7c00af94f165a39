// SPDX-License-Identifier: Apache-2.0
// The window of a measurement, and what comes before it: a first connection that fails though the
// server listens costs none, and clients that are slow to begin are waited for.
#include "bench/throughput.h"

#include <dlfcn.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <future>
#include <thread>

#include "bench/sequences.h"
#include "client/lib/call_error.h"
#include "tests/support/catch.h"
#include "tests/support/random_model.h"

namespace {

std::atomic<int> connections_to_fail{0};

}  // namespace

// Replaces the C library's, for gRPC, too. A connection that must fail fails as gRPC 1.51 reports
// it where another call spoilt errno.
extern "C" int connect(int socket, const sockaddr* address, socklen_t size) {
  static const auto real = reinterpret_cast<decltype(&::connect)>(dlsym(RTLD_NEXT, "connect"));
  int type = 0;
  socklen_t type_size = sizeof(type);
  ::getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &type_size);
  if (type == SOCK_STREAM && address->sa_family != AF_UNIX && connections_to_fail.load() > 0 &&
      connections_to_fail.fetch_sub(1) > 0) {
    errno = ENOENT;
    return -1;
  }
  return real(socket, address, size);
}

namespace lintel::testing {
TEST_CASE("clients connect again where their first connections fail, before anything is measured") {
  const ModelConfig config = tiny_config(TinyModel::kImage);
  const bench::ModelFiles files(config);
  const bench::OwnServer server(files.load(WeightType::kF32), {});
  const bench::ThroughputOptions load{.address = server.address(),
                                      .sequence = bench::sequence_plan(config),
                                      .clients = 3,
                                      .warm_up = std::chrono::duration<double>(0.05),
                                      .window = std::chrono::duration<double>(0.2)};
  connections_to_fail = 4;
  const bench::Throughput result = bench::measure_throughput(load);
  CHECK(connections_to_fail <= 0);  // they did
  CHECK(result.tokens_per_second > 0);
}

TEST_CASE("the window begins when every client has had a token, however short the warm-up") {
  const ModelConfig config = tiny_config(TinyModel::kImage);
  const bench::ModelFiles files(config);
  // One row: each waits for those before it.
  const bench::OwnServer server(files.load(WeightType::kF32), {.workers = 1, .rows = 1});
  const bench::ThroughputOptions load{.address = server.address(),
                                      .sequence = bench::sequence_plan(config),
                                      .clients = 8,
                                      .warm_up = std::chrono::duration<double>(0),
                                      .window = std::chrono::duration<double>(0.2)};
  const bench::Throughput result = bench::measure_throughput(load);
  CHECK(result.clients_begun == 8);
  CHECK(result.tokens_per_second > 0);
}

TEST_CASE("a window begins with a message and ends before one") {
  using Clock = bench::MessageWindow::Clock;
  const auto at = [](int message) { return Clock::time_point(std::chrono::nanoseconds(message)); };
  const auto edge = [](auto wait) { return std::async(std::launch::async, wait); };
  bench::MessageWindow window;
  int message = 0;
  CHECK_FALSE(window.note_message(at(message)));
  auto begin = edge([&] { return window.begin_with_message(std::chrono::minutes(1)); });
  while (!window.note_message(at(++message))) std::this_thread::yield();
  CHECK(begin.get() == at(message));
  CHECK(window.note_message(at(++message)));
  CHECK_FALSE(window.is_over());
  auto end = edge([&] { return window.end_before_message(std::chrono::minutes(1)); });
  while (window.note_message(at(++message))) std::this_thread::yield();
  CHECK(end.get() == at(message));
  CHECK_FALSE(window.note_message(at(++message)));
  CHECK(window.is_over());
}

TEST_CASE("a window without messages begins and ends when the waits for them time out") {
  bench::MessageWindow window;
  const auto before = bench::MessageWindow::Clock::now();
  const auto begin = window.begin_with_message(std::chrono::milliseconds(1));
  CHECK(begin > before);
  CHECK_FALSE(window.is_over());
  CHECK(window.end_before_message(std::chrono::milliseconds(1)) > begin);
  CHECK(window.is_over());
}

TEST_CASE("a window that is given up waits for no message") {
  bench::MessageWindow window;
  window.give_up();
  const auto begin = window.begin_with_message(std::chrono::hours(1));
  CHECK(window.end_before_message(std::chrono::hours(1)) > begin);
}

TEST_CASE("the window is as long as it takes to see a token, however short it was to be") {
  const ModelConfig config = tiny_config(TinyModel::kImage);
  const bench::ModelFiles files(config);
  const bench::OwnServer server(files.load(WeightType::kF32), {});
  const bench::ThroughputOptions load{.address = server.address(),
                                      .sequence = bench::sequence_plan(config),
                                      .warm_up = std::chrono::duration<double>(0.05),
                                      .window = std::chrono::duration<double>(1e-9)};
  const bench::Throughput result = bench::measure_throughput(load);
  CHECK(result.tokens_per_second > 0);
  CHECK(result.seconds > 1e-9);
}

TEST_CASE("a measurement ends at once where its clients fail, without its window") {
  const ModelConfig config = tiny_config(TinyModel::kImage);
  const bench::ModelFiles files(config);
  const bench::OwnServer server(files.load(WeightType::kF32), {});
  const bench::ThroughputOptions load{.address = server.address(),
                                      .model = "unknown",
                                      .sequence = bench::sequence_plan(config),
                                      .clients = 2,
                                      .warm_up = std::chrono::duration<double>(0),
                                      .window = std::chrono::duration<double>(300)};
  const auto begin = std::chrono::steady_clock::now();
  CHECK_THROWS_AS(bench::measure_throughput(load), CallError);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));
}

}  // namespace lintel::testing
