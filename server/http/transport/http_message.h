// SPDX-License-Identifier: Apache-2.0
// HttpRequest and HttpAnswer.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/core/listen_address.h"
#include "server/security/identity.h"

namespace lintel {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// A request without its body, which HttpExchange::take_body() hands over.
struct HttpRequest {
  std::string method;                   // "GET"
  std::string path;                     // as it was sent, before '?'
  std::string query;                    // as it was sent, after '?'
  std::vector<std::string> parameters;  // what stood for each {} of the route, percent-decoded
  HttpHeaders headers;                  // names in lower case
  std::string peer;                     // as gRPC writes it: "ipv4:127.0.0.1:40000"
  std::string certificate;              // the client's name in mutual TLS; empty without
  std::string request_id;               // the client's x-request-id, or one made for it
  std::optional<Identity> caller;       // by the token; none: no token was asked for

  // The value of a header that was sent once; empty when it was not, or when several make it
  // ambiguous. `name`: lower case.
  std::string_view header(std::string_view name) const {
    std::string_view found;
    int count = 0;
    for (const auto& [key, value] : headers) {
      if (key == name && ++count == 1) found = value;
    }
    return count == 1 ? found : std::string_view();
  }
};

// content-length, date, connection, x-request-id and what CORS needs are the connection's to add.
struct HttpAnswer {
  int status = 200;
  HttpHeaders headers;
  std::string body;
  // A piece without content for an answer in pieces, for clients and proxies that give up on a
  // silent answer. Written whenever there was no piece for HttpOptions::heartbeat_ms.
  // Empty: none.
  std::string heartbeat = {};
};

inline HttpAnswer json_answer(int status, std::string body) {
  return {status, {{"content-type", "application/json"}}, std::move(body)};
}

// HttpExchange: one request and its answer.

// Answered exactly once: whole by answer(), or in pieces by begin(), write()... and end(). An
// exchange that is destroyed unanswered is answered with 500.
//
// Thread-safe. Callbacks run on a thread of HTTP's or on one that calls the exchange, also before
// that call returns, one at a time; they must not block. Calls on an exchange whose client is gone
// do nothing (but write still calls back).
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual const HttpRequest& request() const = 0;
  // The request's body, once: its memory is the caller's from now on.
  virtual std::string take_body() = 0;

  virtual void answer(HttpAnswer answer) = 0;

  // Adds a header to the answer. REQUIRES: before answer() or begin(), and not at the same time.
  virtual void add_header(std::string /*name*/, std::string /*value*/) {}

  // Status and headers of an answer in pieces; `head.body` is its first piece. They go out with
  // what is written next, so that an answer of one piece is one write.
  virtual void begin(HttpAnswer head) = 0;
  // REQUIRES: after begin, before end, and the last piece was taken. `taken` is called once: with
  // true as soon as there is room for the next piece, with false when the client is gone. So a slow
  // client holds one piece and what the connection has gathered, some tens of KiB.
  virtual void write(std::string piece, std::function<void(bool more)> taken) = 0;
  virtual void end(std::string last_piece = {}) = 0;
  // Ends the connection in the middle of an answer, so that its client sees that it is not whole.
  virtual void abort() = 0;

  // Called once, when the client goes before its answer is out; at once when it is gone already.
  // The function of the last call counts.
  virtual void when_gone(std::function<void()> gone) = 0;
};

using SharedExchange = std::shared_ptr<HttpExchange>;

// Members that have the reasoning in messages of /v1/chat/completions: clients look for one or the
// other.
enum class ChatReasoningField {
  kReasoningContent,
  kReasoning,
  kBoth,
};

// HttpOptions: the address of HTTP and the limits of its clients.

struct HttpOptions {
  std::optional<ListenAddress> listen;    // none: no HTTP
  std::vector<std::string> cors_origins;  // pages of these origins may call; "*": of all
  // Names by which the server may be called, besides those of its own machine, where it listens for
  // that alone: "proxy.example" or "proxy.example:8443".
  std::vector<std::string> allowed_hosts;
  int threads = 2;  // that read, write and translate for all connections
  int max_connections = 1024;
  int max_client_connections = 256;  // of one address
  int max_header_bytes = 16 << 10;   // of a request: its first line and its headers
  // Bytes of requests' bodies that are not yet handed on, of all connections together.
  std::int64_t memory_bytes = 64 << 20;
  std::chrono::milliseconds header_timeout_ms{
      10'000};                                         // from a request's first byte to its headers
  std::chrono::milliseconds body_timeout_ms{60'000};   // from its headers to its end
  std::chrono::milliseconds idle_timeout_ms{75'000};   // between two requests
  std::chrono::milliseconds write_timeout_ms{60'000};  // a client that takes nothing for so long
  std::chrono::milliseconds heartbeat_ms{10'000};      // of an answer without pieces for so long
  ChatReasoningField chat_reasoning_field = ChatReasoningField::kReasoningContent;
};

// HttpCounters: what HTTP counts for the metrics.

// Thread-safe. Requests that were turned into calls are among gRPC's counts, too.
struct HttpCounters {
  std::atomic<std::int64_t> connections{0};  // open now
  std::atomic<std::uint64_t> accepted{0};    // connections so far
  std::atomic<std::uint64_t> refused{0};     // connections beyond a bound
  std::atomic<std::int64_t> body_bytes{0};   // of requests, not yet handed on
  std::atomic<std::uint64_t> timeouts{0};    // connections closed for being slow
  std::atomic<std::uint64_t> exceptions{0};  // caught, each the end of a connection at most
  // Answers by their status: [4] of 4xx. [0]: clients that went before theirs was out.
  std::array<std::atomic<std::uint64_t>, 6> answers{};
};

}  // namespace lintel
