// SPDX-License-Identifier: Apache-2.0
// EventReader and HttpStream: server-sent events, out of bytes and of the answers to requests over
// libcurl.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "client/lib/call_error.h"
#include "client/lib/channel.h"

namespace lintel::bench {

struct ServerEvent {
  std::string name;  // of "event:"; empty: none
  std::string data;  // the lines of "data:", with a newline between them
};

// Reads the events of a stream that arrives in pieces, cut anywhere (WHATWG HTML, section 9.2).
// Comments, fields with other names and events without data are dropped, and so is an event that
// the end of the stream cuts off. One thread at a time.
class EventReader {
 public:
  // Limit on one event.
  static constexpr std::size_t kMaxBytes = std::size_t{16} << 20;

  // Calls `on_event` for each event that ends within `bytes`; its exceptions leave the function.
  // Throws std::length_error for an event of more than kMaxBytes.
  void add(std::string_view bytes, const std::function<void(const ServerEvent&)>& on_event);

 private:
  void end_line(const std::function<void(const ServerEvent&)>& on_event);

  std::string line_;  // without its end
  bool is_first_line_ = true;
  bool after_return_ = false;  // a newline next would be of the same end of line
  ServerEvent event_;
  bool has_data_ = false;
};

// A base of URLs: "http://HOST:PORT" or "https://HOST:PORT/PATH".
struct HttpBase {
  std::string url;      // without a slash or "/v1" at its end
  std::string address;  // "HOST:PORT"
  bool encrypted = false;

  // Takes HOST:PORT alone, too. Throws std::invalid_argument, saying what was expected.
  static HttpBase parse(const std::string& text);
};

// The reason why no answer came, or why it broke off, in one printable line.
class HttpFailure : public std::runtime_error {
 public:
  enum class Kind { kConnect, kBroken, kTimeout, kCancelled };

  HttpFailure(Kind kind, const std::string& what) : std::runtime_error(what), kind_(kind) {}
  Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

struct HttpAnswer {
  int status = 0;
  std::string type;  // of the content
  std::string body;  // the beginning of one that on_bytes did not receive
};

// One connection over HTTP/1.1, kept from request to request; no proxy, no redirects. One thread
// at a time.
class HttpStream {
 public:
  // Throws std::runtime_error where libcurl cannot be set up.
  explicit HttpStream(Tls tls);
  ~HttpStream();
  HttpStream(const HttpStream&) = delete;
  HttpStream& operator=(const HttpStream&) = delete;

  struct Request {
    std::string url;
    std::vector<std::string> headers;  // "name: text"
    std::optional<std::string> body;   // posted; absent: a GET
    std::chrono::milliseconds timeout{300'000};
  };
  // Called for the bytes of an answer of status 200 and type text/event-stream, as they come.
  // Its exceptions leave send().
  using OnBytes = std::function<void(std::string_view)>;
  // Returns the answer when it has ended. Throws HttpFailure. `on_bytes` may be null: the beginning
  // of each answer is kept.
  HttpAnswer send(const Request& request, const OnBytes& on_bytes, Cancellation& cancellation);

 private:
  struct Handles;
  struct Transfer;

  const Tls tls_;
  const std::unique_ptr<Handles> handles_;
};

}  // namespace lintel::bench
