// SPDX-License-Identifier: Apache-2.0
#include "tests/server/support/websocket_client.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace lintel::testing {

int WebSocketFrame::close_code() const {
  if (payload.size() < 2) return 0;
  return static_cast<unsigned char>(payload[0]) << 8 | static_cast<unsigned char>(payload[1]);
}

std::string websocket_handshake(const std::string& path, const std::string& headers) {
  return "GET " + path +
         " HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive, Upgrade\r\n"
         "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
         "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" +
         headers + "\r\n";
}

std::string client_frame(int opcode, std::string_view payload, bool is_final, bool is_masked) {
  constexpr std::array<unsigned char, 4> kMask = {0x37, 0xfa, 0x21, 0x3d};
  std::string bytes(1, static_cast<char>((is_final ? 0x80 : 0) | opcode));
  const int masked = is_masked ? 0x80 : 0;
  const std::size_t size = payload.size();
  const int num_bytes = size < 126 ? 0 : size <= 0xffff ? 2 : 8;
  bytes += static_cast<char>(masked | (num_bytes == 0   ? static_cast<int>(size)
                                       : num_bytes == 2 ? 126
                                                        : 127));
  for (int i = num_bytes - 1; i >= 0; --i) {
    bytes += static_cast<char>(std::uint64_t{size} >> (8 * i));
  }
  if (!is_masked) return bytes + std::string(payload);
  for (const unsigned char byte : kMask) bytes += static_cast<char>(byte);
  for (std::size_t i = 0; i < size; ++i) bytes += static_cast<char>(payload[i] ^ kMask[i % 4]);
  return bytes;
}

WebSocketClient::WebSocketClient(Wire wire, const std::string& path, const std::string& headers)
    : client_(std::move(wire)) {
  client_.send(websocket_handshake(path, headers));
  handshake_ = client_.read();
}

WebSocketFrame WebSocketClient::read() {
  WebSocketFrame frame;
  const std::string head = client_.read_raw(2);
  if (head.size() < 2) return frame;
  std::uint64_t size = static_cast<unsigned char>(head[1]);
  if (size >= 126) {
    const std::string more = client_.read_raw(size == 126 ? 2 : 8);
    size = 0;
    for (const char byte : more) size = size << 8 | static_cast<unsigned char>(byte);
  }
  frame.opcode = static_cast<unsigned char>(head[0]) & 0x0f;
  frame.payload = client_.read_raw(size);
  return frame;
}

}  // namespace lintel::testing
