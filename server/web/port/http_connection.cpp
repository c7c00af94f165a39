#include "server/web/port/http_connection.h"

#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "server/call/status.h"
#include "server/log/request_id.h"
#include "server/web/http_status.h"
#include "server/web/port/answer_bytes.h"
#include "server/web/port/client_deadline.h"
#include "server/web/port/connection_exchange.h"
#include "server/web/port/request_gate.h"
#include "server/web/port/request_head.h"
#include "server/web/port/response_head.h"
#include "server/web/port/tls_contexts.h"

namespace lintel {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using Socket = asio::basic_stream_socket<asio::generic::stream_protocol, ConnectionStrand>;

// What waits to be written before a stream is told to wait: enough for the pieces of a step, little
// enough for a thousand clients that read nothing.
constexpr std::size_t kGathered = std::size_t{16} << 10;
// Read ahead while a request is answered: what its client sends meanwhile, or that it is gone.
constexpr std::size_t kReadAhead = 4096;
// What the system holds of an answer that its client does not take: without a bound some megabytes
// for each of a thousand clients.
constexpr int kSendBufferBytes = 128 << 10;
// A refused request's rest is read for so long, and so far, for its client to get to the answer: a
// socket that is closed with unread bytes takes the answer back.
constexpr std::chrono::seconds kLingerTime{2};
constexpr std::size_t kLingerBytes = std::size_t{1} << 20;

// The two kinds of streams, for what differs.
Socket& socket_of(Socket& socket) { return socket; }
Socket& socket_of(asio::ssl::stream<Socket>& stream) { return stream.next_layer(); }

template <typename Stream>
class Connection final : public HttpConnection,
                         public AnsweringConnection,
                         public std::enable_shared_from_this<Connection<Stream>> {
  using Parser = http::request_parser<http::string_body>;

 public:
  // `tls`: kept while its stream lives.
  template <typename... More>
  Connection(Socket socket, std::string peer, HttpHouse& house,
             std::shared_ptr<asio::ssl::context> tls, More&... more)
      : house_(house),
        peer_(std::move(peer)),
        tls_(std::move(tls)),
        stream_(std::move(socket), more...),
        deadline_(strand()) {}

  ~Connection() override { release_body(); }

  void start(std::function<void()> closed) override {
    asio::post(strand(), [self = this->shared_from_this(), closed]() mutable {
      self->closed_ = std::move(closed);
      self->deadline_.bind(self->weak_from_this(),
                           [connection = self.get()] { connection->on_expired(); });
      self->handshake();
    });
  }

  void drain() override {
    asio::post(strand(), [self = this->shared_from_this()] {
      if (self->phase_ == Phase::kIdle) self->shut();
    });
  }

  void close() override {
    asio::post(strand(), [self = this->shared_from_this()] { self->shut(); });
  }

 private:
  ConnectionStrand strand() override { return socket_of(stream_).get_executor(); }
  bool is_shut() const override { return phase_ == Phase::kShut; }

  enum class Phase {
    kHandshake,
    kIdle,       // between two requests
    kHead,       // of a request is being read
    kBody,       // of a request is being read
    kAnswering,  // a route has the exchange
    kLingering,  // the last answer is out; what still comes is thrown away
    kShut,
  };

  // --- Waiting ---------------------------------------------------------------------------------

  void on_expired() {
    if (phase_ == Phase::kShut) return;
    if (phase_ != Phase::kIdle && phase_ != Phase::kLingering) house_.counters.timeouts++;
    if (phase_ == Phase::kBody || (phase_ == Phase::kHead && !writing_)) {
      const auto& options = house_.options;
      const bool head = phase_ == Phase::kHead;
      refuse(408, grpc::Status(grpc::DEADLINE_EXCEEDED,
                               head ? "the request's headers did not come within " +
                                          milliseconds(options.header_timeout_ms)
                                    : "the request's body did not come within " +
                                          milliseconds(options.body_timeout_ms)));
      return;
    }
    shut();
  }

  static std::string milliseconds(std::chrono::milliseconds time) {
    return std::to_string(time.count()) + " ms";
  }

  // The kernel, too, knows when a client takes nothing, and may be the first to say so: once, to
  // whichever of reading and writing asks first.
  void count_timeout(error_code error) {
    if (error == asio::error::timed_out) house_.counters.timeouts++;
  }

  // --- Reading ---------------------------------------------------------------------------------

  void handshake() {
    if constexpr (std::is_same_v<Stream, Socket>) {
      await_request();
    } else {
      deadline_.allow(house_.options.header_timeout_ms);
      stream_.async_handshake(
          asio::ssl::stream_base::server, [self = this->shared_from_this()](error_code error) {
            if (self->phase_ == Phase::kShut) return;
            if (error) return self->shut();
            self->certificate_ = certificate_name(self->stream_.native_handle());
            self->await_request();
          });
    }
  }

  void await_request() {
    phase_ = Phase::kIdle;
    release_body();
    if (house_.draining) return shut();
    if (buffer_.size() > 0) return read_head();
    deadline_.allow(first_ ? house_.options.header_timeout_ms : house_.options.idle_timeout_ms);
    watch();
  }

  // Reads while nobody else does: the next request's first bytes, or that the client is gone. Once
  // there are some it waits for their turn.
  void watch() {
    if (reading_ || buffer_.size() > 0) return;
    reading_ = true;
    stream_.async_read_some(buffer_.prepare(kReadAhead),
                            [self = this->shared_from_this()](error_code error, std::size_t size) {
                              self->reading_ = false;
                              self->count_timeout(error);
                              if (self->phase_ == Phase::kShut) return;
                              if (error) return self->shut();
                              self->buffer_.commit(size);
                              if (self->phase_ == Phase::kIdle) return self->read_head();
                              if (self->phase_ == Phase::kLingering) return self->linger();
                              self->watch();
                            });
  }

  void read_head() {
    phase_ = Phase::kHead;
    first_ = false;
    parser_.emplace();
    parser_->header_limit(static_cast<std::uint32_t>(house_.options.max_header_bytes));
    parser_->body_limit(house_.max_body_bytes);
    deadline_.allow(house_.options.header_timeout_ms);
    reading_ = true;
    http::async_read_header(stream_, buffer_, *parser_,
                            [self = this->shared_from_this()](error_code error, std::size_t) {
                              self->reading_ = false;
                              self->on_head(error);
                            });
  }

  void on_head(error_code error) {
    if (phase_ == Phase::kShut || phase_ == Phase::kLingering) return;
    if (phase_ != Phase::kHead) return;  // it was refused for its time meanwhile
    if (error == http::error::header_limit || error == http::error::buffer_overflow) {
      keep_alive_ = false;
      return refuse(431, invalid("the request's first line and headers take more than " +
                                 std::to_string(house_.options.max_header_bytes) + " bytes"));
    }
    const bool too_long = error == http::error::body_limit;
    if (error && !too_long) {
      // Of Beast's own errors only those of a parser mean a request that makes no sense.
      const bool malformed =
          error.category() == http::make_error_code(http::error::bad_method).category();
      if (!malformed || error == http::error::end_of_stream ||
          error == http::error::partial_message) {
        return shut();
      }
      keep_alive_ = false;
      return refuse(400, invalid("the request is no HTTP/1.1: " + error.message()));
    }
    take_head();
    if (too_long) return refuse_body();
    route_request();
  }

  // The parsed head, as routes get it.
  void take_head() {
    const auto& message = parser_->get();
    request_ = request_of_head(message);
    request_.peer = peer_;
    request_.certificate = certificate_;
    request_.request_id = request_id_from(request_.header("x-request-id"));
    http_10_ = message.version() < 11;
    keep_alive_ = message.keep_alive() && !house_.draining;
  }

  void route_request() {
    if (std::optional<HttpAnswer> answer = answer_head(house_, request_, http_10_, route_)) {
      return answer_now(std::move(*answer));
    }
    if (!request_.header("expect").empty() && !parser_->is_done()) {
      bytes_.add("HTTP/1.1 100 Continue\r\n\r\n");
    }
    phase_ = Phase::kBody;
    deadline_.allow(house_.options.body_timeout_ms);
    flush();
    read_body();
  }

  void read_body() {
    if (parser_->is_done()) return begin_exchange();
    reading_ = true;
    http::async_read_some(stream_, buffer_, *parser_,
                          [self = this->shared_from_this()](error_code error, std::size_t) {
                            self->reading_ = false;
                            self->on_body(error);
                          });
  }

  void on_body(error_code error) {
    if (phase_ != Phase::kBody) return;
    if (error == http::error::body_limit) return refuse_body();
    if (error) {
      const bool malformed =
          error.category() == http::make_error_code(http::error::bad_method).category();
      if (!malformed || error == http::error::partial_message) return shut();
      return refuse(400, invalid("the request's body makes no sense: " + error.message()));
    }
    const auto size = static_cast<std::int64_t>(parser_->get().body().size());
    const std::int64_t more = size - body_bytes_;
    body_bytes_ = size;
    if (house_.counters.body_bytes.fetch_add(more) + more > house_.options.memory_bytes) {
      return refuse(503, unavailable("requests that are being read take all of the memory there is "
                                     "for them (--http-memory)",
                                     std::chrono::milliseconds(1000)));
    }
    read_body();
  }

  void release_body() { house_.counters.body_bytes.fetch_sub(std::exchange(body_bytes_, 0)); }

  // --- Answering -------------------------------------------------------------------------------

  static grpc::Status invalid(const std::string& what) { return {grpc::INVALID_ARGUMENT, what}; }

  void refuse_body() {
    refuse(413, grpc::Status(grpc::RESOURCE_EXHAUSTED, "the request's body is longer than " +
                                                           std::to_string(house_.max_body_bytes) +
                                                           " bytes (--max-message-size)"));
  }

  void refuse(int http_status, const grpc::Status& status) {
    answer_now(refusal(house_.routes, request_, route_, http_status, status));
  }

  // Without a route. What is left of the request's body is not read: the connection ends with the
  // answer where there is any.
  void answer_now(HttpAnswer answer) {
    if (parser_ && !parser_->is_done()) keep_alive_ = false;
    if (request_.request_id.empty()) request_.request_id = request_id_from({});
    log_refusal(request_, peer_, answer.status);
    begin_answering();
    send_whole(std::move(answer));
  }

  void begin_answering() {
    phase_ = Phase::kAnswering;
    deadline_.allow(std::nullopt);
    answer_ended_ = false;
    bodiless_ = request_.method == "HEAD";
  }

  void begin_exchange() {
    begin_answering();
    const auto exchange = std::make_shared<ConnectionExchange>(
        this->shared_from_this(), std::move(request_), std::move(parser_->get().body()));
    release_body();
    parser_.reset();
    request_ = HttpRequest();
    const HttpRoute* const route = std::exchange(route_, nullptr);
    watch();
    try {
      route->handle(exchange);
    } catch (const std::bad_alloc&) {
      fail(*exchange, *route, out_of_memory());
    } catch (const std::exception&) {
      fail(*exchange, *route, status_of_exception());
    }
  }

  void fail(HttpExchange& exchange, const HttpRoute& route, const grpc::Status& status) {
    exchange.answer(refusal(house_.routes, exchange.request(), &route,
                            http_status_of(status.error_code()), status));
  }

  ResponseHead head_of(const HttpAnswer& answer, const HttpRequest& request) const {
    return {answer,
            house_.origins.headers_for(request),
            request.request_id,
            keep_alive_ && !house_.draining,
            http_10_,
            house_.replica_id};
  }

  void send_whole(HttpAnswer answer) { send_whole(std::move(answer), request_); }

  void send_whole(HttpAnswer answer, const HttpRequest& request) override {
    count(answer.status);
    bytes_.begin(head_of(answer, request).whole(), /*chunked=*/false, bodiless_);
    bytes_.add_body(answer.body);
    answer_ended_ = true;
    flush();
  }

  void begin_pieces(const HttpAnswer& head, const HttpRequest& request) override {
    count(head.status);
    if (http_10_) keep_alive_ = false;  // its end is the connection's
    bytes_.begin(head_of(head, request).in_pieces(), /*chunked=*/!http_10_, bodiless_);
    bytes_.add_piece(head.body);
  }

  void write_piece(std::string_view piece, std::function<void(bool)> taken) override {
    bytes_.add_piece(piece);
    taken_ = std::move(taken);
    flush();
    tell_taken();
  }

  void when_gone(std::function<void()> gone) override { gone_ = std::move(gone); }

  void end_pieces(std::string_view last) override {
    bytes_.add_last_piece(last);
    answer_ended_ = true;
    flush();
  }

  void count(int status) {
    const auto hundreds = static_cast<std::size_t>(status / 100);
    if (hundreds < house_.counters.answers.size()) house_.counters.answers[hundreds]++;
  }

  // --- Writing ---------------------------------------------------------------------------------

  // Writes what has gathered, one write at a time, and goes on when that is out.
  void flush() {
    if (phase_ == Phase::kShut || writing_) return;
    write_at_once();
    const std::string_view next = bytes_.in_flight();
    tell_taken();
    if (next.empty()) {
      if (answer_ended_ && phase_ == Phase::kAnswering) finish_answer();
      return;
    }
    writing_ = true;
    if (phase_ == Phase::kAnswering) deadline_.allow(house_.options.write_timeout_ms);
    stream_.async_write_some(asio::buffer(next.data(), next.size()),
                             [self = this->shared_from_this()](error_code error, std::size_t size) {
                               self->writing_ = false;
                               self->count_timeout(error);
                               if (self->phase_ == Phase::kShut) return;
                               if (error) return self->shut();
                               self->bytes_.written(size);
                               if (self->phase_ == Phase::kAnswering)
                                 self->deadline_.allow(std::nullopt);
                               self->flush();
                             });
  }

  // What the system takes without waiting, as nearly always: then nobody is woken to hear that it
  // is out. Any error is for the write that waits to tell.
  void write_at_once() {
    if constexpr (std::is_same_v<Stream, Socket>) {
      for (std::string_view next = bytes_.in_flight(); !next.empty(); next = bytes_.in_flight()) {
        const ssize_t size =
            ::send(stream_.native_handle(), next.data(), next.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (size < 0) return;
        bytes_.written(static_cast<std::size_t>(size));
      }
    }
  }

  // Whoever streams may go on once little waits.
  void tell_taken() {
    if (taken_ && bytes_.gathered() < kGathered) std::exchange(taken_, nullptr)(true);
  }

  void finish_answer() {
    gone_ = nullptr;
    answer_ended_ = false;
    if (keep_alive_ && !house_.draining) {
      parser_.reset();
      route_ = nullptr;
      request_ = HttpRequest();
      return await_request();
    }
    phase_ = Phase::kLingering;
    error_code ignored;
    socket_of(stream_).shutdown(Socket::shutdown_send, ignored);
    deadline_.allow(kLingerTime);
    linger();
  }

  void linger() {
    lingered_ += buffer_.size();
    buffer_.clear();
    if (lingered_ > kLingerBytes) return shut();
    watch();
  }

  void shut() override {
    if (phase_ == Phase::kShut) return;
    if (phase_ == Phase::kAnswering) house_.counters.answers[0]++;
    phase_ = Phase::kShut;
    error_code ignored;
    deadline_.cancel();
    socket_of(stream_).close(ignored);
    release_body();
    bytes_.drop_gathered();
    if (taken_) std::exchange(taken_, nullptr)(false);
    if (gone_) std::exchange(gone_, nullptr)();
    if (closed_) std::exchange(closed_, nullptr)();
  }

  HttpHouse& house_;
  const std::string peer_;
  const std::shared_ptr<asio::ssl::context> tls_;  // null: plain text
  Stream stream_;
  std::string certificate_;  // its name; empty without one
  std::function<void()> closed_;

  Phase phase_ = Phase::kHandshake;
  bool first_ = true;  // request of the connection
  ClientDeadline deadline_;

  boost::beast::flat_buffer buffer_;  // what came and was not looked at
  bool reading_ = false;
  std::optional<Parser> parser_;
  std::int64_t body_bytes_ = 0;  // counted among all connections'
  std::size_t lingered_ = 0;     // bytes

  HttpRequest request_;               // until its exchange has it
  const HttpRoute* route_ = nullptr;  // likewise
  bool http_10_ = false;
  bool keep_alive_ = true;
  bool bodiless_ = false;      // an answer to HEAD
  bool answer_ended_ = false;  // nothing is added to it any more
  AnswerBytes bytes_;
  bool writing_ = false;
  std::function<void(bool)> taken_;  // told when there is room
  std::function<void()> gone_;       // told when the client is gone
};

}  // namespace

std::shared_ptr<HttpConnection> make_http_connection(asio::io_context& io, int fd,
                                                     std::shared_ptr<asio::ssl::context> tls,
                                                     std::string peer, HttpHouse& house) {
  Socket socket(asio::make_strand(io));
  error_code error;
  // The family matters to nothing that is done with the socket.
  socket.assign(asio::generic::stream_protocol(AF_INET, 0), fd, error);
  if (error) {
    ::close(fd);
    throw boost::system::system_error(error);
  }
  socket.set_option(asio::socket_base::send_buffer_size(kSendBufferBytes), error);  // or as it is
  if (tls == nullptr) {
    return std::make_shared<Connection<Socket>>(std::move(socket), std::move(peer), house, nullptr);
  }
  asio::ssl::context& context = *tls;
  return std::make_shared<Connection<asio::ssl::stream<Socket>>>(std::move(socket), std::move(peer),
                                                                 house, std::move(tls), context);
}

}  // namespace lintel
