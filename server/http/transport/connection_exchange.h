// SPDX-License-Identifier: Apache-2.0
// ConnectionExchange: a route's view of a connection, for one request.
#pragma once

#include <grpcpp/support/status.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "server/http/transport/http_message.h"

namespace lintel {

// All that happens to a connection happens there, one thing at a time.
using ConnectionStrand = boost::asio::strand<boost::asio::io_context::executor_type>;

// The connection, as an exchange sees it. All but strand() on the strand.
class AnsweringConnection {
 public:
  virtual ~AnsweringConnection() = default;
  virtual ConnectionStrand strand() = 0;
  virtual bool is_shut() const = 0;
  virtual void send_whole(HttpAnswer answer, const HttpRequest& request) = 0;
  // Answers in the place of a handler.
  virtual void refuse_exchange(const HttpRequest& request, const grpc::Status& status) = 0;
  virtual void begin_pieces(const HttpAnswer& head, const HttpRequest& request) = 0;
  // `taken`: true as soon as little waits to be written, false once the client is gone.
  virtual void write_piece(std::string_view piece, std::function<void(bool)> taken) = 0;
  virtual void end_pieces(std::string_view last) = 0;
  virtual void when_gone(std::function<void()> gone) = 0;
  // Closes the connection; a handler that still answers on it hears that its client is gone.
  virtual void shut() = 0;
  // The same, for an exception that is being handled. From any thread.
  virtual void fail() noexcept = 0;
};

// The exchange of a connection, for any thread. Calls run on the strand, on the calling thread if
// no other is on it. An exchange is over with its answer: calls on it during a later request are
// dropped. The connection ends if there is no memory for a call.
class ConnectionExchange final : public HttpExchange {
 public:
  ConnectionExchange(std::shared_ptr<AnsweringConnection> connection, HttpRequest request,
                     std::string body)
      : connection_(std::move(connection)), request_(std::move(request)), body_(std::move(body)) {}
  ~ConnectionExchange() override;  // an exchange without an answer is answered so

  const HttpRequest& request() const override { return request_; }
  std::string take_body() override { return std::move(body_); }
  void add_header(std::string name, std::string value) override;
  void answer(HttpAnswer answer) override;
  void begin(HttpAnswer head) override;
  void write(std::string piece, std::function<void(bool)> taken) override;
  void end(std::string last_piece) override;
  void abort() override;
  void when_gone(std::function<void()> gone) override;

 private:
  // Runs `function` on the strand, unless the connection is shut by then.
  template <typename Function>
  void run(Function function);
  // Runs `function` here and now; what it throws ends the connection.
  template <typename Function>
  void catch_exceptions(Function function) noexcept;

  const std::shared_ptr<AnsweringConnection> connection_;
  HttpRequest request_;
  std::string body_;
  HttpHeaders headers_;             // that the answer has besides its own
  std::atomic<bool> begun_{false};  // in pieces
  std::atomic<bool> over_{false};
};

}  // namespace lintel
