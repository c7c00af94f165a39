// HttpExchange: one request and its answer.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/http/transport/http_message.h"

namespace lintel {

// Answered exactly once: whole by answer(), or in pieces by begin(), write()... and end(). An
// exchange that is destroyed unanswered is answered with 500.
//
// Thread-safe. Callbacks run on a thread of HTTP's or on one that calls the exchange, also before
// that call returns, one at a time; they must not block. What is asked of an exchange whose client
// is gone does nothing (but write still calls back).
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual const HttpRequest& request() const = 0;
  // The request's body, once: its memory is the caller's from now on.
  virtual std::string take_body() = 0;

  virtual void answer(HttpAnswer answer) = 0;

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
  // Of several calls the last one's function counts.
  virtual void when_gone(std::function<void()> gone) = 0;
};

using SharedExchange = std::shared_ptr<HttpExchange>;

}  // namespace lintel
