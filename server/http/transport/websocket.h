// SPDX-License-Identifier: Apache-2.0
// The server's side of WebSockets (RFC 6455): handshake and frames. No extensions are offered.
#pragma once

#include <grpcpp/support/status.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "server/http/transport/http_message.h"

namespace lintel {

// Codes of a closing handshake (RFC 6455, 7.4.1).
enum class WebSocketClose : std::uint16_t {
  kNormal = 1000,
  kGoingAway = 1001,
  kProtocolError = 1002,
  kUnsupportedData = 1003,
  kNoStatus = 1005,  // the peer gave none; is not sent
  kInvalidText = 1007,
  kPolicy = 1008,
  kTooLarge = 1009,
  kTryAgainLater = 1013,
};

// True if a request has `Upgrade: websocket`.
bool asks_for_websocket(const HttpRequest& request);
// Fails if the request is no handshake that this server accepts; `http_status` is for the refusal.
grpc::Status check_websocket_handshake(const HttpRequest& request, bool is_http_10,
                                       int& http_status);
// Headers of the answer to a handshake.
HttpHeaders websocket_headers(const HttpRequest& request);

// Frames of the server.
std::string websocket_text(std::string_view text);
std::string websocket_ping();
std::string websocket_pong(std::string_view payload);
// kNoStatus sends no code. `reason`: at most 123 bytes are sent.
std::string websocket_close(WebSocketClose code, std::string_view reason);

// A client's bytes as messages. Used by one thread at a time.
class WebSocketReader {
 public:
  explicit WebSocketReader(std::size_t max_message_bytes) : max_message_bytes_(max_message_bytes) {}

  enum class Event {
    kNone,     // all bytes are taken, and more are needed
    kMessage,  // a text is complete
    kPing,     // control() is its payload
    kClose,    // the client closes; close_code() answers it
    kInvalid,  // the client breaks the protocol or a limit; close_code() and problem() say how
  };
  // Takes bytes up to the first event. REQUIRES: a complete message was taken, and no event was
  // kClose or kInvalid.
  std::size_t put(std::string_view bytes, Event& event);

  // True if a part of a message has come.
  bool is_in_message() const { return is_in_message_; }
  std::size_t message_bytes() const { return message_.size(); }  // that are here
  std::string take_message();
  const std::string& control() const { return control_; }
  WebSocketClose close_code() const { return close_code_; }
  std::string_view problem() const { return problem_; }

 private:
  std::size_t head_bytes() const;
  void begin_frame();
  Event end_frame();
  Event end_close();
  void refuse(WebSocketClose code, std::string_view problem);

  const std::size_t max_message_bytes_;
  std::string head_;  // of the frame, as far as it came
  bool is_in_frame_ = false;
  std::uint8_t opcode_ = 0;
  bool is_final_ = false;
  std::array<char, 4> mask_{};
  std::size_t num_unmasked_ = 0;  // bytes of the frame
  std::uint64_t left_ = 0;        // likewise
  bool is_in_message_ = false;
  std::string message_;
  std::string control_;
  bool is_refused_ = false;
  WebSocketClose close_code_ = WebSocketClose::kNormal;
  std::string_view problem_;
};

}  // namespace lintel
