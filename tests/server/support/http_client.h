// SPDX-License-Identifier: Apache-2.0
// HttpClient: HTTP/1.1 on a socket, for tests of what a server answers and when.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "tests/server/support/service_fixture.h"

namespace lintel::testing {

inline ServerOptions with_http() {
  ServerOptions options = test_options();
  options.http.listen = ListenAddress{"127.0.0.1", 0, ""};
  options.monitoring.metrics_listen = ListenAddress{"127.0.0.1", 0, ""};
  return options;
}

struct HttpReply {
  int status = 0;      // 0: the connection ended before there was one
  std::string head;    // status line and headers, as they came
  std::string body;    // chunks put together
  bool whole = false;  // it ended as it should

  // A header's value; empty without it. `name`: lower case, as the server writes it.
  std::string header(const std::string& name) const;
};

// The functions that read and write a connection.
struct Wire {
  std::function<void(std::string_view)> write;
  std::function<std::string()> read_some;  // empty: the end, or nothing for a minute
  std::function<void()> close;
};

// A socket that is connected to 127.0.0.1. receive_buffer_bytes: what the system takes in for it;
// 0: as it likes.
int connect_to(int port, int receive_buffer_bytes = 0);
Wire plain_wire(int port, int receive_buffer_bytes = 0);

class HttpClient {
 public:
  explicit HttpClient(int port) : HttpClient(plain_wire(port)) {}
  explicit HttpClient(Wire wire) : wire_(std::move(wire)) {}
  ~HttpClient() { close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void send(std::string_view bytes) { wire_.write(bytes); }
  HttpReply read();  // one answer
  // The bytes of a body as they come, until there are this many or it ends.
  std::string read_raw(std::size_t bytes);
  bool ended();  // the server has closed, and sent nothing that was not read
  void close();

 private:
  bool fill();

  Wire wire_;
  bool closed_ = false;
  std::string buffer_;
};

// "Name: value\r\n" lines.
std::string post_text(const std::string& path, std::string_view body, const std::string& type,
                      const std::string& headers = "");
// A whole request on a connection of its own.
HttpReply post(int port, const std::string& path, std::string_view body,
               const std::string& type = "application/json", const std::string& headers = "");
HttpReply request(int port, const std::string& text);

inline const std::string kGeneratePath = "/lintel.v1.GenerationService/Generate";

}  // namespace lintel::testing
