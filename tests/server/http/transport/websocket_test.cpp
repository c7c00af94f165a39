// SPDX-License-Identifier: Apache-2.0
// Frames and handshakes of WebSockets.
#include "server/http/transport/websocket.h"

#include <string>
#include <utility>
#include <vector>

#include "tests/server/support/websocket_client.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Event = WebSocketReader::Event;

// All events of bytes that come in pieces of `piece` bytes.
struct ReadFrames {
  explicit ReadFrames(const std::string& bytes, std::size_t piece = 1 << 20,
                      std::size_t max_message_bytes = 1 << 20)
      : reader(max_message_bytes) {
    for (std::size_t at = 0; at < bytes.size() && !is_over; at += piece) {
      std::string_view rest = std::string_view(bytes).substr(at, piece);
      while (!rest.empty() && !is_over) {
        Event event = Event::kNone;
        rest.remove_prefix(reader.put(rest, event));
        if (event == Event::kMessage) messages.push_back(reader.take_message());
        if (event == Event::kPing) pings.push_back(reader.control());
        is_over = event == Event::kClose || event == Event::kInvalid;
        last = event;
      }
    }
  }

  WebSocketReader reader;
  std::vector<std::string> messages, pings;
  bool is_over = false;
  Event last = Event::kNone;
};

// The code with which a connection with these bytes is closed; 0: it is not.
int closed_with(const std::string& bytes, std::size_t max_message_bytes = 1 << 20) {
  const ReadFrames read(bytes, 1, max_message_bytes);
  return read.is_over ? static_cast<int>(read.reader.close_code()) : 0;
}

TEST_CASE("a WebSocket's messages are the same however their bytes are cut") {
  const std::string middle(200, 'm'), large(70'000, 'l');
  const std::string bytes = client_frame(kText, "short") + client_frame(kText, "") +
                            client_frame(kText, middle) + client_frame(kText, "in ", false) +
                            client_frame(kPing, "ping") + client_frame(kContinuation, "", false) +
                            client_frame(kPong, "ignored") +
                            client_frame(kContinuation, "parts \xc3", false) +
                            client_frame(kContinuation, "\xa9") + client_frame(kText, large);
  const std::vector<std::string> messages = {"short", "", middle, "in parts \xc3\xa9", large};
  for (const std::size_t piece : {1, 2, 3, 7, 64, 1 << 20}) {
    const ReadFrames read(bytes, piece);
    CHECK(read.messages == messages);
    CHECK(read.pings == std::vector<std::string>{"ping"});
    CHECK_FALSE(read.is_over);
    CHECK_FALSE(read.reader.is_in_message());
  }
}

TEST_CASE("a WebSocket client that breaks the protocol is closed with the code of its fault",
          "[threat-84]") {
  const auto with_first_byte = [](int first, std::string frame) {
    frame[0] = static_cast<char>(first);
    return frame;
  };
  const std::string text = client_frame(kText, "a");
  CHECK(closed_with(text) == 0);
  CHECK(closed_with(client_frame(kText, "a", true, /*is_masked=*/false)) == 1002);
  for (const int reserved : {0xc1, 0xa1, 0x91}) {
    CHECK(closed_with(with_first_byte(reserved, text)) == 1002);
  }
  for (const int unknown : {3, 7, 11, 15}) CHECK(closed_with(client_frame(unknown, "a")) == 1002);
  CHECK(closed_with(client_frame(kContinuation, "a")) == 1002);
  CHECK(closed_with(client_frame(kText, "a", false) + text) == 1002);
  CHECK(closed_with(client_frame(kPing, "a", false)) == 1002);
  CHECK(closed_with(client_frame(kPing, std::string(126, 'a'))) == 1002);
  CHECK(closed_with(client_frame(kPing, std::string(125, 'a'))) == 0);
  CHECK(closed_with(client_frame(kBinary, "a")) == 1003);
  // A length in more bytes than it needs, and one beyond all bounds.
  CHECK(closed_with(std::string("\x81\xfe\x00\x05\0\0\0\0", 8)) == 1002);
  CHECK(closed_with(std::string("\x81\xff\0\0\0\0\0\0\xff\xff\0\0\0\0", 14)) == 1002);
  CHECK(closed_with("\x81\xff\xff\xff\xff\xff\xff\xff\xff\xff" + std::string(4, '\0')) == 1002);
  CHECK(closed_with("\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xff" + std::string(4, '\0')) == 1009);
  for (const char* const wrong :
       {"\xc3", "\xff", "\xc0\x80", "\xed\xa0\x80", "a\xf5\x80\x80\x80"}) {
    CHECK(closed_with(client_frame(kText, wrong)) == 1007);
  }
  CHECK(closed_with(client_frame(kText, std::string(4095, 'a') + "\xe2\x82\xac")) == 0);
  CHECK(closed_with(client_frame(kText, std::string(4095, 'a') + "\xe2\x82")) == 1007);
}

TEST_CASE("a WebSocket's message is refused by its announced length", "[threat-84]") {
  CHECK(closed_with(client_frame(kText, std::string(100, 'a')), 100) == 0);
  CHECK(closed_with(client_frame(kText, std::string(101, 'a')).substr(0, 6), 100) == 1009);
  const std::string half = client_frame(kText, std::string(60, 'a'), false);
  CHECK(closed_with(half + client_frame(kContinuation, std::string(40, 'a')), 100) == 0);
  CHECK(closed_with(half + client_frame(kContinuation, std::string(41, 'a')), 100) == 1009);
  // The next message has all of it again.
  const std::string whole = client_frame(kText, std::string(100, 'a'));
  CHECK(ReadFrames(whole + whole, 1 << 20, 100).messages.size() == 2);
}

TEST_CASE("a WebSocket's close frame is answered by its code") {
  CHECK(closed_with(client_frame(kClose, "")) == 1005);
  CHECK(closed_with(client_frame(kClose, "\x03\xe8")) == 1000);
  CHECK(closed_with(client_frame(kClose, "\x03\xe9gone")) == 1001);
  CHECK(closed_with(client_frame(kClose, "\x0b\xb8")) == 3000);
  CHECK(closed_with(client_frame(kClose, "\x03")) == 1002);
  CHECK(closed_with(client_frame(kClose, "\x03\xed")) == 1002);  // 1005 is not sent
  CHECK(closed_with(client_frame(kClose, "\x03\xe8\xff")) == 1002);
  CHECK(websocket_close(WebSocketClose::kNoStatus, "") == std::string("\x88\0", 2));
  CHECK(websocket_close(WebSocketClose::kTooLarge, "big") ==
        "\x88\x05\x03\xf1"
        "big");
  CHECK(websocket_close(WebSocketClose::kNormal, std::string(200, 'r')).size() == 2 + 125);
}

TEST_CASE("a WebSocket's frames have their length in its shortest form") {
  const auto head = [](std::size_t size) {
    const std::string frame = websocket_text(std::string(size, 'a'));
    return frame.substr(0, frame.size() - size);
  };
  CHECK(head(0) == std::string("\x81\0", 2));
  CHECK(head(125) == "\x81\x7d");
  CHECK(head(126) == std::string("\x81\x7e\0\x7e", 4));
  CHECK(head(65'535) == "\x81\x7e\xff\xff");
  CHECK(head(65'536) == std::string("\x81\x7f\0\0\0\0\0\1\0\0", 10));
}

TEST_CASE("a WebSocket's handshake is answered by its key, or refused by what is wrong") {
  HttpRequest request;
  request.method = "GET";
  request.headers = {{"upgrade", "h2c, WebSocket"},
                     {"connection", "keep-alive, Upgrade"},
                     {"sec-websocket-version", "13"},
                     {"sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="}};
  const auto status = [](const HttpRequest& handshake, bool is_http_10 = false) {
    int http_status = 0;
    return check_websocket_handshake(handshake, is_http_10, http_status).ok() ? 101 : http_status;
  };
  CHECK(asks_for_websocket(request));
  CHECK(status(request) == 101);
  CHECK(websocket_headers(request).back().second == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
  CHECK(status(request, /*is_http_10=*/true) == 400);
  const auto with = [&](std::size_t header, const std::string& value) {
    HttpRequest changed = request;
    changed.headers[header].second = value;
    return changed;
  };
  CHECK_FALSE(asks_for_websocket(with(0, "websockets")));
  CHECK(status(with(1, "keep-alive")) == 400);
  CHECK(status(with(2, "8")) == 426);
  for (const char* const key : {"", "dGhlIHNhbXBsZSBub25jZQ", "dGhlIHNhbXBsZSBub25j!Q=="}) {
    CHECK(status(with(3, key)) == 400);
  }
  HttpRequest other = request;
  other.method = "HEAD";
  CHECK(status(other) == 400);
  other = request;
  other.headers.emplace_back("content-length", "1");
  CHECK(status(other) == 400);
}

}  // namespace
}  // namespace lintel::testing
