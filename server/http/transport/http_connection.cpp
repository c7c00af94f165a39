// SPDX-License-Identifier: Apache-2.0
#include "server/http/transport/http_connection.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/wait_traits.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/read_size.hpp>
#include <boost/beast/http/error.hpp>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "server/http/transport/connection_exchange.h"
#include "server/http/transport/request_head.h"
#include "server/http/transport/response_head.h"
#include "server/http/transport/tls_contexts.h"
#include "server/http/transport/websocket.h"
#include "server/observability/logging.h"
#include "server/rpc/status.h"

namespace lintel {

// ClientDeadline: how long a connection waits for its client, by one timer for all it waits for.

// The object whose handlers Asio runs.
class HandlerOwner {
 public:
  virtual ~HandlerOwner() = default;
  // Ends the owner, for an exception that is being handled. From any thread.
  virtual void fail() noexcept = 0;
  // Notes that a handler of it will never run. From any thread, also when Asio is being taken down.
  virtual void lose() noexcept = 0;
};

// A handler of Asio's that keeps its owner alive. An exception of it ends the owner and not the
// thread. Where Asio has no memory to run a handler it throws and drops it: its owner, which may
// wait for nothing else, gets to know.
template <typename Function>
class OwnedHandler {
 public:
  OwnedHandler(std::shared_ptr<HandlerOwner> owner, Function function)
      : owner_(std::move(owner)), function_(std::move(function)) {}
  OwnedHandler(OwnedHandler&&) = default;
  OwnedHandler& operator=(OwnedHandler&&) = delete;
  ~OwnedHandler() {
    if (owner_ != nullptr) owner_->lose();
  }

  template <typename... Results>
  void operator()(Results... results) {
    const std::shared_ptr<HandlerOwner> owner = std::move(owner_);
    try {
      function_(results...);
    } catch (...) {
      owner->fail();
    }
  }

 private:
  std::shared_ptr<HandlerOwner> owner_;  // null: it ran
  Function function_;
};

// Used on the strand. Moving the deadline on, as every write does, needs no system call: the timer
// checks it again when it expires.
class ClientDeadline {
 public:
  using Clock = std::chrono::steady_clock;

  template <typename Strand>
  explicit ClientDeadline(const Strand& strand) : timer_(strand) {}

  // Called before all else. `expired` is called on the strand. The owner, of which this is a part,
  // lives until cancel() or the deadline.
  void bind(std::weak_ptr<HandlerOwner> owner, std::function<void()> expired) {
    owner_ = std::move(owner);
    expired_ = std::move(expired);
  }

  // Gives the client this long from now on; nothing: no limit.
  void allow(std::optional<Clock::duration> time) {
    deadline_ = time ? Clock::now() + *time : Clock::time_point::max();
    if (!time || (waits_ && timer_.expiry() <= deadline_)) return;
    timer_.expires_at(deadline_);
    waits_ = true;
    const int wait = ++wait_;
    timer_.async_wait(
        OwnedHandler(owner_.lock(), [this, wait](boost::system::error_code) { look(wait); }));
  }

  void cancel() {
    deadline_ = Clock::time_point::max();
    timer_.cancel();
  }

 private:
  void look(int wait) {
    if (wait != wait_) return;  // another wait took its place
    waits_ = false;
    if (deadline_ == Clock::time_point::max()) return;
    const auto left = deadline_ - Clock::now();
    left > Clock::duration::zero() ? allow(left) : expired_();
  }

  // The strand's own type: an executor of any type needs memory where Asio may not throw.
  using Strand = boost::asio::strand<boost::asio::io_context::executor_type>;
  boost::asio::basic_waitable_timer<Clock, boost::asio::wait_traits<Clock>, Strand> timer_;
  std::weak_ptr<HandlerOwner> owner_;
  std::function<void()> expired_;
  Clock::time_point deadline_ = Clock::time_point::max();
  bool waits_ = false;
  int wait_ = 0;  // the number of the last one
};

// AnswerBytes: what a connection writes next, framed as HTTP/1.1 or 1.0 has it.

// Used on the strand. Two buffers: one gathers while the other is written.
class AnswerBytes {
 public:
  // An answer begins. `chunked`: its pieces are HTTP/1.1's; else they are bytes as they are, up to
  // the connection's end. `bodiless`: to HEAD, of which the body is left out.
  void begin(std::string head, bool chunked, bool bodiless) {
    gathered_ += head;
    chunked_ = chunked;
    bodiless_ = bodiless;
  }
  // A whole body, of the head's content-length, or an interim response such as "100 Continue".
  void add(std::string_view bytes) { gathered_ += bytes; }
  void add_body(std::string_view body) {
    if (!bodiless_) gathered_ += body;
  }
  void add_piece(std::string_view piece) {
    if (piece.empty() || bodiless_) return;  // an empty one would be the last
    if (chunked_) gathered_ += chunk_size_line(piece.size());
    gathered_ += piece;
    if (chunked_) gathered_ += "\r\n";
  }
  void add_last_piece(std::string_view piece) {
    add_piece(piece);
    if (chunked_ && !bodiless_) gathered_ += "0\r\n\r\n";
  }

  // The bytes to write now, until that many were written; empty: none.
  std::string_view in_flight() {
    if (written_ == in_flight_.size()) {
      written_ = 0;
      in_flight_.clear();
      std::swap(in_flight_, gathered_);
      if (in_flight_.empty() && in_flight_.capacity() > kKeptBytes) in_flight_ = {};
    }
    return std::string_view(in_flight_).substr(written_);
  }
  void written(std::size_t bytes) { written_ += bytes; }

  // Bytes that wait for the write in progress.
  std::size_t gathered() const { return gathered_.size(); }
  void drop_gathered() { gathered_.clear(); }

 private:
  static constexpr std::size_t kKeptBytes = std::size_t{64} << 10;  // of an idle connection

  std::string gathered_;
  std::string in_flight_;
  std::size_t written_ = 0;  // of in_flight_
  bool chunked_ = false;
  bool bodiless_ = false;
};

namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using Socket = asio::basic_stream_socket<asio::generic::stream_protocol, ConnectionStrand>;

// Bytes that wait to be written before a stream is paused: enough for the pieces of a step, little
// enough for a thousand clients that read nothing.
constexpr std::size_t kGathered = std::size_t{16} << 10;
// Bytes read ahead while a request is answered: the client's next ones, or its end.
constexpr std::size_t kReadAhead = 4096;
constexpr std::size_t kReadAtOnce = std::size_t{64} << 10;
// The most bytes of a WebSocket's next message that are read while the one before it is answered.
// The rest waits in the socket: a turn may take any time, and others need the memory for bodies.
constexpr std::size_t kMessageAhead = std::size_t{16} << 10;
// The most bytes that make no sense without more: headers, a chunk's extension, trailers. Longer
// ones are refused.
constexpr std::size_t kBufferBytes = std::size_t{96} << 10;
// Bytes that the system buffers of an answer that its client does not take: without a bound, some
// megabytes for each of a thousand clients.
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
                         public HandlerOwner,
                         public std::enable_shared_from_this<Connection<Stream>> {
 public:
  // `tls`: kept while its stream lives.
  template <typename... More>
  Connection(Socket socket, std::string peer, HttpServerState& state,
             std::shared_ptr<asio::ssl::context> tls, More&... more)
      : state_(state),
        peer_(std::move(peer)),
        tls_(std::move(tls)),
        stream_(std::move(socket), more...),
        deadline_(strand()),
        silence_(strand()),
        age_(strand()),
        buffer_(std::max(kBufferBytes,
                         static_cast<std::size_t>(state.options.max_header_bytes) + kReadAtOnce)) {}

  ~Connection() override { release_body(); }

  void start(std::function<void()> closed) override {
    post([this, closed = std::move(closed)]() mutable {
      closed_ = std::move(closed);
      const std::weak_ptr<HandlerOwner> self = this->weak_from_this();
      deadline_.bind(self, [this] { on_expired(); });
      silence_.bind(self, [this] { on_silence(); });
      age_.bind(self, [this] { on_age(); });
      if (state_.max_age.count() > 0) age_.allow(state_.max_age);
      handshake();
    });
  }

  void drain() override {
    post([this] {
      if (phase_ == Phase::kIdle) end_idle();
    });
  }

  void close() override {
    post([this] { shut(); });
  }

  bool is_lost() const override { return lost_; }

 private:
  ConnectionStrand strand() override { return socket_of(stream_).get_executor(); }
  // True also if the answer no longer has a recipient.
  bool is_shut() const override { return phase_ == Phase::kShut || is_closing_; }

  template <typename Function>
  auto handler(Function function) {
    return OwnedHandler<Function>(this->shared_from_this(), std::move(function));
  }

  template <typename Function>
  void post(Function function) {
    asio::post(strand(), handler(std::move(function)));
  }

  void lose() noexcept override {
    lost_ = true;
    state_.some_lost = true;
  }

  void fail() noexcept override {
    state_.counters.exceptions++;
    log_exception(peer_);
    try {
      if (socket_of(stream_).get_executor().running_in_this_thread()) return shut();
      close();
    } catch (...) {
      lose();  // the listener's search for lost ones closes it
    }
  }

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

  // The connection is as old as it may get, or past its grace.
  void on_age() {
    if (phase_ == Phase::kShut) return;
    if (std::exchange(aged_, true)) return shut();
    if (phase_ == Phase::kIdle && buffer_.size() == 0) return end_idle();
    if (state_.max_age_grace.count() > 0) age_.allow(state_.max_age_grace);
  }

  void on_expired() {
    if (phase_ == Phase::kShut) return;
    if (phase_ != Phase::kIdle && phase_ != Phase::kLingering) count_timeout();
    if (web_socket_ && phase_ == Phase::kIdle) {
      return close_socket(WebSocketClose::kGoingAway, "no message within --http-idle-timeout");
    }
    if (web_socket_ && phase_ == Phase::kBody) return close_late_message();
    if (phase_ == Phase::kBody || (phase_ == Phase::kHead && !writing_ && !is_http2_)) {
      const auto& options = state_.options;
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

  // A connection counts once: the kernel, too, detects a client that takes nothing, and reports it
  // to a read or a write before or after our own deadline.
  void count_timeout() {
    if (!std::exchange(is_timed_out_, true)) state_.counters.timeouts++;
  }

  void count_timeout(error_code error) {
    if (error == asio::error::timed_out) count_timeout();
  }

  // --- Reading ---------------------------------------------------------------------------------

  void handshake() {
    if constexpr (std::is_same_v<Stream, Socket>) {
      await_request();
    } else {
      deadline_.allow(state_.options.header_timeout_ms);
      stream_.async_handshake(asio::ssl::stream_base::server, handler([this](error_code error) {
                                if (phase_ == Phase::kShut) return;
                                if (error) return shut();
                                certificate_ = certificate_name(stream_.native_handle());
                                await_request();
                              }));
    }
  }

  void await_request() {
    phase_ = Phase::kIdle;
    if (web_socket_) return await_message();
    release_body();
    if (state_.draining) return shut();
    if (buffer_.size() > 0) return read_heads();
    if (aged_) return shut();
    shrink_buffer();
    deadline_.allow(first_ ? state_.options.header_timeout_ms : state_.options.idle_timeout_ms);
    watch();
  }

  // Requests that are here. It is called for the next one by the end of an answer, also from here:
  // then it leaves that to the loop, so that any number may wait. Nothing is posted to the strand,
  // which ends the process where it has no memory to run it.
  void read_heads() {
    has_next_head_ = true;
    if (std::exchange(is_reading_heads_, true)) return;
    while (phase_ == Phase::kIdle && std::exchange(has_next_head_, false)) read_head();
    is_reading_heads_ = false;
  }

  // Shrinks the buffer of an idle connection. A read under way has its memory.
  void shrink_buffer() {
    if (!reading_ && buffer_.capacity() > kReadAtOnce / 2) buffer_.shrink_to_fit();
  }

  // Reads while no other read runs: the next request's first bytes, or that the client is gone.
  // Once there are some it waits for their turn.
  void watch() {
    if (!reading_ && buffer_.size() == 0) read(kReadAhead);
  }

  void read(std::size_t at_most) {
    reading_ = true;
    stream_.async_read_some(
        buffer_.prepare(at_most),
        handler([this](error_code error, std::size_t size) { on_read(error, size); }));
  }

  void on_read(error_code error, std::size_t size) {
    reading_ = false;
    count_timeout(error);
    if (phase_ == Phase::kShut) return;
    if (error) return shut();
    buffer_.commit(size);
    if (web_socket_ && !is_closing_) return read_messages();
    switch (phase_) {
      case Phase::kIdle:
        return read_heads();
      case Phase::kHead:
        return is_http2_ ? read_http2() : parse_head();
      case Phase::kBody:
        return read_body();
      case Phase::kLingering:
        return linger();
      default:
        return watch();
    }
  }

  // Reads more of a part that makes no sense yet. Returns whether there is room for it.
  bool read_more() {
    const std::size_t room = boost::beast::read_size(buffer_, kReadAtOnce);
    if (room > 0) read(room);
    return room > 0;
  }

  void read_head() {
    phase_ = Phase::kHead;
    parser_.emplace(static_cast<std::size_t>(state_.options.max_header_bytes),
                    state_.max_body_bytes);
    deadline_.allow(state_.options.header_timeout_ms);
    parse_head();
  }

  void parse_head() {
    error_code error;
    buffer_.consume(parser_->put(buffer_.data(), error));
    if (error != http::error::need_more) return on_head(error);
    if (!read_more()) on_head(http::error::header_limit);
  }

  void on_head(error_code error) {
    const bool is_first = std::exchange(first_, false);
    if (is_first && error == http::error::bad_version && begins_http2()) return begin_http2();
    take_head();
    if (error) keep_alive_ = false;
    if (error == http::error::header_limit) {
      const std::string_view problem = parser_->problem();
      return refuse(
          431,
          invalid(problem.empty() ? "the request's first line and headers take more than " +
                                        std::to_string(state_.options.max_header_bytes) + " bytes"
                                  : "the request has " + std::string(problem)));
    }
    if (error) return refuse(400, invalid("the request is no HTTP/1.1: " + why(error)));
    route_request();
  }

  std::string why(error_code error) const {
    return parser_->problem().empty() ? error.message() : std::string(parser_->problem());
  }

  // Takes the parsed head, as routes get it. If it could not be parsed, takes it as far as it came.
  void take_head() {
    keep_alive_ = parser_->is_header_done() && parser_->keep_alive() && !state_.draining && !aged_;
    http_10_ = parser_->is_http_10();
    request_ = parser_->take_head();
    request_.peer = peer_;
    request_.certificate = certificate_;
    request_.request_id = request_id_from(request_.header("x-request-id"));
  }

  void route_request() {
    if (std::optional<HttpAnswer> answer = answer_head(state_, request_, http_10_, route_)) {
      return answer_now(std::move(*answer));
    }
    if (route_->open_socket && asks_for_websocket(request_)) return begin_socket();
    if (parser_->is_too_long()) return refuse_body();
    if (!request_.header("expect").empty() && !parser_->is_done()) {
      bytes_.add("HTTP/1.1 100 Continue\r\n\r\n");
    }
    phase_ = Phase::kBody;
    deadline_.allow(state_.options.body_timeout_ms);
    flush();
    read_body();
  }

  void read_body() {
    while (!parser_->is_done() && buffer_.size() > 0) {
      error_code error;
      const std::size_t used = parser_->put(buffer_.data(), error);
      buffer_.consume(used);
      if (error == http::error::body_limit) return refuse_body();
      if (error && error != http::error::need_more) {
        return refuse(400, invalid("the request's body makes no sense: " + why(error)));
      }
      if (!count_body(parser_->body().size())) return refuse(503, no_memory());
      if (error || used == 0) break;  // it needs more
    }
    if (parser_->is_done()) return begin_exchange();
    if (!read_more()) {
      refuse(400, invalid("the request's body makes no sense: a chunk's extension or the trailers "
                          "take more than " +
                          std::to_string(buffer_.max_size()) + " bytes"));
    }
  }

  // Counts what came of the body among all connections' bodies. False: they are too much together.
  bool count_body(std::size_t bytes) {
    const auto size = static_cast<std::int64_t>(bytes);
    const std::int64_t more = size - body_bytes_;
    body_bytes_ = size;
    return state_.counters.body_bytes.fetch_add(more) + more <= state_.options.memory_bytes;
  }

  static grpc::Status no_memory() {
    return unavailable(
        "requests that are being read take all of the memory there is for them (--http-memory)",
        std::chrono::milliseconds(1000));
  }

  void release_body() { state_.counters.body_bytes.fetch_sub(std::exchange(body_bytes_, 0)); }

  // --- WebSocket -------------------------------------------------------------------------------

  void begin_socket() {
    int http_status = 0;
    const grpc::Status valid = check_websocket_handshake(request_, http_10_, http_status);
    if (!valid.ok()) {
      HttpAnswer answer = refusal(state_.routes, request_, route_, http_status, valid);
      if (http_status == 426) answer.headers.emplace_back("sec-websocket-version", "13");
      return answer_now(std::move(answer));
    }
    if (!keep_alive_) return refuse(503, shutting_down());
    bytes_.add(head_of({101, websocket_headers(request_), {}}, request_).upgraded());
    HttpHandler handle = route_->open_socket(request_);
    web_socket_.emplace(std::move(request_), route_, std::move(handle), state_.max_body_bytes,
                        strand());
    web_socket_->message_deadline.bind(this->weak_from_this(), [this] { on_message_expired(); });
    parser_.reset();
    flush();
    await_request();
  }

  void await_message() {
    if (state_.draining || aged_) return end_idle();
    deadline_.allow(state_.options.idle_timeout_ms);
    read_messages();
  }

  // Answers messages that are here. It is called for the next one by the end of an answer, also
  // from here: as in read_heads().
  void read_messages() {
    if (std::exchange(is_reading_messages_, true)) return;
    do {
      if (!read_frames()) return;
      if (phase_ == Phase::kIdle && web_socket_->has_message) answer_message();
    } while (phase_ == Phase::kIdle && (web_socket_->has_message || buffer_.size() > 0));
    is_reading_messages_ = false;
    if (phase_ == Phase::kBody && !reading_) read_more();  // the buffer is empty: there is room
    if (phase_ == Phase::kIdle) shrink_buffer();
    if (phase_ == Phase::kIdle || phase_ == Phase::kAnswering) watch();
    bound_message(phase_ == Phase::kAnswering && web_socket_->reader.is_in_message() &&
                  !has_enough_ahead());
  }

  // True if enough of the next message was read while the one before it is answered.
  bool has_enough_ahead() const {
    return phase_ == Phase::kAnswering && web_socket_->reader.message_bytes() >= kMessageAhead;
  }

  // Bounds how long the rest of a message takes that began during an answer. Not while it is not
  // read: that is not its client's doing.
  void bound_message(bool is_due) {
    WebSocket& socket = *web_socket_;
    if (std::exchange(socket.is_message_due, is_due) == is_due) return;
    socket.message_deadline.allow(
        is_due ? std::optional<ClientDeadline::Clock::duration>(state_.options.body_timeout_ms)
               : std::nullopt);
  }

  void on_message_expired() {
    if (phase_ != Phase::kAnswering || is_closing_) return;
    count_timeout();
    close_late_message();
  }

  void close_late_message() {
    close_socket(WebSocketClose::kPolicy, "the message did not come within --http-body-timeout");
  }

  // Reads frames up to the end of a message, which waits while the one before it is answered: then
  // at most kReadAhead bytes are here besides it and kMessageAhead of it. False: the connection
  // closes.
  bool read_frames() {
    WebSocket& socket = *web_socket_;
    while (!socket.has_message && buffer_.size() > 0 && !has_enough_ahead()) {
      const auto bytes = buffer_.data();
      auto event = WebSocketReader::Event::kNone;
      buffer_.consume(
          socket.reader.put({static_cast<const char*>(bytes.data()), bytes.size()}, event));
      if (!count_body(socket.reader.message_bytes())) {
        close_socket(WebSocketClose::kTryAgainLater, no_memory().error_message());
        return false;
      }
      if (event == WebSocketReader::Event::kMessage) socket.has_message = true;
      // A client that reads no answers gets none.
      if (event == WebSocketReader::Event::kPing && bytes_.gathered() < kGathered) {
        bytes_.add(websocket_pong(socket.reader.control()));
        flush();
      }
      if (event == WebSocketReader::Event::kClose || event == WebSocketReader::Event::kInvalid) {
        close_socket(socket.reader.close_code(), socket.reader.problem());
        return false;
      }
    }
    if (phase_ == Phase::kAnswering) return true;
    if (socket.has_message || !socket.reader.is_in_message()) {
      phase_ = Phase::kIdle;
      deadline_.allow(state_.options.idle_timeout_ms);
    } else if (std::exchange(phase_, Phase::kBody) != Phase::kBody) {
      deadline_.allow(state_.options.body_timeout_ms);
    }
    return true;
  }

  void answer_message() {
    WebSocket& socket = *web_socket_;
    socket.has_message = false;
    begin_answering();
    bytes_.begin({}, /*chunked=*/false, /*bodiless=*/false);
    // The caller is identified again: the token may have been revoked.
    const grpc::Status known = identify_caller(state_, *socket.route, socket.handshake);
    const auto exchange = std::make_shared<ConnectionExchange>(
        this->shared_from_this(), socket.handshake, socket.reader.take_message());
    release_body();
    watch();
    const auto refused = [&](int http_status, const grpc::Status& status) {
      exchange->answer(socket.route->refuse_message(exchange->request(), http_status, status));
    };
    if (!known.ok()) {
      log_refusal(socket.handshake, peer_, 401);
      return refused(401, known);
    }
    handle_exchange(socket.handle, exchange, [&](const grpc::Status& status) {
      refused(http_status_of(status.error_code()), status);
    });
  }

  // Sends a close frame and waits for the client's end of the connection. A turn is cancelled.
  void close_socket(WebSocketClose code, std::string_view reason) {
    if (phase_ == Phase::kAnswering) state_.counters.answers[0]++;
    phase_ = Phase::kLingering;
    is_closing_ = true;
    bound_message(false);
    end_heartbeat();
    deadline_.allow(kLingerTime);
    release_body();
    bytes_.add(websocket_close(code, reason));
    end_handler();
    flush();
    if (phase_ == Phase::kLingering) linger();
  }

  // --- HTTP/2 ----------------------------------------------------------------------------------

  // A gRPC client that was given this port gets to know. It waits for settings before it calls.
  bool begins_http2() const {
    const auto bytes = buffer_.data();
    return std::string_view(static_cast<const char*>(bytes.data()), bytes.size())
        .starts_with(kHttp2Preface);
  }

  void begin_http2() {
    is_http2_ = true;
    keep_alive_ = false;
    buffer_.consume(kHttp2Preface.size());
    bytes_.add(http2_settings());
    flush();
    if (phase_ == Phase::kHead) read_http2();
  }

  void read_http2() {
    const auto bytes = buffer_.data();
    const Http2Frames frames = http2_frames({static_cast<const char*>(bytes.data()), bytes.size()});
    buffer_.consume(frames.size);
    if (frames.stream == 0) {
      if (!read_more()) shut();
      return;
    }
    constexpr const char* kWrongPort =
        "this port speaks HTTP/1.1, not gRPC: it is the server's --http-listen, and gRPC's port is "
        "its --listen";
    request_.method = "PRI";
    request_.request_id = request_id_from({});
    log_refusal(request_, peer_, http_status_of(grpc::UNIMPLEMENTED));
    begin_answering();
    count(http_status_of(grpc::UNIMPLEMENTED));
    bytes_.add(http2_refusal(frames.stream, kWrongPort));
    answer_ended_ = true;
    flush();
  }

  // --- Answering -------------------------------------------------------------------------------

  static grpc::Status invalid(const std::string& what) { return {grpc::INVALID_ARGUMENT, what}; }

  void refuse_body() {
    refuse(413, grpc::Status(grpc::RESOURCE_EXHAUSTED, "the request's body is longer than " +
                                                           std::to_string(state_.max_body_bytes) +
                                                           " bytes (--max-message-size)"));
  }

  void refuse(int http_status, const grpc::Status& status) {
    answer_now(refusal(state_.routes, request_, route_, http_status, status));
  }

  // Answers without a route. The rest of the request's body is not read: if there is any, the
  // connection ends with the answer.
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
        this->shared_from_this(), std::move(request_), std::move(parser_->body()));
    release_body();
    parser_.reset();
    request_ = HttpRequest();
    const HttpRoute* const route = std::exchange(route_, nullptr);
    watch();
    handle_exchange(route->handle, exchange, [&](const grpc::Status& status) {
      exchange->answer(refusal(state_.routes, exchange->request(), route,
                               http_status_of(status.error_code()), status));
    });
  }

  // `refuse` answers with what the handler threw.
  template <typename Refuse>
  static void handle_exchange(const HttpHandler& handle, const SharedExchange& exchange,
                              Refuse refuse) {
    try {
      handle(exchange);
    } catch (const std::bad_alloc&) {
      refuse(out_of_memory());
    } catch (const std::exception&) {
      refuse(status_of_exception());
    }
  }

  ResponseHead head_of(const HttpAnswer& answer, const HttpRequest& request) {
    if (state_.draining || aged_) keep_alive_ = false;
    return {answer,
            state_.origins.headers_for(request, state_.exposed_headers),
            request.request_id,
            keep_alive_,
            http_10_,
            state_.replica_id};
  }

  void send_whole(HttpAnswer answer) { send_whole(std::move(answer), request_); }

  void send_whole(HttpAnswer answer, const HttpRequest& request) override {
    count(answer.status);
    if (!web_socket_) {
      bytes_.begin(head_of(answer, request).whole(), /*chunked=*/false, bodiless_);
    }
    bytes_.add_body(answer.body);
    answer_ended_ = true;
    flush();
  }

  void refuse_exchange(const HttpRequest& request, const grpc::Status& status) override {
    const int http_status = http_status_of(status.error_code());
    send_whole(web_socket_ ? web_socket_->route->refuse_message(request, http_status, status)
                           : plain_refusal(request, http_status, status),
               request);
  }

  void begin_pieces(const HttpAnswer& head, const HttpRequest& request) override {
    count(head.status);
    heartbeat_ = head.heartbeat;
    await_piece();
    if (web_socket_) return bytes_.add_piece(head.body);
    if (http_10_) keep_alive_ = false;  // its end is the connection's
    bytes_.begin(head_of(head, request).in_pieces(), /*chunked=*/!http_10_, bodiless_);
    bytes_.add_piece(head.body);
  }

  void write_piece(std::string_view piece, std::function<void(bool)> taken) override {
    taken_ = std::move(taken);  // first: it is called even if writing fails
    await_piece();
    bytes_.add_piece(piece);
    flush();
    tell_taken();
  }

  void when_gone(std::function<void()> gone) override { gone_ = std::move(gone); }

  // Starts the time after which a silent answer gets a heartbeat.
  void await_piece() {
    if (!heartbeat_.empty()) silence_.allow(state_.options.heartbeat_ms);
  }

  // Writes a heartbeat, unless the client has not taken what came before.
  void on_silence() {
    if (phase_ != Phase::kAnswering || heartbeat_.empty()) return;
    if (!writing_ && bytes_.gathered() == 0) {
      bytes_.add_piece(heartbeat_);
      flush();
    }
    await_piece();
  }

  void end_heartbeat() {
    heartbeat_.clear();
    silence_.allow(std::nullopt);
  }

  void end_pieces(std::string_view last) override {
    end_heartbeat();
    bytes_.add_last_piece(last);
    answer_ended_ = true;
    flush();
  }

  void count(int status) {
    const auto hundreds = static_cast<std::size_t>(status / 100);
    if (hundreds < state_.counters.answers.size()) state_.counters.answers[hundreds]++;
  }

  // --- Writing ---------------------------------------------------------------------------------

  // Writes what has gathered, one write at a time, and continues when that is out.
  void flush() {
    if (phase_ == Phase::kShut || writing_) return;
    write_at_once();
    const std::string_view next = bytes_.in_flight();
    tell_taken();
    if (next.empty()) {
      if (is_closing_) return end_sending();
      if (answer_ended_ && phase_ == Phase::kAnswering) finish_answer();
      return;
    }
    writing_ = true;
    if (phase_ == Phase::kAnswering) deadline_.allow(state_.options.write_timeout_ms);
    stream_.async_write_some(asio::buffer(next.data(), next.size()),
                             handler([this](error_code error, std::size_t size) {
                               writing_ = false;
                               count_timeout(error);
                               if (phase_ == Phase::kShut) return;
                               if (error) return shut();
                               bytes_.written(size);
                               if (phase_ == Phase::kAnswering) deadline_.allow(std::nullopt);
                               flush();
                             }));
  }

  // Writes what the system takes without waiting, nearly always everything: then no thread is woken
  // for the completion. The write that waits ends the connection for an error.
  void write_at_once() {
    if constexpr (std::is_same_v<Stream, Socket>) {
      for (std::string_view next = bytes_.in_flight(); !next.empty(); next = bytes_.in_flight()) {
        const ssize_t size =
            ::send(stream_.native_handle(), next.data(), next.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (size < 0) {
          if (errno == ETIMEDOUT) count_timeout();  // the write that waits gets another error
          return;
        }
        bytes_.written(static_cast<std::size_t>(size));
      }
    }
  }

  // Resumes the stream once little waits.
  void tell_taken() {
    if (taken_ && bytes_.gathered() < kGathered) std::exchange(taken_, nullptr)(true);
  }

  void finish_answer() {
    gone_ = nullptr;
    answer_ended_ = false;
    if (web_socket_ || (keep_alive_ && !state_.draining)) {
      parser_.reset();
      route_ = nullptr;
      request_ = HttpRequest();
      return await_request();
    }
    phase_ = Phase::kLingering;
    end_sending();
    deadline_.allow(kLingerTime);
    linger();
  }

  void end_sending() {
    error_code ignored;
    socket_of(stream_).shutdown(Socket::shutdown_send, ignored);
  }

  void linger() {
    lingered_ += buffer_.size();
    buffer_.clear();
    if (lingered_ > kLingerBytes) return shut();
    watch();
  }

  // Lets the handler that answers know that its client is gone.
  void end_handler() {
    if (taken_) std::exchange(taken_, nullptr)(false);
    if (gone_) std::exchange(gone_, nullptr)();
  }

  // Ends a connection on which nothing is answered.
  void end_idle() {
    if (!web_socket_) return shut();
    close_socket(WebSocketClose::kGoingAway, "the server ends the connection");
  }

  void shut() override {
    if (phase_ == Phase::kShut) return;
    if (phase_ == Phase::kAnswering) state_.counters.answers[0]++;
    phase_ = Phase::kShut;
    error_code ignored;
    deadline_.cancel();
    silence_.cancel();
    age_.cancel();
    if (web_socket_) web_socket_->message_deadline.cancel();
    socket_of(stream_).close(ignored);
    release_body();
    bytes_.drop_gathered();
    end_handler();
    if (closed_) std::exchange(closed_, nullptr)();
  }

  HttpServerState& state_;
  const std::string peer_;
  const std::shared_ptr<asio::ssl::context> tls_;  // null: plain text
  Stream stream_;
  std::string certificate_;  // its name; empty without one
  std::function<void()> closed_;

  Phase phase_ = Phase::kHandshake;
  bool first_ = true;  // request of the connection
  ClientDeadline deadline_;
  ClientDeadline silence_;  // of the answer, until its heartbeat
  std::string heartbeat_;   // of the answer that is written in pieces; empty: none
  ClientDeadline age_;      // of the connection, regardless of its client
  bool aged_ = false;
  bool is_timed_out_ = false;
  std::atomic<bool> lost_{false};

  boost::beast::flat_buffer buffer_;  // what came and was not looked at
  bool reading_ = false;
  std::optional<RequestParser> parser_;
  bool is_http2_ = false;        // its client's first words were
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

  struct WebSocket {
    WebSocket(HttpRequest request, const HttpRoute* its_route, HttpHandler handler,
              std::size_t max_message_bytes, const ConnectionStrand& strand)
        : handshake(std::move(request)),
          route(its_route),
          handle(std::move(handler)),
          reader(max_message_bytes),
          message_deadline(strand) {}

    HttpRequest handshake;
    const HttpRoute* const route;
    const HttpHandler handle;
    WebSocketReader reader;
    bool has_message = false;  // that waits to be answered
    // The time of a message that comes while the one before it, with deadline_, is answered.
    ClientDeadline message_deadline;
    bool is_message_due = false;  // it runs
  };
  std::optional<WebSocket> web_socket_;  // once the connection was upgraded
  bool is_reading_messages_ = false;
  bool is_reading_heads_ = false, has_next_head_ = false;
  bool is_closing_ = false;          // its close frame was sent
  std::function<void(bool)> taken_;  // called when there is room
  std::function<void()> gone_;       // called when the client is gone
};

}  // namespace

std::shared_ptr<HttpConnection> make_http_connection(asio::io_context& io, int fd,
                                                     std::shared_ptr<asio::ssl::context> tls,
                                                     std::string peer, HttpServerState& state) {
  // Closes the descriptor if there is no memory for a socket.
  struct Descriptor {
    int fd;
    ~Descriptor() {
      if (fd >= 0) ::close(fd);
    }
  } descriptor{fd};
  Socket socket(asio::make_strand(io));
  error_code error;
  // The family matters to nothing that is done with the socket.
  socket.assign(asio::generic::stream_protocol(AF_INET, 0), fd, error);
  if (error) throw boost::system::system_error(error);
  descriptor.fd = -1;
  socket.set_option(asio::socket_base::send_buffer_size(kSendBufferBytes), error);  // or as it is
  if (tls == nullptr) {
    return std::make_shared<Connection<Socket>>(std::move(socket), std::move(peer), state, nullptr);
  }
  asio::ssl::context& context = *tls;
  return std::make_shared<Connection<asio::ssl::stream<Socket>>>(std::move(socket), std::move(peer),
                                                                 state, std::move(tls), context);
}

}  // namespace lintel
