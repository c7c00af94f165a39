#include "server/http/transport/inner_calls.h"

#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "server/grpc/transport/unary_call.h"
#include "server/security/identity.h"

namespace lintel {
namespace {

// What gRPC takes as the value of metadata; it ends the process over others.
bool is_metadata(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace

// Runs what ends an exchange. Where there is no memory for that, its connection is cut.
template <typename Function>
void end_or_abort(const SharedExchange& exchange, Function function) noexcept {
  const grpc::Status ended = catch_exceptions([&] {
    function();
    return grpc::Status::OK;
  });
  if (!ended.ok()) exchange->abort();
}

// An operation of gRPC's, which runs this when it is over. A part of its call, which it keeps alive
// until then.
class InnerCalls::Operation {
 public:
  virtual ~Operation() = default;
  virtual void run(bool ok) = 0;

 protected:
  Operation() = default;
};

template <typename Call>
class InnerCalls::Step final : public Operation {
 public:
  explicit Step(void (Call::*done)(bool ok)) : done_(done) {}

  // What gRPC is given with the operation. REQUIRES: none is under way.
  void* begin(std::shared_ptr<Call> call) {
    call_ = std::move(call);
    return static_cast<Operation*>(this);
  }
  void run(bool ok) override {
    const std::shared_ptr<Call> call = std::move(call_);
    (call.get()->*done_)(ok);
  }

 private:
  void (Call::*const done_)(bool);
  std::shared_ptr<Call> call_;  // while the operation is under way
};

// Lives until its operation is over.
class InnerCalls::Unary final : public std::enable_shared_from_this<Unary> {
 public:
  void start(InnerCalls& calls, const SharedExchange& exchange, const std::string& method,
             const grpc::ByteBuffer& request, UnaryDone done, const Timeout& timeout) {
    calls_ = &calls;
    context_ = calls.context_for(exchange->request(), timeout);
    done_ = std::move(done);
    exchange_ = exchange;
    // A weak one: the exchange must not keep the call that keeps the exchange.
    exchange->when_gone([weak = weak_from_this()] {
      if (const auto running = weak.lock()) running->context_->TryCancel();
    });
    reader_ = calls.stub_.PrepareUnaryCall(context_.get(), method, request, &calls.queue_);
    calls.enter();
    reader_->StartCall();
    reader_->Finish(&response_, &status_, finish_.begin(shared_from_this()));
  }

 private:
  void on_finish(bool) {
    end_or_abort(exchange_, [this] { done_(status_, response_, *context_); });
    done_ = nullptr;
    calls_->leave();
  }

  InnerCalls* calls_ = nullptr;
  SharedExchange exchange_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader_;
  grpc::ByteBuffer response_;
  grpc::Status status_;
  UnaryDone done_;
  Step<Unary> finish_{&Unary::on_finish};
};

// A call of one request and many messages. Its status is asked for when there are no more messages,
// and not before: once the status is asked for, gRPC's transport within a process drops messages
// that are not read yet (src/core/ext/transport/inproc/inproc_transport.cc, 1.51). Lives until its
// last operation is over.
class InnerCalls::Stream final : public std::enable_shared_from_this<Stream> {
 public:
  // Returns false where the next message is asked for by `next`, later.
  using OnMessage = std::function<bool(grpc::ByteBuffer& message, Stream& stream)>;
  using OnEnd = std::function<void(const grpc::Status&, const grpc::ClientContext&)>;

  void start(InnerCalls& calls, const SharedExchange& exchange, const std::string& method,
             grpc::ByteBuffer request, OnMessage on_message, OnEnd on_end, const Timeout& timeout,
             const Metadata& metadata = {}) {
    calls_ = &calls;
    context_ = calls.context_for(exchange->request(), timeout);
    for (const auto& [name, value] : metadata) context_->AddMetadata(name, value);
    request_ = std::move(request);
    on_message_ = std::move(on_message);
    on_end_ = std::move(on_end);
    exchange_ = exchange;
    exchange->when_gone([weak = weak_from_this()] {
      if (const auto running = weak.lock()) running->context_->TryCancel();
    });
    call_ = calls.stub_.PrepareCall(context_.get(), method, &calls.queue_);
    calls.enter();
    // The call's headers go with its request, and the first message is asked for at once.
    context_->set_initial_metadata_corked(true);
    call_->StartCall(nullptr);
    call_->WriteLast(request_, {}, write_.begin(shared_from_this()));
    next();
  }

  // Reads the next message. REQUIRES: on_message returned false, and this was not called since.
  void next() { call_->Read(&message_, read_.begin(shared_from_this())); }

  // Ends the call with a status of the server.
  void fail(grpc::Status status) {
    failed_ = std::move(status);
    context_->TryCancel();
    next();  // to its end, which comes now
  }

 private:
  void on_write(bool) { request_.Clear(); }

  void on_read(bool ok) {
    if (!ok) {
      call_->Finish(&status_, finish_.begin(shared_from_this()));
    } else if (!failed_.ok() || took_message()) {
      next();  // what came before the cancellation did is passed over
    }
  }

  // As on_message_. Where there is no memory for it the call ends, and the client's connection.
  bool took_message() noexcept {
    bool is_over = false;
    const grpc::Status status = catch_exceptions([&] {
      is_over = on_message_(message_, *this);
      return grpc::Status::OK;
    });
    if (status.ok()) return is_over;
    exchange_->abort();
    failed_ = grpc::Status(status.error_code(), "");
    context_->TryCancel();
    return true;
  }

  void on_finish(bool) {
    end_or_abort(exchange_, [this] { on_end_(failed_.ok() ? status_ : failed_, *context_); });
    on_message_ = nullptr;
    on_end_ = nullptr;
    exchange_ = nullptr;
    calls_->leave();
  }

  InnerCalls* calls_ = nullptr;
  SharedExchange exchange_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  grpc::ByteBuffer request_, message_;
  OnMessage on_message_;
  OnEnd on_end_;
  grpc::Status failed_, status_;
  Step<Stream> write_{&Stream::on_write}, read_{&Stream::on_read}, finish_{&Stream::on_finish};
};

InnerCalls::InnerCalls(std::shared_ptr<grpc::Channel> channel, std::string key)
    : channel_(std::move(channel)), key_(std::move(key)), stub_(channel_) {
  for (int i = 0; i < kThreads; ++i) {
    threads_.emplace_back([this] { run(); });
  }
}

InnerCalls::~InnerCalls() { join(); }

bool InnerCalls::stop(std::chrono::nanoseconds timeout) {
  if (!wait_until_none(timeout)) return false;
  join();
  return true;
}

void InnerCalls::join() {
  if (threads_.empty()) return;
  queue_.Shutdown();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void InnerCalls::run() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
    static_cast<Operation*>(tag)->run(ok);
  }
}

std::unique_ptr<grpc::ClientContext> InnerCalls::context_for(const HttpRequest& request,
                                                             const Timeout& timeout) const {
  auto context = std::make_unique<grpc::ClientContext>();
  context->AddMetadata(kInnerKey, key_);
  context->AddMetadata(kInnerPeer, request.peer);
  if (!request.certificate.empty()) context->AddMetadata(kInnerCertificate, request.certificate);
  context->AddMetadata("x-request-id", request.request_id);
  for (const char* const name : {"authorization", "traceparent"}) {
    const std::string_view value = request.header(name);
    if (is_metadata(value)) context->AddMetadata(name, std::string(value));
  }
  if (timeout) context->set_deadline(std::chrono::system_clock::now() + *timeout);
  return context;
}

void InnerCalls::unary(const SharedExchange& exchange, const std::string& method,
                       grpc::ByteBuffer request, UnaryDone done, Timeout timeout) {
  std::make_shared<Unary>()->start(*this, exchange, method, request, std::move(done), timeout);
}

void InnerCalls::stream(const SharedExchange& exchange, const std::string& method,
                        grpc::ByteBuffer request, std::unique_ptr<StreamAnswer> answer,
                        Timeout timeout, const Metadata& metadata) {
  struct State {
    std::unique_ptr<StreamAnswer> answer;
    bool has_begun = false;
  };
  const auto state = std::make_shared<State>(State{std::move(answer)});
  std::make_shared<Stream>()->start(
      *this, exchange, method, std::move(request),
      [exchange, state](grpc::ByteBuffer& message, Stream& stream) {
        std::string piece;
        grpc::Status status =
            catch_exceptions([&] { return state->answer->piece(message, piece); });
        if (!status.ok()) {
          stream.fail(std::move(status));
          return false;
        }
        if (!std::exchange(state->has_begun, true)) exchange->begin(state->answer->head());
        if (piece.empty()) return true;
        exchange->write(std::move(piece), [running = stream.shared_from_this()](bool) {
          running->next();  // of a client that is gone, too: the call was cancelled, and ends
        });
        return false;
      },
      [exchange, state](const grpc::Status& status, const grpc::ClientContext& call) {
        if (!state->has_begun && !status.ok()) {
          exchange->answer(state->answer->refusal(status, call));
          return;
        }
        if (!state->has_begun) exchange->begin(state->answer->head());
        std::optional<std::string> tail = state->answer->tail(status, call);
        tail ? exchange->end(std::move(*tail)) : exchange->abort();
      },
      timeout, metadata);
}

void InnerCalls::gather(const SharedExchange& exchange, const std::string& method,
                        grpc::ByteBuffer request, EachMessage each, GatherDone done,
                        Timeout timeout) {
  std::make_shared<Stream>()->start(
      *this, exchange, method, std::move(request),
      [exchange, each = std::move(each)](grpc::ByteBuffer& message, Stream& stream) {
        grpc::Status status = catch_exceptions([&] { return each(message); });
        if (status.ok()) return true;
        stream.fail(std::move(status));
        return false;
      },
      std::move(done), timeout);
}

void InnerCalls::enter() {
  const MutexLock lock(mutex_);
  ++running_;
}

void InnerCalls::leave() {
  const MutexLock lock(mutex_);
  if (--running_ == 0) none_.notify_all();
}

bool InnerCalls::wait_until_none(std::chrono::nanoseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(mutex_);
  while (running_ > 0) {
    const auto left = until - std::chrono::steady_clock::now();
    if (left <= std::chrono::nanoseconds(0)) return false;
    none_.wait_for(mutex_, left);
  }
  return true;
}

grpc::ByteBuffer bytes_of(const google::protobuf::Message& message) {
  return bytes_of(message.SerializeAsString());
}

grpc::ByteBuffer bytes_of(std::string_view serialized) {
  const grpc::Slice slice(serialized.data(), serialized.size());
  return {&slice, 1};
}

void append_to(std::string& text, const grpc::ByteBuffer& bytes) {
  grpc::Slice whole;
  if (bytes.TrySingleSlice(&whole).ok()) {
    text.append(reinterpret_cast<const char*>(whole.begin()), whole.size());
    return;
  }
  std::vector<grpc::Slice> slices;
  if (!bytes.Dump(&slices).ok()) return;
  for (const grpc::Slice& slice : slices) {
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
}

bool parse_from(const grpc::ByteBuffer& bytes, google::protobuf::Message& message) {
  if (!bytes.Valid()) return false;
  grpc::ByteBuffer same = bytes;  // the reader takes none that is const
  grpc::ProtoBufferReader reader(&same);
  return message.ParseFromZeroCopyStream(&reader);
}

}  // namespace lintel
