// SPDX-License-Identifier: Apache-2.0
#include "server/http/transport/websocket.h"

#include <openssl/evp.h>

#include <algorithm>
#include <utility>

#include "model/core/utf8.h"
#include "server/http/transport/request_head.h"

namespace lintel {
namespace {

enum Opcode : std::uint8_t {
  kContinuation = 0,
  kText = 1,
  kBinary = 2,
  kClosing = 8,
  kPinging = 9,
  kPonging = 10,
};
constexpr std::uint8_t kFinal = 0x80, kReserved = 0x70, kOpcode = 0x0f;
constexpr std::uint8_t kMasked = 0x80, kLength = 0x7f;
constexpr std::uint8_t kLength16 = 126, kLength64 = 127;  // the length is in the next bytes
constexpr std::size_t kMostControlBytes = 125;

std::uint8_t byte_of(char c) { return static_cast<std::uint8_t>(c); }

// True if `value` is among the values of a header, which are separated by commas.
bool has_value(std::string_view header, std::string_view value) {
  while (!header.empty()) {
    std::string_view each = header.substr(0, header.find(','));
    header.remove_prefix(std::min(each.size() + 1, header.size()));
    const std::size_t begin = std::min(each.find_first_not_of(" \t"), each.size());
    each = each.substr(begin, each.find_last_not_of(" \t") + 1 - begin);
    if (lower(each) == value) return true;
  }
  return false;
}

// True for 16 bytes in base64.
bool is_key(std::string_view key) {
  return key.size() == 24 && key.ends_with("==") &&
         std::ranges::all_of(key.substr(0, 22), [](char c) {
           return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                  c == '+' || c == '/';
         });
}

std::string accept_of(std::string_view key) {
  const std::string text = std::string(key) + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
  std::array<unsigned char, EVP_MAX_MD_SIZE> hash{};
  unsigned int size = 0;
  EVP_Digest(text.data(), text.size(), hash.data(), &size, EVP_sha1(), nullptr);
  std::array<unsigned char, 4 * EVP_MAX_MD_SIZE / 3 + 4> encoded{};
  const int length = EVP_EncodeBlock(encoded.data(), hash.data(), static_cast<int>(size));
  return {reinterpret_cast<const char*>(encoded.data()), static_cast<std::size_t>(length)};
}

std::string frame(Opcode opcode, std::string_view payload) {
  std::string bytes(1, static_cast<char>(kFinal | opcode));
  const auto add_length = [&](int num_bytes) {
    for (int i = num_bytes - 1; i >= 0; --i) {
      bytes.push_back(static_cast<char>(std::uint64_t{payload.size()} >> (8 * i)));
    }
  };
  if (payload.size() < kLength16) {
    add_length(1);
  } else if (payload.size() <= 0xffff) {
    bytes.push_back(static_cast<char>(kLength16));
    add_length(2);
  } else {
    bytes.push_back(static_cast<char>(kLength64));
    add_length(8);
  }
  bytes += payload;
  return bytes;
}

bool is_utf8(std::string_view text) {
  constexpr std::size_t kPiece = 4096;
  Utf8Stream stream;
  std::string characters;
  std::size_t num_checked = 0;
  for (std::size_t at = 0; at < text.size(); at += kPiece) {
    characters.clear();
    stream.push(text.substr(at, kPiece), characters);
    // Invalid characters were replaced, and differ.
    if (text.substr(num_checked, characters.size()) != characters) return false;
    num_checked += characters.size();
  }
  return !stream.holds_back();
}

// Codes that a peer may send (RFC 6455, 7.4).
bool is_close_code(unsigned code) {
  return (code >= 1000 && code <= 1003) || (code >= 1007 && code <= 1014) ||
         (code >= 3000 && code <= 4999);
}

}  // namespace

bool asks_for_websocket(const HttpRequest& request) {
  return has_value(request.header("upgrade"), "websocket");
}

grpc::Status check_websocket_handshake(const HttpRequest& request, bool is_http_10,
                                       int& http_status) {
  http_status = 400;
  const auto invalid = [](const char* what) {
    return grpc::Status(grpc::INVALID_ARGUMENT, std::string("the WebSocket handshake ") + what);
  };
  if (request.method != "GET" || is_http_10) return invalid("is not a GET of HTTP/1.1");
  if (announces_body(request)) return invalid("has a body");
  if (!has_value(request.header("connection"), "upgrade")) {
    return invalid("has no header connection: upgrade");
  }
  if (request.header("sec-websocket-version") != "13") {
    http_status = 426;
    return invalid("has not the header sec-websocket-version: 13");
  }
  if (!is_key(request.header("sec-websocket-key"))) {
    return invalid("has no sec-websocket-key of 16 bytes in base64");
  }
  return grpc::Status::OK;
}

HttpHeaders websocket_headers(const HttpRequest& request) {
  return {{"upgrade", "websocket"},
          {"connection", "upgrade"},
          {"sec-websocket-accept", accept_of(request.header("sec-websocket-key"))}};
}

std::string websocket_text(std::string_view text) { return frame(kText, text); }

std::string websocket_ping() { return frame(kPinging, {}); }

std::string websocket_pong(std::string_view payload) { return frame(kPonging, payload); }

std::string websocket_close(WebSocketClose code, std::string_view reason) {
  if (code == WebSocketClose::kNoStatus) return frame(kClosing, {});
  const auto number = static_cast<std::uint16_t>(code);
  std::string payload = {static_cast<char>(number >> 8), static_cast<char>(number & 0xff)};
  payload += reason.substr(0, kMostControlBytes - payload.size());
  return frame(kClosing, payload);
}

std::string WebSocketReader::take_message() { return std::exchange(message_, {}); }

void WebSocketReader::refuse(WebSocketClose code, std::string_view problem) {
  is_refused_ = true;
  close_code_ = code;
  problem_ = problem;
}

// The length of the frame's head, as far as the bytes so far show it.
std::size_t WebSocketReader::head_bytes() const {
  constexpr std::size_t kLeast = 2;
  if (head_.size() < kLeast) return kLeast;
  const std::uint8_t length = byte_of(head_[1]) & kLength;
  const std::size_t more = length == kLength64 ? 8 : length == kLength16 ? 2 : 0;
  return kLeast + more + ((byte_of(head_[1]) & kMasked) != 0 ? mask_.size() : 0);
}

void WebSocketReader::begin_frame() {
  constexpr auto kWrong = WebSocketClose::kProtocolError;
  const std::uint8_t first = byte_of(head_[0]), second = byte_of(head_[1]);
  if ((first & kReserved) != 0) return refuse(kWrong, "a frame has reserved bits");
  if ((second & kMasked) == 0) return refuse(kWrong, "a frame is not masked");
  opcode_ = first & kOpcode;
  is_final_ = (first & kFinal) != 0;
  left_ = second & kLength;
  if (left_ >= kLength16) {
    const bool is_long = left_ == kLength64;
    left_ = 0;
    for (std::size_t i = 2; i < head_.size() - mask_.size(); ++i) {
      left_ = left_ << 8 | byte_of(head_[i]);
    }
    if (left_ < kLength16 || (is_long && (left_ <= 0xffff || left_ >> 63 != 0))) {
      return refuse(kWrong, "a frame's length is not in its shortest form");
    }
  }
  std::copy(head_.end() - static_cast<std::ptrdiff_t>(mask_.size()), head_.end(), mask_.begin());
  head_.clear();
  num_unmasked_ = 0;
  is_in_frame_ = true;
  if (opcode_ == kClosing || opcode_ == kPinging || opcode_ == kPonging) {
    control_.clear();
    if (is_final_ && left_ <= kMostControlBytes) return;
    return refuse(kWrong, "a control frame is in parts, or has more than 125 bytes");
  }
  if (opcode_ > kBinary) return refuse(kWrong, "a frame has an unknown opcode");
  if ((opcode_ == kContinuation) != is_in_message_) {
    return refuse(kWrong, "a frame does not follow on the one before it");
  }
  if (opcode_ == kBinary) {
    return refuse(WebSocketClose::kUnsupportedData, "messages are text");
  }
  if (left_ > max_message_bytes_ - message_.size()) {
    return refuse(WebSocketClose::kTooLarge, "a message is longer than --max-message-size");
  }
  is_in_message_ = true;
}

WebSocketReader::Event WebSocketReader::end_close() {
  close_code_ = WebSocketClose::kNoStatus;
  if (control_.empty()) return Event::kClose;
  const unsigned code =
      control_.size() < 2 ? 0U
                          : static_cast<unsigned>(byte_of(control_[0]) << 8 | byte_of(control_[1]));
  if (!is_close_code(code) || !is_utf8(std::string_view(control_).substr(2))) {
    refuse(WebSocketClose::kProtocolError, "a close frame has no valid code and reason");
    return Event::kInvalid;
  }
  close_code_ = static_cast<WebSocketClose>(code);
  return Event::kClose;
}

WebSocketReader::Event WebSocketReader::end_frame() {
  is_in_frame_ = false;
  if (opcode_ == kClosing) return end_close();
  if (opcode_ == kPinging) return Event::kPing;
  if (opcode_ == kPonging || !is_final_) return Event::kNone;
  is_in_message_ = false;
  if (is_utf8(message_)) return Event::kMessage;
  refuse(WebSocketClose::kInvalidText, "a message is not UTF-8");
  return Event::kInvalid;
}

std::size_t WebSocketReader::put(std::string_view bytes, Event& event) {
  std::size_t used = 0;
  for (event = Event::kNone; event == Event::kNone;) {
    if (!is_in_frame_) {
      for (; head_.size() < head_bytes(); ++used) {
        if (used == bytes.size()) return used;
        head_.push_back(bytes[used]);
      }
      begin_frame();
      if (is_refused_) {
        event = Event::kInvalid;
        return used;
      }
    }
    const std::size_t size =
        static_cast<std::size_t>(std::min<std::uint64_t>(left_, bytes.size() - used));
    std::string& payload = opcode_ >= kClosing ? control_ : message_;
    const std::size_t masked = payload.size();
    payload += bytes.substr(used, size);
    for (std::size_t i = masked; i < payload.size(); ++i) {
      payload[i] = static_cast<char>(payload[i] ^ mask_[num_unmasked_++ % mask_.size()]);
    }
    used += size;
    left_ -= size;
    if (left_ > 0) return used;
    event = end_frame();
  }
  return used;
}

}  // namespace lintel
