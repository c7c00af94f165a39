// SPDX-License-Identifier: Apache-2.0
// The server's own listener, where descriptors run out.
#include "server/grpc/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <thread>

#include "tests/support/catch.h"
#include "tests/support/eventually.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

// Bounds the process's descriptors until it goes.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(int limit) {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit bounded = before_;
    bounded.rlim_cur = static_cast<rlim_t>(limit);
    REQUIRE(setrlimit(RLIMIT_NOFILE, &bounded) == 0);
  }
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

// Lets the three-way handshake be done by a socket that is there already.
void connect_to(int socket, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
}

bool closed_by_peer(int socket) {
  char byte = 0;
  return recv(socket, &byte, 1, MSG_DONTWAIT) == 0;
}

}  // namespace

TEST_CASE("a connection waits while there is no descriptor for it, and is refused near the limit") {
  ListenAddress address;
  address.port = 0;
  std::atomic<int> taken{0};
  int clients[3];
  for (int& client : clients) client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  Listener listener(address, std::chrono::seconds(10));
  listener.start([&](int fd) {
    ++taken;
    close(fd);
  });
  const int next = open("/dev/null", O_RDONLY | O_CLOEXEC);  // the lowest that is free
  close(next);
  {
    const DescriptorLimit limit(next);
    connect_to(clients[0], listener.port());
    // Time for the listener to meet the shortage; it need not, for the test to hold.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    CHECK(taken == 0);
    CHECK_FALSE(closed_by_peer(clients[0]));
  }
  CHECK(eventually([&] { return taken == 1; }));
  {
    const DescriptorLimit limit(next + 1);
    connect_to(clients[1], listener.port());
    CHECK(eventually([&] { return closed_by_peer(clients[1]); }));
    CHECK(taken == 1);
  }
  connect_to(clients[2], listener.port());
  CHECK(eventually([&] { return taken == 2; }));
  for (const int client : clients) close(client);
}

TEST_CASE(
    "a unix socket belongs to its server: not taken over while it is answered or deleted by "
    "others") {
  const TemporaryDirectory directory;
  ListenAddress address;
  address.unix_path = (directory.path() / "socket").string();
  auto first = std::make_unique<Listener>(address, std::chrono::seconds(10));
  CHECK_THROWS_WITH(Listener(address, std::chrono::seconds(10)), Catch::Contains("in use"));
  CHECK(std::filesystem::exists(address.unix_path));
  // Another server's socket in its place.
  std::filesystem::rename(address.unix_path, address.unix_path + ".old");
  const Listener second(address, std::chrono::seconds(10));
  first.reset();
  CHECK(std::filesystem::exists(address.unix_path));
}

TEST_CASE("a unix socket that a killed server left is replaced") {
  const TemporaryDirectory directory;
  ListenAddress address;
  address.unix_path = (directory.path() / "socket").string();
  const int left = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  address.unix_path.copy(name.sun_path, sizeof(name.sun_path) - 1);
  REQUIRE(bind(left, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0);
  close(left);
  CHECK_NOTHROW(Listener(address, std::chrono::seconds(10)));
}

TEST_CASE("an address in use or unknown: the error names it") {
  ListenAddress address;
  address.port = 0;
  const Listener first(address, std::chrono::seconds(10));
  address.port = first.port();
  CHECK_THROWS_WITH(Listener(address, std::chrono::seconds(10)),
                    Catch::Contains(address.to_string(address.port)) && Catch::Contains("in use"));
  address.host = "192.0.2.1";
  CHECK_THROWS_WITH(Listener(address, std::chrono::seconds(10)), Catch::Contains("192.0.2.1"));
}

}  // namespace lintel::testing
