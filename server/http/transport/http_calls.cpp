// SPDX-License-Identifier: Apache-2.0
#include "server/http/transport/http_calls.h"

#include <grpcpp/support/slice.h>

#include <algorithm>
#include <utility>

#include "server/core/threads.h"
#include "server/http/transport/body_work.h"
#include "server/security/identity.h"

namespace lintel {
namespace {

// True if gRPC takes the text as the value of a header: services see the same over both transports.
bool is_metadata(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

// Runs a function that ends an exchange. Cuts the connection if there is no memory for that.
template <typename Function>
void end_or_abort(HttpExchange& exchange, Function function) noexcept {
  const grpc::Status ended = catch_exceptions([&] {
    function();
    return grpc::Status::OK;
  });
  if (!ended.ok()) exchange.abort();
}

}  // namespace

using NextPiece = HttpCalls::NextPiece;

struct HttpCalls::Handlers {
  // Begins the answer before its first message; null: it begins with its end.
  std::function<void()> begin;
  // Turns a message into a piece of the answer; empty: nothing is written for it.
  std::function<grpc::Status(const google::protobuf::Message&, std::string& piece)> message;
  // Answers the exchange, or ends its answer, or returns what ends it. `response`: of a unary call,
  // else null.
  std::function<NextPiece(const grpc::Status&, const google::protobuf::Message* response)> end;
  std::shared_ptr<KeptAnswer> kept = nullptr;
  bool is_charged = false;  // as RpcCall's
};

// One call: what its service knows of it, and the operations of its reactor. Keeps itself until the
// reactor's end.
class HttpCalls::Call final : public RpcCall,
                              private RpcTransport,
                              public std::enable_shared_from_this<Call> {
 public:
  Call(HttpCalls& calls, SharedExchange exchange, const RpcMethod& method, RequestMessage request,
       RequestMemory::Charge memory, Handlers handlers, Timeout timeout, HttpHeaders headers)
      : calls_(calls),
        exchange_(std::move(exchange)),
        method_(method),
        headers_(std::move(headers)),
        request_(std::move(request)),
        request_bytes_(request_.object() != nullptr ? request_.object()->text_bytes()
                                                    : request_.size()),
        has_object_(request_.object() != nullptr),
        memory_(std::move(memory)),
        handlers_(std::move(handlers)) {
    if (timeout) deadline_ = std::chrono::system_clock::now() + *timeout;
    start_.run = &Call::on_start;
    cancel_.run = &Call::on_cancel;
    read_.run = &Call::on_read;
    begin_.run = &Call::on_begin;
    write_.run = &Call::on_write;
    written_.run = &Call::on_written;
    finish_.run = &Call::on_finish;
    piece_.run = &Call::on_piece;
  }

  // Starts the call. If it throws, nothing of the call is left.
  void start(Timeout timeout) {
    // A weak one: the exchange must not keep the call that keeps the exchange.
    exchange_->when_gone([weak = weak_from_this()] {
      if (const auto running = weak.lock()) running->cancel();
    });
    if (timeout) calls_.add_deadline(std::chrono::steady_clock::now() + *timeout, *this);
    calls_.enter();
    self_ = shared_from_this();
    const bool is_long = request_bytes_ > BodyWork::kShortBytes;
    // A thread of BodyWork read this body in the caller's turn: bodies that wait are still texts.
    if (has_object_ && is_long) {
      const std::shared_ptr<Call> call = self_;
      return run(start_);
    }
    const grpc::Status in_turn = catch_exceptions([&] {
      if (calls_.bodies_ == nullptr || !is_long) return out_of_memory();
      const bool is_added = calls_.bodies_->run_in_turn(exchange_->request(), request_bytes_,
                                                        [call = self_](const grpc::Status& status) {
                                                          if (!status.ok()) call->fail(status);
                                                          call->run(call->start_);
                                                        });
      return is_added ? grpc::Status::OK : shutting_down();
    });
    if (!in_turn.ok()) calls_.post(start_, self_);
  }

  // The whole call, on this thread. REQUIRES: a unary method, which finishes before it returns.
  void run_here() {
    runs_here_ = true;
    calls_.enter();
    self_ = shared_from_this();
    post(start_);
  }

  // Runs a task. An exception ends the call.
  void run(const Task& task) noexcept {
    catch_exceptions([&] { (this->*task.run)(); }, [&] { lose(); });
  }

  void expire() noexcept {
    fail(grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "Deadline Exceeded"));
  }

  // A task threw: there is no memory for the call.
  void lose() noexcept {
    exchange_->abort();
    fail(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, ""));
  }

  std::string_view header(const char* name) const override {
    for (const auto& [key, value] : headers_) {
      if (key == name) return value;
    }
    const std::string_view asked = name;
    if (asked == "x-request-id") return exchange_->request().request_id;
    if (asked != "authorization" && asked != "traceparent") return {};
    const std::string_view value = exchange_->request().header(asked);
    return is_metadata(value) ? value : std::string_view();
  }
  std::string peer() const override { return exchange_->request().peer; }
  std::string certificate() const override { return exchange_->request().certificate; }
  std::optional<std::chrono::system_clock::time_point> deadline() const override {
    return deadline_;
  }
  const Identity* caller() const override {
    const std::optional<Identity>& caller = exchange_->request().caller;
    return caller ? &*caller : nullptr;
  }
  const char* via() const override { return "http"; }
  bool is_cancelled() const override EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return cancelled_;
  }
  KeptAnswer* kept_answer() override { return handlers_.kept.get(); }
  bool is_charged() const override { return handlers_.is_charged; }
  const RequestMemory::Charge* memory() const override { return has_object_ ? &memory_ : nullptr; }
  // Skips the headers that the connection adds to every answer.
  void add_header(const std::string& name, const std::string& value) override {
    if (name != "x-request-id" && name != "lintel-replica") exchange_->add_header(name, value);
  }

 private:
  void read(RequestMessage& request) override {
    read_into_ = &request;
    post(read_);
  }
  void begin() override { post(begin_); }
  void write(const google::protobuf::Message& message) override {
    message_ = &message;
    post(write_);
  }
  void finish(const google::protobuf::Message* last, grpc::Status status) override {
    // A unary call that is answered as a stream is one of its response.
    const bool has_response = handlers_.message != nullptr && response_ != nullptr;
    message_ = has_response ? response_.get() : last;
    status_ = std::move(status);
    post(finish_);
  }

  void post(Task& task) noexcept { runs_here_ ? run(task) : calls_.post(task, shared_from_this()); }

  void cancel() noexcept EXCLUDES(mutex_) {
    {
      const MutexLock lock(mutex_);
      if (std::exchange(cancelled_, true)) return;
    }
    post(cancel_);
  }

  // The call ends with that status, not with its service's.
  void fail(grpc::Status status) noexcept EXCLUDES(mutex_) {
    {
      const MutexLock lock(mutex_);
      if (failed_.ok()) failed_ = std::move(status);
    }
    cancel();
  }
  bool has_failed() EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return !failed_.ok();
  }

  void on_start() {
    grpc::Status started = catch_exceptions([&]() -> grpc::Status {
      if (method_.type == RpcMethod::Type::kUnary) response_ = method_.new_response();
      {
        // Its client may have gone while it waited for its turn.
        const MutexLock lock(mutex_);
        if (!failed_.ok()) return failed_;
        if (cancelled_) return lintel::cancelled();
      }
      RequestMessage request;
      if (method_.type != RpcMethod::Type::kBidiStream) request = std::move(request_);
      // The method charges what it makes of the request from here on.
      if (method_.type != RpcMethod::Type::kBidiStream) memory_.shrink_to(0);
      reactor_ = method_.run(*this, request, response_.get());
      return grpc::Status::OK;
    });
    if (reactor_ == nullptr) {
      end_exchange(started);
      leave();
      return;
    }
    reactor_->bind(*this);  // from here on it may end
    {
      const MutexLock lock(mutex_);
      is_bound_ = true;
      if (!cancelled_) return;
    }
    on_cancel();
  }

  void on_cancel() EXCLUDES(mutex_) {
    {
      const MutexLock lock(mutex_);
      // Cancelling waits until the reactor is bound; on_start calls this again then.
      if (!is_bound_ || is_done_ || std::exchange(is_cancelling_, true)) return;
    }
    reactor_->cancel();
    {
      const MutexLock lock(mutex_);
      was_cancelled_ = true;
      if (!is_done_) return;
    }
    end();
  }

  // The request is one message.
  void on_read() {
    const bool is_first = !std::exchange(has_read_, true);
    if (is_first) *read_into_ = std::move(request_);
    memory_.shrink_to(0);
    reactor_->OnReadDone(is_first);
  }

  void on_begin() {
    if (handlers_.begin == nullptr) return reactor_->OnWriteDone(true);
    if (has_failed()) return reactor_->OnWriteDone(false);
    const grpc::Status started = catch_exceptions([&] {
      handlers_.begin();
      write_piece({}, written_);
      return grpc::Status::OK;
    });
    if (started.ok()) return;
    lose();
    reactor_->OnWriteDone(false);
  }

  // `next` is run when the client has taken it.
  void write_piece(std::string piece, Task& next) {
    exchange_->write(std::move(piece), [self = shared_from_this(), &next](bool has_room) {
      self->has_room_ = has_room;
      self->post(next);
    });
  }

  void on_write() {
    bool is_written = false;
    if (!write_message(written_, is_written)) reactor_->OnWriteDone(is_written);
  }
  void on_written() { reactor_->OnWriteDone(has_room_); }

  // Writes message_; `next` is run when the client has taken it. False: there is nothing to wait
  // for, and whether it is written.
  bool write_message(Task& next, bool& is_written) {
    const google::protobuf::Message& message = *std::exchange(message_, nullptr);
    if (has_failed()) return false;
    std::string piece;
    grpc::Status status = catch_exceptions([&] { return handlers_.message(message, piece); });
    if (!status.ok()) {
      fail(std::move(status));
      return false;
    }
    is_written = true;
    if (piece.empty()) return false;
    status = catch_exceptions([&] {
      write_piece(std::move(piece), next);
      return grpc::Status::OK;
    });
    if (status.ok()) return true;
    lose();
    is_written = false;
    return false;
  }

  void on_finish() {
    // Called again when the last message is out.
    bool is_written = false;
    if (message_ != nullptr && status_.ok() && write_message(finish_, is_written)) return;
    grpc::Status status;
    {
      const MutexLock lock(mutex_);
      status = failed_.ok() ? status_ : failed_;
    }
    end_exchange(status);
    has_room_ = true;
    on_piece();
  }

  // Writes the next piece of an answer that is written after the call's end. Done once the last
  // piece is out, or the client gone.
  void on_piece() {
    const bool is_written =
        next_piece_ != nullptr && catch_exceptions([&] { return write_piece(); },
                                                   [&] {
                                                     exchange_->abort();
                                                     return false;
                                                   });
    if (is_written) return;
    next_piece_ = nullptr;
    {
      const MutexLock lock(mutex_);
      is_done_ = true;
      if (is_cancelling_ && !was_cancelled_) return;  // on_cancel comes back to it
    }
    end();
  }

  // False: there is no more to write.
  bool write_piece() {
    if (!has_room_) return false;
    std::string piece = next_piece_();
    if (piece.empty()) {
      exchange_->end();
      return false;
    }
    exchange_->write(std::move(piece), [self = shared_from_this()](bool has_room) {
      self->has_room_ = has_room;
      self->post(self->piece_);
    });
    return true;
  }

  void end_exchange(const grpc::Status& status) noexcept {
    const bool is_unary = method_.type == RpcMethod::Type::kUnary;
    if (is_unary && response_ == nullptr) return exchange_->abort();  // there was no memory for it
    end_or_abort(*exchange_, [&] { next_piece_ = handlers_.end(status, response_.get()); });
  }

  void end() {
    std::exchange(reactor_, nullptr)->OnDone();
    leave();
  }

  // The thread that runs this holds the call.
  void leave() {
    handlers_ = {};
    self_ = nullptr;
    calls_.leave(*this);
  }

  friend class HttpCalls;

  HttpCalls& calls_;
  std::optional<Deadlines::iterator> entry_;  // among the deadlines; guarded by HttpCalls::mutex_
  std::shared_ptr<Call> self_;                // from start() to the end
  const SharedExchange exchange_;
  const RpcMethod& method_;
  const HttpHeaders headers_;
  std::optional<std::chrono::system_clock::time_point> deadline_;
  RequestMessage request_;  // until it is read
  const std::size_t request_bytes_;
  const bool has_object_;
  RequestMemory::Charge memory_;  // of the request
  std::unique_ptr<google::protobuf::Message> response_;
  Handlers handlers_;
  RpcReactor* reactor_ = nullptr;

  // Operations under way, of which there is one of each kind.
  Task start_, cancel_, read_, begin_, write_, written_, finish_, piece_;
  NextPiece next_piece_;  // null: the answer is out
  RequestMessage* read_into_ = nullptr;
  const google::protobuf::Message* message_ = nullptr;
  grpc::Status status_;
  bool has_read_ = false;
  bool has_room_ = false;
  bool runs_here_ = false;  // constant since it began

  mutable Mutex mutex_;
  grpc::Status failed_ GUARDED_BY(mutex_);
  bool cancelled_ GUARDED_BY(mutex_) = false;
  bool is_bound_ GUARDED_BY(mutex_) = false;
  bool is_cancelling_ GUARDED_BY(mutex_) = false;  // OnCancel has been called
  bool was_cancelled_ GUARDED_BY(mutex_) = false;  // it has returned
  bool is_done_ GUARDED_BY(mutex_) = false;
};

HttpCalls::HttpCalls(std::span<const RpcService* const> services, BodyWork* bodies,
                     RequestMemory* memory, bool names_by_certificate)
    : bodies_(bodies), memory_(memory), names_by_certificate_(names_by_certificate) {
  for (const RpcService* const service : services) {
    for (const RpcMethod& method : service->methods()) methods_.emplace(method.name, &method);
  }
  for (int i = 0; i < kThreads; ++i) {
    threads_.emplace_back([this] { run(); });
  }
}

HttpCalls::~HttpCalls() { join(); }

bool HttpCalls::stop(std::chrono::nanoseconds timeout) {
  if (!wait_until_none(timeout)) return false;
  join();
  return true;
}

void HttpCalls::join() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    work_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void HttpCalls::post(Task& task, std::shared_ptr<Call> call) noexcept {
  task.call = std::move(call);
  task.next = nullptr;
  const MutexLock lock(mutex_);
  (last_ == nullptr ? first_ : last_->next) = &task;
  last_ = &task;
  work_.notify_one();
}

void HttpCalls::add_deadline(SteadyTime time, Call& call) {
  const MutexLock lock(mutex_);
  call.entry_ = deadlines_.emplace(time, &call);
  if (*call.entry_ == deadlines_.begin()) work_.notify_one();
}

std::size_t HttpCalls::num_deadlines() {
  const MutexLock lock(mutex_);
  return deadlines_.size();
}

void HttpCalls::run() {
  for (;;) {
    Task* task = nullptr;
    std::shared_ptr<Call> expired;
    {
      const MutexLock lock(mutex_);
      while (first_ == nullptr && expired == nullptr) {
        if (deadlines_.empty()) {
          if (stopping_) return;
          work_.wait(mutex_);
          continue;
        }
        const auto left = deadlines_.begin()->first - std::chrono::steady_clock::now();
        if (left <= std::chrono::nanoseconds(0) || stopping_) {
          expired = deadlines_.begin()->second->shared_from_this();  // it has not ended
          expired->entry_.reset();
          deadlines_.erase(deadlines_.begin());
        } else {
          work_.wait_for(mutex_, left);
        }
      }
      if (expired == nullptr) {
        task = first_;
        first_ = task->next;
        if (first_ == nullptr) last_ = nullptr;
      }
    }
    if (expired != nullptr) {
      expired->expire();
      continue;
    }
    const std::shared_ptr<Call> call = std::move(task->call);
    call->run(*task);
  }
}

void HttpCalls::start(const SharedExchange& exchange, const std::string& method,
                      RequestMessage request, Handlers handlers, Timeout timeout,
                      HttpHeaders headers) {
  RequestMemory::Charge charge;
  if (request.object() != nullptr) {
    charge = request.object()->memory().beside();
  } else if (!handlers.is_charged) {
    charge = charge_of(*exchange);
  }
  if (const RequestRefusal refusal = charge.add(request.size())) {
    const RpcMethod& refused = *methods_.at(method);
    const auto response =
        refused.type == RpcMethod::Type::kUnary ? refused.new_response() : nullptr;
    handlers.end(request_memory_refusal(refusal, caller_of(*exchange), "body"), response.get());
    return;
  }
  const auto call =
      std::make_shared<Call>(*this, exchange, *methods_.at(method), std::move(request),
                             std::move(charge), std::move(handlers), timeout, std::move(headers));
  call->start(timeout);
}

std::string HttpCalls::caller_of(const HttpExchange& exchange) const {
  const HttpRequest& request = exchange.request();
  if (request.caller) return request.caller->name;
  return names_by_certificate_ && !request.certificate.empty() ? "x509:" + request.certificate : "";
}

RequestMemory::Charge HttpCalls::charge_of(const HttpExchange& exchange) const {
  return {memory_, caller_of(exchange)};
}

HttpCalls::Handlers HttpCalls::unary_handlers(UnaryDone done) {
  return {.begin = nullptr,
          .message = nullptr,
          .end = [done = std::move(done)](const grpc::Status& status,
                                          const google::protobuf::Message* response) {
            done(status, *response);
            return NextPiece();
          }};
}

void HttpCalls::unary(const SharedExchange& exchange, const std::string& method,
                      RequestMessage request, UnaryDone done, Timeout timeout) {
  start(exchange, method, std::move(request), unary_handlers(std::move(done)), timeout, {});
}

void HttpCalls::unary_here(const SharedExchange& exchange, const std::string& method,
                           RequestMessage request, UnaryDone done) {
  const auto call = std::make_shared<Call>(
      *this, exchange, *methods_.at(method), std::move(request), RequestMemory::Charge(),
      unary_handlers(std::move(done)), Timeout(), HttpHeaders());
  call->run_here();
}

void HttpCalls::stream(const SharedExchange& exchange, const std::string& method,
                       RequestMessage request, std::unique_ptr<StreamAnswer> answer,
                       Timeout timeout, HttpHeaders headers, bool is_charged) {
  struct State {
    std::unique_ptr<StreamAnswer> answer;
    bool has_begun = false;
  };
  const auto state = std::make_shared<State>(State{std::move(answer)});
  const auto begin = [exchange, state] {
    if (!std::exchange(state->has_begun, true)) exchange->begin(state->answer->head());
  };
  start(
      exchange, method, std::move(request),
      {.begin = begin,
       .message =
           [state, begin](const google::protobuf::Message& message, std::string& piece) {
             grpc::Status status = state->answer->piece(message, piece);
             if (status.ok()) begin();
             return status;
           },
       .end =
           [exchange, state, begin](const grpc::Status& status, const google::protobuf::Message*) {
             if (!state->has_begun && !status.ok()) {
               exchange->answer(state->answer->refusal(status));
               return NextPiece();
             }
             begin();
             std::optional<std::string> tail = state->answer->tail(status);
             tail ? exchange->end(std::move(*tail)) : exchange->abort();
             return NextPiece();
           },
       .is_charged = is_charged},
      timeout, std::move(headers));
}

void HttpCalls::gather(const SharedExchange& exchange, const std::string& method,
                       RequestMessage request, EachMessage each, GatherDone done,
                       std::shared_ptr<KeptAnswer> kept, Timeout timeout, bool is_charged) {
  start(exchange, method, std::move(request),
        {.begin = nullptr,
         .message = [each = std::move(each)](const google::protobuf::Message& message,
                                             std::string&) { return each(message); },
         .end = [done = std::move(done)](const grpc::Status& status,
                                         const google::protobuf::Message*) { return done(status); },
         .kept = std::move(kept),
         .is_charged = is_charged},
        timeout, {});
}

void HttpCalls::enter() noexcept {
  const MutexLock lock(mutex_);
  ++running_;
}

void HttpCalls::leave(Call& call) noexcept {
  const MutexLock lock(mutex_);
  if (call.entry_) deadlines_.erase(*call.entry_);
  call.entry_.reset();
  if (--running_ == 0) none_.notify_all();
}

bool HttpCalls::wait_until_none(std::chrono::nanoseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  const MutexLock lock(mutex_);
  while (running_ > 0) {
    const auto left = until - std::chrono::steady_clock::now();
    if (left <= std::chrono::nanoseconds(0)) return false;
    none_.wait_for(mutex_, left);
  }
  return true;
}

RequestMessage message_of_bytes(std::string_view serialized) {
  const grpc::Slice slice(serialized.data(), serialized.size());
  return RequestMessage(grpc::ByteBuffer(&slice, 1));
}

}  // namespace lintel
