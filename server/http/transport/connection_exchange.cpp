// SPDX-License-Identifier: Apache-2.0
#include "server/http/transport/connection_exchange.h"

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

namespace lintel {
namespace {

namespace asio = boost::asio;

// The executor of the same strand that runs a function at once on the calling thread if no other
// thread is on the strand. Waking a thread of the io_context costs more than most functions do,
// such as writing a piece that the socket takes.
class HereExecutor {
 public:
  using Io = asio::io_context::executor_type;
  HereExecutor(const Io& io) : io_(io) {}  // NOLINT: so that strands of the one are the other's

  asio::execution_context& context() const noexcept { return io_.context(); }
  void on_work_started() const noexcept { io_.on_work_started(); }
  void on_work_finished() const noexcept { io_.on_work_finished(); }
  template <typename Function, typename Allocator>
  void dispatch(Function&& function, const Allocator&) const {
    std::decay_t<Function> now(std::forward<Function>(function));
    now();
  }
  // Queues functions that came to the strand meanwhile.
  template <typename Function, typename Allocator>
  void post(Function&& function, const Allocator& allocator) const {
    io_.post(std::forward<Function>(function), allocator);
  }
  template <typename Function, typename Allocator>
  void defer(Function&& function, const Allocator& allocator) const {
    io_.defer(std::forward<Function>(function), allocator);
  }
  friend bool operator==(const HereExecutor& a, const HereExecutor& b) { return a.io_ == b.io_; }
  friend bool operator!=(const HereExecutor& a, const HereExecutor& b) { return a.io_ != b.io_; }

 private:
  Io io_;
};

// `function` is called with the connection, whose end is what it throws.
template <typename Function>
void run_on(const std::shared_ptr<AnsweringConnection>& connection, Function function) {
  asio::strand<HereExecutor>(connection->strand())
      .dispatch(
          [connection, function = std::move(function)]() mutable {
            try {
              function(*connection);
            } catch (...) {
              connection->fail();
            }
          },
          std::allocator<void>());
}

// A function that is called once: by its holder, or with these arguments when it is destroyed.
template <typename Function, typename... Arguments>
class CalledOnce {
 public:
  explicit CalledOnce(Function function, Arguments... last)
      : function_(std::move(function)), last_(last...) {}
  CalledOnce(CalledOnce&& other) noexcept
      : function_(std::exchange(other.function_, nullptr)), last_(other.last_) {}
  CalledOnce& operator=(CalledOnce&&) = delete;
  // A connection that drops its work for want of memory closes: what `function` throws then, for
  // the same reason, has no recipient, and must not end the process.
  ~CalledOnce() {
    try {
      if (function_) std::apply(function_, last_);
    } catch (...) {
    }
  }
  Function take() { return std::exchange(function_, nullptr); }

 private:
  Function function_;
  std::tuple<Arguments...> last_;
};

}  // namespace

template <typename Function>
void ConnectionExchange::run(Function function) {
  run_on(connection_, [function = std::move(function)](AnsweringConnection& connection) mutable {
    if (!connection.is_shut()) function(connection);
  });
}

template <typename Function>
void ConnectionExchange::catch_exceptions(Function function) noexcept {
  try {
    function();
  } catch (...) {
    connection_->fail();
  }
}

ConnectionExchange::~ConnectionExchange() {
  if (over_.load()) return;
  catch_exceptions([this] {
    run([request = std::move(request_),
         has_begun = begun_.load()](AnsweringConnection& connection) mutable {
      if (has_begun) return connection.shut();
      connection.refuse_exchange(request, grpc::Status(grpc::INTERNAL, "no handler answered"));
    });
  });
}

void ConnectionExchange::add_header(std::string name, std::string value) {
  // Each call of several for one answer names what it has left out.
  const std::pair header(std::move(name), std::move(value));
  if (std::ranges::find(headers_, header) == headers_.end()) headers_.push_back(header);
}

void ConnectionExchange::answer(HttpAnswer answer) {
  if (begun_.load() || over_.exchange(true)) return;
  catch_exceptions([&] {
    answer.headers.insert(answer.headers.end(), headers_.begin(), headers_.end());
    run([answer = std::move(answer), request = request_](AnsweringConnection& connection) mutable {
      connection.send_whole(std::move(answer), request);
    });
  });
}

void ConnectionExchange::begin(HttpAnswer head) {
  if (over_.load() || begun_.exchange(true)) return;
  catch_exceptions([&] {
    head.headers.insert(head.headers.end(), headers_.begin(), headers_.end());
    run([head = std::move(head), request = request_](AnsweringConnection& connection) {
      connection.begin_pieces(head, request);
    });
  });
}

void ConnectionExchange::write(std::string piece, std::function<void(bool)> taken) {
  catch_exceptions([&] {
    CalledOnce once(std::move(taken), false);
    run_on(connection_, [piece = std::move(piece),
                         once = std::move(once)](AnsweringConnection& connection) mutable {
      if (!connection.is_shut()) connection.write_piece(piece, once.take());
    });
  });
}

void ConnectionExchange::end(std::string last_piece) {
  if (!begun_.load() || over_.exchange(true)) return;
  catch_exceptions([&] {
    run([last = std::move(last_piece)](AnsweringConnection& connection) {
      connection.end_pieces(last);
    });
  });
}

void ConnectionExchange::abort() {
  if (over_.exchange(true)) return;
  catch_exceptions([&] { run([](AnsweringConnection& connection) { connection.shut(); }); });
}

void ConnectionExchange::when_gone(std::function<void()> gone) {
  if (over_.load()) return;
  catch_exceptions([&] {
    CalledOnce once(std::move(gone));
    run_on(connection_, [once = std::move(once)](AnsweringConnection& connection) mutable {
      if (!connection.is_shut()) connection.when_gone(once.take());
    });
  });
}

}  // namespace lintel
