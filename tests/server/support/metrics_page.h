// SPDX-License-Identifier: Apache-2.0
// What a server says over HTTP: its metrics page, as tests ask for it.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <sstream>
#include <string>

#include "tests/server/support/service_fixture.h"
#include "tests/support/catch.h"

namespace lintel::testing {

inline ServerOptions with_metrics() {
  ServerOptions options = test_options();
  options.monitoring.metrics_listen = ListenAddress{"127.0.0.1", 0, ""};
  options.models.scheduling.speculation = Speculation::kOff;
  return options;
}

struct HttpAnswer {
  int code = 0;
  std::string head, body;
};

inline HttpAnswer get(int port, const std::string& path, const std::string& host = "localhost") {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  REQUIRE(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  const std::string request = "GET " + path + " HTTP/1.0\r\nHost: " + host + "\r\n\r\n";
  REQUIRE(send(fd, request.data(), request.size(), 0) == static_cast<ssize_t>(request.size()));
  std::string all;
  char buffer[4096];
  for (ssize_t n = 0; (n = recv(fd, buffer, sizeof(buffer), 0)) > 0;) {
    all.append(buffer, static_cast<std::size_t>(n));
  }
  close(fd);
  HttpAnswer answer;
  const std::size_t end = all.find("\r\n\r\n");
  REQUIRE(end != std::string::npos);
  answer.head = all.substr(0, end);
  answer.body = all.substr(end + 4);
  answer.code = std::stoi(all.substr(9, 3));
  return answer;
}
inline HttpAnswer get(LintelServer& server, const std::string& path) {
  return get(server.metrics_port(), path);
}

// The values by name and labels as they are written: "lintel_sessions{state="idle"}".
inline std::map<std::string, double> values(LintelServer& server) {
  std::map<std::string, double> found;
  std::istringstream lines(get(server, "/metrics").body);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::size_t space = line.rfind(' ');
    found[line.substr(0, space)] = std::stod(line.substr(space + 1));
  }
  return found;
}

// A call counts when its stream is gone, a moment after its client has its status.
inline bool comes_to(TestServer& server, const std::string& name, double value) {
  return eventually([&] {
    const auto now = values(server.server());
    return now.contains(name) && now.at(name) == value;
  });
}

}  // namespace lintel::testing
