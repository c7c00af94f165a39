#include "server/web/inner_calls.h"

#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "server/auth/inner_call.h"
#include "server/call/status.h"

namespace lintel {
namespace {

// What gRPC takes as the value of metadata; it ends the process over others.
bool is_metadata(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace

// Lives until gRPC says that it is over.
class InnerCalls::Unary {
 public:
  static void start(InnerCalls& calls, const SharedExchange& exchange, const std::string& method,
                    grpc::ByteBuffer request, UnaryDone done, const Timeout& timeout) {
    auto call = std::make_shared<Unary>();
    call->context = calls.context_for(exchange->request(), timeout);
    call->request = std::move(request);
    call->done = std::move(done);
    // A weak one: the exchange must not keep the call that keeps the exchange.
    exchange->when_gone([weak = std::weak_ptr<Unary>(call)] {
      if (const auto running = weak.lock()) running->context->TryCancel();
    });
    calls.enter();
    calls.stub_.UnaryCall(call->context.get(), method, {}, &call->request, &call->response,
                          [call, &calls](grpc::Status status) {
                            call->done(status, call->response, *call->context);
                            call->done = nullptr;
                            calls.leave();
                          });
  }

  std::unique_ptr<grpc::ClientContext> context;
  grpc::ByteBuffer request, response;
  UnaryDone done;
};

// A call of one request and many messages. Held by itself until gRPC says that it is over; a hold
// of gRPC's keeps it open while the client, and not gRPC, decides when the next message is read.
class InnerCalls::Stream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                                 public std::enable_shared_from_this<Stream> {
 public:
  // Returns false where the next read is asked for by `next`, later.
  using OnMessage = std::function<bool(grpc::ByteBuffer& message, Stream& stream)>;
  using OnEnd = std::function<void(const grpc::Status&, const grpc::ClientContext&)>;

  static void start(InnerCalls& calls, const SharedExchange& exchange, const std::string& method,
                    grpc::ByteBuffer request, OnMessage on_message, OnEnd on_end,
                    const Timeout& timeout) {
    const auto stream = std::make_shared<Stream>();
    stream->calls_ = &calls;
    stream->context_ = calls.context_for(exchange->request(), timeout);
    stream->request_ = std::move(request);
    stream->on_message_ = std::move(on_message);
    stream->on_end_ = std::move(on_end);
    stream->self_ = stream;
    exchange->when_gone([weak = std::weak_ptr<Stream>(stream)] {
      if (const auto running = weak.lock()) running->context_->TryCancel();
    });
    calls.enter();
    calls.stub_.PrepareBidiStreamingCall(stream->context_.get(), method, {}, stream.get());
    stream->AddHold();
    stream->StartWriteLast(&stream->request_, {});
    stream->StartRead(&stream->message_);
    stream->StartCall();
  }

  // Reads the next message. REQUIRES: on_message returned false, and this was not called since.
  void next() { StartRead(&message_); }
  // Ends the call with a status of ours.
  void fail(grpc::Status status) {
    failed_ = std::move(status);
    context_->TryCancel();
    StartRead(&message_);  // to its end, which comes now
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      RemoveHold();
      return;
    }
    if (!failed_.ok()) {  // what came before the cancellation did
      StartRead(&message_);
      return;
    }
    if (on_message_(message_, *this)) StartRead(&message_);
  }

  void OnDone(const grpc::Status& status) override {
    on_end_(failed_.ok() ? status : failed_, *context_);
    on_message_ = nullptr;
    on_end_ = nullptr;
    InnerCalls* const calls = calls_;
    const std::shared_ptr<Stream> last = std::move(self_);
    calls->leave();
  }

 private:
  InnerCalls* calls_ = nullptr;
  std::unique_ptr<grpc::ClientContext> context_;
  grpc::ByteBuffer request_, message_;
  OnMessage on_message_;
  OnEnd on_end_;
  grpc::Status failed_;
  std::shared_ptr<Stream> self_;
};

InnerCalls::InnerCalls(std::shared_ptr<grpc::Channel> channel, std::string key)
    : channel_(std::move(channel)), key_(std::move(key)), stub_(channel_) {}

InnerCalls::~InnerCalls() = default;

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
  Unary::start(*this, exchange, method, std::move(request), std::move(done), timeout);
}

void InnerCalls::stream(const SharedExchange& exchange, const std::string& method,
                        grpc::ByteBuffer request, std::unique_ptr<StreamAnswer> answer,
                        Timeout timeout) {
  struct State {
    std::unique_ptr<StreamAnswer> answer;
    bool begun = false;
  };
  const auto state = std::make_shared<State>(State{std::move(answer)});
  Stream::start(
      *this, exchange, method, std::move(request),
      [exchange, state](grpc::ByteBuffer& message, Stream& stream) {
        std::string piece;
        grpc::Status status = state->answer->piece(message, piece);
        if (!status.ok()) {
          stream.fail(std::move(status));
          return false;
        }
        if (!std::exchange(state->begun, true)) exchange->begin(state->answer->head());
        if (piece.empty()) return true;
        exchange->write(std::move(piece), [running = stream.shared_from_this()](bool) {
          running->next();  // of a client that is gone, too: the call was cancelled, and ends
        });
        return false;
      },
      [exchange, state](const grpc::Status& status, const grpc::ClientContext& call) {
        if (!state->begun && !status.ok()) {
          exchange->answer(state->answer->refusal(status, call));
          return;
        }
        if (!state->begun) exchange->begin(state->answer->head());
        std::optional<std::string> tail = state->answer->tail(status, call);
        tail ? exchange->end(std::move(*tail)) : exchange->abort();
      },
      timeout);
}

void InnerCalls::gather(const SharedExchange& exchange, const std::string& method,
                        grpc::ByteBuffer request, EachMessage each, GatherDone done,
                        Timeout timeout) {
  Stream::start(
      *this, exchange, method, std::move(request),
      [exchange, each = std::move(each)](grpc::ByteBuffer& message, Stream& stream) {
        grpc::Status status = each(message);
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

std::string string_of(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  std::string text;
  if (!bytes.Dump(&slices).ok()) return text;
  text.reserve(bytes.Length());
  for (const grpc::Slice& slice : slices) {
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return text;
}

bool parse_from(const grpc::ByteBuffer& bytes, google::protobuf::Message& message) {
  const std::string text = string_of(bytes);
  return message.ParseFromString(text);
}

}  // namespace lintel
