#include "server/web/port/connection_exchange.h"

#include <memory>
#include <utility>

#include "server/web/http_routes.h"

namespace lintel {
namespace {

namespace asio = boost::asio;

// Of the same strand, but where nobody is on it, what it is given runs at once and on the thread
// that gives it. To wake a thread of the io_context for that would cost more than most of what is
// given: a piece that the socket takes.
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
  // What came to the strand meanwhile.
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

template <typename Function>
void run_on(const ConnectionStrand& strand, Function function) {
  asio::strand<HereExecutor>(strand).dispatch(std::move(function), std::allocator<void>());
}

}  // namespace

template <typename Function>
void ConnectionExchange::run(Function function) {
  run_on(connection_->strand(),
         [connection = connection_, function = std::move(function)]() mutable {
           if (!connection->is_shut()) function(*connection);
         });
}

ConnectionExchange::~ConnectionExchange() {
  if (over_.load()) return;
  run([request = std::move(request_),
       begun = begun_.load()](AnsweringConnection& connection) mutable {
    if (begun) return connection.shut();
    connection.send_whole(
        plain_refusal(request, 500, grpc::Status(grpc::INTERNAL, "nobody answered")), request);
  });
}

void ConnectionExchange::answer(HttpAnswer answer) {
  if (begun_.load() || over_.exchange(true)) return;
  run([answer = std::move(answer), request = request_](AnsweringConnection& connection) mutable {
    connection.send_whole(std::move(answer), request);
  });
}

void ConnectionExchange::begin(HttpAnswer head) {
  if (over_.load() || begun_.exchange(true)) return;
  run([head = std::move(head), request = request_](AnsweringConnection& connection) {
    connection.begin_pieces(head, request);
  });
}

void ConnectionExchange::write(std::string piece, std::function<void(bool)> taken) {
  run_on(connection_->strand(),
         [connection = connection_, piece = std::move(piece), taken = std::move(taken)]() mutable {
           if (connection->is_shut()) return taken(false);
           connection->write_piece(piece, std::move(taken));
         });
}

void ConnectionExchange::end(std::string last_piece) {
  if (!begun_.load() || over_.exchange(true)) return;
  run([last = std::move(last_piece)](AnsweringConnection& connection) {
    connection.end_pieces(last);
  });
}

void ConnectionExchange::abort() {
  if (over_.exchange(true)) return;
  run([](AnsweringConnection& connection) { connection.shut(); });
}

void ConnectionExchange::when_gone(std::function<void()> gone) {
  if (over_.load()) return;
  run_on(connection_->strand(), [connection = connection_, gone = std::move(gone)]() mutable {
    if (connection->is_shut()) return gone();
    connection->when_gone(std::move(gone));
  });
}

}  // namespace lintel
