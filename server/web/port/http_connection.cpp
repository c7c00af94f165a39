#include "server/web/port/http_connection.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
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
#include <vector>

#include "server/call/call_scope.h"
#include "server/call/status.h"
#include "server/log/logging.h"
#include "server/log/request_id.h"
#include "server/web/http_status.h"
#include "server/web/port/response_head.h"
#include "server/web/port/tls_contexts.h"

namespace lintel {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using SteadyTime = std::chrono::steady_clock::time_point;
using Socket = asio::basic_stream_socket<asio::generic::stream_protocol,
                                         asio::strand<asio::io_context::executor_type>>;

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

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  });
  return result;
}

// "http://host/path" names a path, too: clients that believe to speak to a proxy write so.
std::string_view without_authority(std::string_view target) {
  if (!target.starts_with("http://") && !target.starts_with("https://")) return target;
  const std::size_t path = target.find('/', target.find("://") + 3);
  return path == std::string_view::npos ? std::string_view("/") : target.substr(path);
}

// The two kinds of streams, for what differs.
Socket& socket_of(Socket& socket) { return socket; }
Socket& socket_of(asio::ssl::stream<Socket>& stream) { return stream.next_layer(); }

template <typename Stream>
class Connection final : public HttpConnection,
                         public std::enable_shared_from_this<Connection<Stream>> {
  class Exchange;
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
        timer_(socket_of(stream_).get_executor()) {}

  ~Connection() override { release_body(); }

  void start(std::function<void()> closed) override {
    asio::post(timer_.get_executor(), [self = this->shared_from_this(), closed]() mutable {
      self->closed_ = std::move(closed);
      self->handshake();
    });
  }

  void drain() override {
    asio::post(timer_.get_executor(), [self = this->shared_from_this()] {
      if (self->phase_ == Phase::kIdle) self->shut();
    });
  }

  void close() override {
    asio::post(timer_.get_executor(), [self = this->shared_from_this()] { self->shut(); });
  }

 private:
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

  // From now on the client has this long; nothing: as long as it likes.
  void allow(std::optional<std::chrono::steady_clock::duration> time) {
    deadline_ = time ? std::chrono::steady_clock::now() + *time : SteadyTime::max();
    if (!time || (timer_waits_ && timer_.expiry() <= deadline_)) return;  // it looks again then
    timer_.expires_at(deadline_);
    timer_waits_ = true;
    const int wait = ++timer_wait_;
    timer_.async_wait([weak = this->weak_from_this(), wait](error_code) {
      if (const auto self = weak.lock()) self->on_timer(wait);
    });
  }

  void on_timer(int wait) {
    if (wait != timer_wait_) return;  // another wait took its place
    timer_waits_ = false;
    if (phase_ == Phase::kShut || deadline_ == SteadyTime::max()) return;
    const auto left = deadline_ - std::chrono::steady_clock::now();
    if (left > std::chrono::steady_clock::duration::zero()) {
      allow(left);
      return;
    }
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

  // --- Reading ---------------------------------------------------------------------------------

  void handshake() {
    if constexpr (std::is_same_v<Stream, Socket>) {
      await_request();
    } else {
      allow(house_.options.header_timeout_ms);
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
    allow(first_ ? house_.options.header_timeout_ms : house_.options.idle_timeout_ms);
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
                              self->note(error);
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
    allow(house_.options.header_timeout_ms);
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
    request_ = HttpRequest();
    take_head();
    if (too_long) return refuse_body();
    route_request();
  }

  // The parsed head, as routes get it.
  void take_head() {
    const auto& message = parser_->get();
    request_.method = std::string(message.method_string());
    const std::string_view target =
        without_authority(std::string_view(message.target().data(), message.target().size()));
    const std::size_t question = std::min(target.find('?'), target.size());
    request_.path = std::string(target.substr(0, question));
    if (question < target.size()) request_.query = std::string(target.substr(question + 1));
    for (const auto& field : message) {
      request_.headers.emplace_back(lower({field.name_string().data(), field.name_string().size()}),
                                    std::string(field.value().data(), field.value().size()));
    }
    request_.peer = peer_;
    request_.certificate = certificate_;
    request_.request_id = request_id_from(request_.header("x-request-id"));
    http_10_ = message.version() < 11;
    keep_alive_ = message.keep_alive() && !house_.draining;
  }

  // What can be refused before the body is read is.
  void route_request() {
    if (!http_10_ && request_.header("host").empty()) {
      return refuse(400, invalid("the request needs one header host"));
    }
    if (!house_.origins.takes(request_)) {
      return refuse(403,
                    permission_denied("pages of " + clip(request_.header("origin")) +
                                      " may not call: --http-cors-origin names those that may"));
    }
    HttpRoutes::Found found = house_.routes.find(request_.method, request_.path);
    if (OriginRules::is_preflight(request_)) {
      if (found.route == nullptr && found.allowed.empty()) return refuse_path();
      return answer_now(house_.origins.preflight(request_));
    }
    if (found.route == nullptr) {
      if (found.allowed.empty()) return refuse_path();
      HttpAnswer answer = plain_refusal(
          request_, 405,
          grpc::Status(grpc::UNIMPLEMENTED, request_.path + " takes " + found.allowed));
      answer.headers.emplace_back("allow", found.allowed);
      return answer_now(std::move(answer));
    }
    route_ = found.route;
    request_.parameters = std::move(found.parameters);
    if (house_.tokens != nullptr && !route_->is_open) {
      Identity caller;
      const grpc::Status known =
          identify(*house_.tokens, bearer_token(request_.header("authorization")), caller);
      if (!known.ok()) return refuse(401, known);
    }
    if (const std::string_view expected = request_.header("expect"); !expected.empty()) {
      if (lower(expected) != "100-continue") {
        return refuse(417, invalid("expect: " + clip(expected) + " is not known here"));
      }
      if (!parser_->is_done()) gathered_ = "HTTP/1.1 100 Continue\r\n\r\n";
    }
    phase_ = Phase::kBody;
    allow(house_.options.body_timeout_ms);
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

  void refuse_path() {
    answer_now(
        plain_refusal(request_, 404,
                      grpc::Status(grpc::NOT_FOUND, "there is nothing at " + clip(request_.path))));
  }

  void refuse(int http_status, const grpc::Status& status) {
    const bool shaped = route_ != nullptr && route_->refuse;
    answer_now(shaped ? route_->refuse(request_, http_status, status)
                      : plain_refusal(request_, http_status, status));
  }

  // Without a route. What is left of the request's body is not read: the connection ends with the
  // answer where there is any.
  void answer_now(HttpAnswer answer) {
    if (parser_ && !parser_->is_done()) keep_alive_ = false;
    if (request_.request_id.empty()) request_.request_id = request_id_from({});
    LogFields fields;
    fields.add("request_id", request_.request_id);
    fields.add("peer", peer_);
    fields.add("via", "http");
    fields.add("method", clip(request_.method));
    fields.add("path", clip(request_.path));
    fields.add("status", static_cast<std::int64_t>(answer.status));
    {
      const LogScope scope(fields);
      spdlog::info("request refused");
    }
    begin_answering();
    send_whole(std::move(answer));
  }

  void begin_answering() {
    phase_ = Phase::kAnswering;
    allow(std::nullopt);
    answer_ended_ = false;
    bodiless_ = request_.method == "HEAD";
  }

  void begin_exchange() {
    begin_answering();
    const auto exchange = std::make_shared<Exchange>(this->shared_from_this(), std::move(request_),
                                                     std::move(parser_->get().body()));
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

  static void fail(HttpExchange& exchange, const HttpRoute& route, const grpc::Status& status) {
    const auto refuse = route.refuse ? route.refuse : HttpRefusal(&plain_refusal);
    exchange.answer(refuse(exchange.request(), http_status_of(status.error_code()), status));
  }

  ResponseHead head_of(const HttpAnswer& answer, const HttpRequest& request) const {
    return {answer, house_.origins.headers_for(request), request.request_id,
            keep_alive_ && !house_.draining, http_10_};
  }

  void send_whole(HttpAnswer answer) { send_whole(std::move(answer), request_); }

  void send_whole(HttpAnswer answer, const HttpRequest& request) {
    count(answer.status);
    gathered_ += head_of(answer, request).whole();
    if (!bodiless_) gathered_ += answer.body;
    answer_ended_ = true;
    flush();
  }

  void begin_pieces(const HttpAnswer& head, const HttpRequest& request) {
    count(head.status);
    if (http_10_) keep_alive_ = false;  // its end is the connection's
    gathered_ += head_of(head, request).in_pieces();
    add_piece(head.body);
    flush();
  }

  void add_piece(std::string_view piece) {
    if (piece.empty() || bodiless_) return;  // an empty one would be the last
    if (http_10_) {
      gathered_ += piece;
      return;
    }
    gathered_ += chunk_size_line(piece.size());
    gathered_ += piece;
    gathered_ += "\r\n";
  }

  void end_pieces(std::string_view last) {
    add_piece(last);
    if (!http_10_ && !bodiless_) gathered_ += "0\r\n\r\n";
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
    if (written_ == in_flight_.size()) {
      written_ = 0;
      in_flight_.clear();
      std::swap(in_flight_, gathered_);
      if (in_flight_.capacity() > 4 * kGathered && in_flight_.empty()) in_flight_ = {};
    }
    tell_taken();
    if (in_flight_.empty()) {
      if (answer_ended_ && phase_ == Phase::kAnswering) finish_answer();
      return;
    }
    writing_ = true;
    if (phase_ == Phase::kAnswering) allow(house_.options.write_timeout_ms);
    stream_.async_write_some(
        asio::buffer(in_flight_.data() + written_, in_flight_.size() - written_),
        [self = this->shared_from_this()](error_code error, std::size_t size) {
          self->writing_ = false;
          self->note(error);
          if (self->phase_ == Phase::kShut) return;
          if (error) return self->shut();
          self->written_ += size;
          if (self->phase_ == Phase::kAnswering) self->allow(std::nullopt);
          self->flush();
        });
  }

  // Whoever streams may go on once little waits.
  void tell_taken() {
    if (taken_ && gathered_.size() < kGathered) std::exchange(taken_, nullptr)(true);
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
    allow(kLingerTime);
    linger();
  }

  void linger() {
    lingered_ += buffer_.size();
    buffer_.clear();
    if (lingered_ > kLingerBytes) return shut();
    watch();
  }

  // Closes the connection; whoever still answers on it hears that its client is gone.
  // The kernel, too, knows when a client takes nothing, and may be the first to say so: once, to
  // whichever of reading and writing asks first.
  void note(error_code error) {
    if (error == asio::error::timed_out) house_.counters.timeouts++;
  }

  void shut() {
    if (phase_ == Phase::kShut) return;
    if (phase_ == Phase::kAnswering) house_.counters.answers[0]++;
    phase_ = Phase::kShut;
    error_code ignored;
    timer_.cancel();
    socket_of(stream_).close(ignored);
    release_body();
    gathered_.clear();
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
  asio::basic_waitable_timer<std::chrono::steady_clock,
                             asio::wait_traits<std::chrono::steady_clock>,
                             asio::strand<asio::io_context::executor_type>>
      timer_;
  SteadyTime deadline_ = SteadyTime::max();
  bool timer_waits_ = false;
  int timer_wait_ = 0;  // the number of the last one

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
  std::string gathered_;       // to be written next
  std::string in_flight_;
  std::size_t written_ = 0;  // of in_flight_
  bool writing_ = false;
  std::function<void(bool)> taken_;  // told when there is room
  std::function<void()> gone_;       // told when the client is gone
};

// What a route has of a connection, for one request. Everything is posted to the strand; what comes
// after the connection went on is of an earlier request and dropped: an exchange is over with its
// answer.
template <typename Stream>
class Connection<Stream>::Exchange final : public HttpExchange {
 public:
  Exchange(std::shared_ptr<Connection> connection, HttpRequest request, std::string body)
      : connection_(std::move(connection)), request_(std::move(request)), body_(std::move(body)) {}

  ~Exchange() override {
    if (over_.load()) return;
    post([request = std::move(request_), begun = begun_.load()](Connection& connection) mutable {
      if (begun) return connection.shut();
      connection.send_whole(
          plain_refusal(request, 500, grpc::Status(grpc::INTERNAL, "nobody answered")), request);
    });
  }

  const HttpRequest& request() const override { return request_; }
  std::string take_body() override { return std::move(body_); }

  void answer(HttpAnswer answer) override {
    if (begun_.load() || over_.exchange(true)) return;
    post([answer = std::move(answer), request = request_](Connection& connection) mutable {
      connection.send_whole(std::move(answer), request);
    });
  }

  void begin(HttpAnswer head) override {
    if (over_.load() || begun_.exchange(true)) return;
    post([head = std::move(head), request = request_](Connection& connection) {
      connection.begin_pieces(head, request);
    });
  }

  void write(std::string piece, std::function<void(bool)> taken) override {
    asio::post(
        connection_->timer_.get_executor(),
        [connection = connection_, piece = std::move(piece), taken = std::move(taken)]() mutable {
          if (connection->phase_ == Phase::kShut) return taken(false);
          connection->add_piece(piece);
          connection->taken_ = std::move(taken);
          connection->flush();
          connection->tell_taken();
        });
  }

  void end(std::string last_piece) override {
    if (!begun_.load() || over_.exchange(true)) return;
    post([last = std::move(last_piece)](Connection& connection) { connection.end_pieces(last); });
  }

  void abort() override {
    if (over_.exchange(true)) return;
    post([](Connection& connection) { connection.shut(); });
  }

  void when_gone(std::function<void()> gone) override {
    if (over_.load()) return;
    asio::post(connection_->timer_.get_executor(),
               [connection = connection_, gone = std::move(gone)]() mutable {
                 if (connection->phase_ == Phase::kShut) return gone();
                 connection->gone_ = std::move(gone);
               });
  }

 private:
  // Runs `function` on the strand, unless the connection is shut by then.
  template <typename Function>
  void post(Function function) {
    asio::post(connection_->timer_.get_executor(),
               [connection = connection_, function = std::move(function)]() mutable {
                 if (connection->phase_ != Phase::kShut) function(*connection);
               });
  }

  const std::shared_ptr<Connection> connection_;
  HttpRequest request_;
  std::string body_;
  std::atomic<bool> begun_{false};  // in pieces
  std::atomic<bool> over_{false};
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
