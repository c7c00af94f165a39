#include "server/web/port/connection_exchange.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "server/web/http_routes.h"

namespace lintel {

namespace asio = boost::asio;

template <typename Function>
void ConnectionExchange::post(Function function) {
  asio::post(connection_->strand(),
             [connection = connection_, function = std::move(function)]() mutable {
               if (!connection->is_shut()) function(*connection);
             });
}

ConnectionExchange::~ConnectionExchange() {
  if (over_.load()) return;
  post([request = std::move(request_),
        begun = begun_.load()](AnsweringConnection& connection) mutable {
    if (begun) return connection.shut();
    connection.send_whole(
        plain_refusal(request, 500, grpc::Status(grpc::INTERNAL, "nobody answered")), request);
  });
}

void ConnectionExchange::answer(HttpAnswer answer) {
  if (begun_.load() || over_.exchange(true)) return;
  post([answer = std::move(answer), request = request_](AnsweringConnection& connection) mutable {
    connection.send_whole(std::move(answer), request);
  });
}

void ConnectionExchange::begin(HttpAnswer head) {
  if (over_.load() || begun_.exchange(true)) return;
  post([head = std::move(head), request = request_](AnsweringConnection& connection) {
    connection.begin_pieces(head, request);
  });
}

void ConnectionExchange::write(std::string piece, std::function<void(bool)> taken) {
  asio::post(connection_->strand(), [connection = connection_, piece = std::move(piece),
                                     taken = std::move(taken)]() mutable {
    if (connection->is_shut()) return taken(false);
    connection->write_piece(piece, std::move(taken));
  });
}

void ConnectionExchange::end(std::string last_piece) {
  if (!begun_.load() || over_.exchange(true)) return;
  post([last = std::move(last_piece)](AnsweringConnection& connection) {
    connection.end_pieces(last);
  });
}

void ConnectionExchange::abort() {
  if (over_.exchange(true)) return;
  post([](AnsweringConnection& connection) { connection.shut(); });
}

void ConnectionExchange::when_gone(std::function<void()> gone) {
  if (over_.load()) return;
  asio::post(connection_->strand(), [connection = connection_, gone = std::move(gone)]() mutable {
    if (connection->is_shut()) return gone();
    connection->when_gone(std::move(gone));
  });
}

}  // namespace lintel
