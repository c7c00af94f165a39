// SPDX-License-Identifier: Apache-2.0
// WebSocketClient: frames on a connection, for tests of what a server answers and when.
#pragma once

#include <string>
#include <string_view>

#include "tests/server/support/http_client.h"

namespace lintel::testing {

struct WebSocketFrame {
  int opcode = -1;  // -1: the connection ended before there was one
  std::string payload;
  // The code of a close frame; 0: it has none.
  int close_code() const;
};

inline constexpr int kContinuation = 0, kText = 1, kBinary = 2, kClose = 8, kPing = 9, kPong = 10;

// A GET that asks for a WebSocket. `headers`: "Name: value\r\n" lines.
std::string websocket_handshake(const std::string& path, const std::string& headers = "");
// A client's frame.
std::string client_frame(int opcode, std::string_view payload, bool is_final = true,
                         bool is_masked = true);

class WebSocketClient {
 public:
  // Asks for the WebSocket; handshake() is the answer.
  WebSocketClient(Wire wire, const std::string& path, const std::string& headers = "");
  WebSocketClient(int port, const std::string& path, const std::string& headers = "")
      : WebSocketClient(plain_wire(port), path, headers) {}

  const HttpReply& handshake() const { return handshake_; }
  void send(std::string_view text) { client_.send(client_frame(kText, text)); }
  void send_raw(std::string_view bytes) { client_.send(bytes); }
  WebSocketFrame read();
  bool ended() { return client_.ended(); }  // the server has closed, and sent nothing more
  void leave() { client_.close(); }         // without a closing handshake

 private:
  HttpClient client_;
  HttpReply handshake_;
};

}  // namespace lintel::testing
