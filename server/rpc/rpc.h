// SPDX-License-Identifier: Apache-2.0
// A call as services see it, brought by gRPC (grpc_calls.h) or HTTP
// (server/http/transport/http_calls.h).
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <cassert>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "server/core/mutex.h"
#include "server/core/request_memory.h"
#include "server/core/threads.h"
#include "server/rpc/status.h"
#include "server/security/identity.h"

namespace lintel {

// catch_exceptions(): turns an exception into a status, so that it ends its call only.

// Runs `method` and makes a status of what it throws. No exception passes it, std::bad_alloc
// included: the end of a call waits for the code after it.
template <typename Method>
grpc::Status catch_exceptions(Method&& method) noexcept {
  return catch_exceptions([&]() -> grpc::Status { return method(); }, status_of_exception);
}

// A request as its protocol has read it. The protocol charges memory() with what the object holds
// before it makes it.
class RequestObject {
 public:
  RequestObject() = default;
  RequestObject(const RequestObject&) = delete;
  RequestObject& operator=(const RequestObject&) = delete;
  virtual ~RequestObject() = default;

  // Bytes of the text that it was read from, from which the time to begin its call is estimated.
  virtual std::size_t text_bytes() const = 0;
  virtual const RequestMemory::Charge& memory() const = 0;
};

// MessageBounds: bounds of a request's memory, checked before it is parsed or taken over.

struct MessageBounds {
  std::size_t max_bytes = 0;  // on the wire
  // The bound in memory. Two bytes on the wire can become a message of two hundred; an honest
  // request stays below this: an id takes a byte or more on the wire, and four in memory.
  std::size_t max_parsed_bytes() const { return 4 * max_bytes; }
};

// The largest message that the server sends over gRPC.
inline constexpr std::size_t kMaxMessageBytes = std::size_t{64} << 20;

// The bounds of a request that needs no token: it is a name or empty.
inline constexpr MessageBounds kOpenMessage{4096};

// Parses `bytes` into `message`, which is empty. Fields that the type does not know are left out.
// INVALID_ARGUMENT: they are too many, would take too much memory, or are no such message; then the
// parser has not seen them.
grpc::Status parse_bounded(grpc::ByteBuffer& bytes, const MessageBounds& bounds,
                           google::protobuf::Message& message);

// Moves `from` into `message`, which is empty and of its type. INVALID_ARGUMENT: it is beyond the
// bounds.
grpc::Status take_bounded(google::protobuf::Message& from, const MessageBounds& bounds,
                          google::protobuf::Message& message);

// A request without memory: RESOURCE_EXHAUSTED with the time to retry; INVALID_ARGUMENT about
// `field`, with limit and flag, where it can never fit. OK: there is memory.
grpc::Status request_memory_refusal(const RequestRefusal& refusal, const std::string& identity,
                                    const char* field);

// Charges a request that was parsed. Not OK: as request_memory_refusal().
grpc::Status charge_message(const google::protobuf::Message& message, const std::string& identity,
                            RequestMemory::Charge& memory);

// A request that its service has not read: as its bytes, as a message of this process, or as an
// object. gRPC would parse the bytes before the server's code sees them, and keep the message until
// its call is over: for as long as a stream lasts. These are parsed when the caller is known and
// may ask for it, within bounds, and are gone with that.
//
// Used by one thread at a time.
class RequestMessage {
 public:
  RequestMessage() = default;
  explicit RequestMessage(grpc::ByteBuffer bytes) { swap(bytes); }
  explicit RequestMessage(std::unique_ptr<google::protobuf::Message> message)
      : message_(std::move(message)) {}
  explicit RequestMessage(std::unique_ptr<RequestObject> object) : object_(std::move(object)) {}
  // Nothing is left in `other`: of gRPC's buffers a move would be one more reference.
  RequestMessage(RequestMessage&& other) noexcept { *this = std::move(other); }
  RequestMessage& operator=(RequestMessage&& other) noexcept {
    bytes_.Clear();
    swap(other.bytes_);
    message_ = std::move(other.message_);
    object_ = std::move(other.object_);
    return *this;
  }
  // Takes `message`.
  template <typename Message>
  static RequestMessage of(Message&& message) {
    static_assert(!std::is_reference_v<Message>);
    return RequestMessage(std::make_unique<Message>(std::move(message)));
  }

  // Fills `message`, which is empty, and drops what was held. To be called once, though transports
  // hand the object over as const. REQUIRES: it is no object.
  grpc::Status read(const MessageBounds& bounds, google::protobuf::Message& message) const {
    assert(object_ == nullptr);
    const grpc::Status status = message_ == nullptr ? parse_bounded(bytes_, bounds, message)
                                                    : take_bounded(*message_, bounds, message);
    bytes_.Clear();
    message_.reset();
    return status;
  }
  // The object; null: the request is none. REQUIRES: it is of this type, which its method takes.
  template <typename Object>
  std::unique_ptr<Object> take_object() const {
    assert(object_ == nullptr || dynamic_cast<Object*>(object_.get()) != nullptr);
    return std::unique_ptr<Object>(static_cast<Object*>(object_.release()));
  }
  void swap(grpc::ByteBuffer& bytes) { bytes_.Swap(&bytes); }
  const RequestObject* object() const { return object_.get(); }
  // Bytes held and not charged.
  std::size_t size() const {
    if (object_ != nullptr) return 0;
    return message_ == nullptr ? bytes_.Length() : message_->SpaceUsedLong();
  }

 private:
  mutable grpc::ByteBuffer bytes_;                              // used without message and object
  mutable std::unique_ptr<google::protobuf::Message> message_;  // of the type that read() takes
  mutable std::unique_ptr<RequestObject> object_;
};

// RequestMessage of a message of this type, as a method gets it. Not valid after the method has
// returned.
template <typename Message>
class LazyMessage {
 public:
  explicit LazyMessage(const RequestMessage& request) : request_(request) {}
  grpc::Status read(const MessageBounds& bounds, Message& message) const {
    return request_.read(bounds, message);
  }
  template <typename Object>
  std::unique_ptr<Object> take_object() const {
    return request_.take_object<Object>();
  }

 private:
  const RequestMessage& request_;
};

// The operations of a transport for a reactor. Each is over when the reactor's callback of the same
// name has been called; the messages outlive it. At most one read and one write are under way.
class RpcTransport {
 public:
  virtual void read(RequestMessage& request) = 0;
  // Sends the headers of the answer to a stream ahead of its first message; over as a write is.
  virtual void begin() = 0;
  virtual void write(const google::protobuf::Message& message) = 0;
  // `last`: null if the call has no further message. The response of a unary call is sent with it
  // if the status is OK.
  virtual void finish(const google::protobuf::Message* last, grpc::Status status) = 0;

 protected:
  ~RpcTransport() = default;
};

// The server's side of one call. A method returns it; the transport then runs its operations, those
// started before as well, and calls it back: on any thread, reads, writes and cancellation also at
// the same time, OnDone last.
class RpcReactor {
 public:
  RpcReactor() = default;
  RpcReactor(const RpcReactor&) = delete;
  RpcReactor& operator=(const RpcReactor&) = delete;
  virtual ~RpcReactor() = default;

  virtual void OnReadDone(bool /*ok*/) {}
  virtual void OnWriteDone(bool /*ok*/) {}
  // The client is gone, or has cancelled the call. At most once.
  virtual void OnCancel() {}
  // Nothing of the call runs any more; the transport does not touch the reactor afterwards.
  virtual void OnDone() = 0;

  void StartRead(RequestMessage* request) EXCLUDES(mutex_);
  // Answers with the headers now; OnWriteDone comes as of a message. Once, before StartWrite.
  void StartSendInitialMetadata() EXCLUDES(mutex_);
  void StartWrite(const google::protobuf::Message* message) EXCLUDES(mutex_);
  // Once, the last operation. The reactor may be gone when these return.
  void StartWriteAndFinish(const google::protobuf::Message* last, grpc::Status status)
      EXCLUDES(mutex_);
  void Finish(grpc::Status status) EXCLUDES(mutex_);

  // Sets a hook while the call waits for something other than its client: it is called when the
  // call is cancelled, at once if it was already. Null: the call waits no more.
  void when_cancelled(std::function<void()> hook) EXCLUDES(mutex_);
  // Calls the hook, then OnCancel. The transport calls it, at most once.
  void cancel() EXCLUDES(mutex_);

  // Runs the operations started so far, and each later one as it starts. The transport calls it,
  // once, and outlives the reactor. The reactor may be gone when this returns.
  void bind(RpcTransport& transport) EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  RpcTransport* transport_ GUARDED_BY(mutex_) = nullptr;  // null: operations wait for bind()
  RequestMessage* read_ GUARDED_BY(mutex_) = nullptr;
  bool begins_ GUARDED_BY(mutex_) = false;
  const google::protobuf::Message* write_ GUARDED_BY(mutex_) = nullptr;
  std::optional<grpc::Status> finish_ GUARDED_BY(mutex_);
  std::function<void()> when_cancelled_ GUARDED_BY(mutex_);
  bool is_cancelled_ GUARDED_BY(mutex_) = false;
};

// An answer that its transport keeps until the call has ended, and writes then: one document.
struct KeptAnswer {
  // Made by the service before it accepts the request, for the largest possible answer.
  RequestMemory::Charge memory;
  int answers = 1;                // of the same size, which are kept together
  std::size_t prompt_tokens = 0;  // upper bound, of the longest of their prompts
};

// A transport's knowledge of one call. Lives until its reactor's OnDone. Thread-safe once the
// method has returned; before, only the method uses it.
class RpcCall {
 public:
  RpcCall() = default;
  RpcCall(const RpcCall&) = delete;
  RpcCall& operator=(const RpcCall&) = delete;
  virtual ~RpcCall() = default;

  // The value of a header that was sent once; empty when it was not, or when several make it
  // ambiguous. `name`: lower case.
  virtual std::string_view header(const char* name) const = 0;
  virtual std::string peer() const = 0;         // the client's address: "ipv4:127.0.0.1:40000"
  virtual std::string certificate() const = 0;  // the client's name in mutual TLS; else empty
  // The deadline; none: the call may take any time.
  virtual std::optional<std::chrono::system_clock::time_point> deadline() const = 0;
  // The client is gone, or the server has ended the call: its answer has no reader. Within the
  // method, too. Thread-safe.
  virtual bool is_cancelled() const = 0;
  // The caller, where the transport has identified it by its token; else null.
  virtual const Identity* caller() const { return nullptr; }
  // The protocol, for the log, where it is not gRPC.
  virtual const char* via() const { return nullptr; }
  // Null: messages are sent as they are written. Called until the request is accepted.
  virtual KeptAnswer* kept_answer() { return nullptr; }
  // True if the caller has charged the account with what the call may hold, so that the call is not
  // refused for memory.
  virtual bool is_charged() const { return false; }
  // The charge of the request that the transport holds, or has held; null: there is none. Other
  // charges of the call are made beside it.
  virtual const RequestMemory::Charge* memory() const { return nullptr; }
  // Holds the charge of a unary call's answer until it is sent. Once, before the reactor finishes.
  void keep(RequestMemory::Charge memory) { answer_memory_ = std::move(memory); }
  // Answers with a header. Before the first message is written.
  virtual void add_header(const std::string& name, const std::string& value) = 0;

  // A reactor for a unary call that only has to be finished.
  RpcReactor* default_reactor() { return &default_reactor_; }

 private:
  class DefaultReactor final : public RpcReactor {
   public:
    void OnDone() override {}
  };
  DefaultReactor default_reactor_;
  RequestMemory::Charge answer_memory_;
};

// One method of a service.
struct RpcMethod {
  enum class Type { kUnary, kServerStream, kClientStream, kBidiStream };
  std::string name;  // service and method, as on the wire: "lintel.v1.ModelService/List"
  Type type;
  std::function<std::unique_ptr<google::protobuf::Message>()> new_response;
  // kUnary, kServerStream: request is the message. kUnary, kClientStream: response is what goes out
  // when the reactor finishes. It outlives the reactor; the request does not outlive run().
  std::function<RpcReactor*(RpcCall& call, const RequestMessage& request,
                            google::protobuf::Message* response)>
      run;
};

// Base of the server's services: a table of methods, which transports run.
class RpcService {
 public:
  const std::deque<RpcMethod>& methods() const { return methods_; }

 protected:
  RpcService() = default;
  RpcService(const RpcService&) = delete;
  RpcService& operator=(const RpcService&) = delete;
  ~RpcService() = default;

  // `name`: service and method, as on the wire; `run(call, request, response)`: makes the reactor.
  template <typename Request, typename Response, typename Run>
  void serve_unary(const char* name, Run run) {
    add<Response>(name, RpcMethod::Type::kUnary,
                  [run = std::move(run)](RpcCall& call, const RequestMessage& request,
                                         google::protobuf::Message* response) {
                    return run(call, LazyMessage<Request>(request),
                               static_cast<Response&>(*response));
                  });
  }
  // The same by a method of `self`, the derived object.
  template <typename Self, typename Request, typename Response>
  void serve(const char* name, Self* self,
             RpcReactor* (Self::*method)(RpcCall*, const LazyMessage<Request>*, Response*)) {
    serve_unary<Request, Response>(
        name,
        [self, method](RpcCall& call, const LazyMessage<Request>& request, Response& response) {
          return (self->*method)(&call, &request, &response);
        });
  }
  // A stream of Response, which does not show in the method's type.
  template <typename Response, typename Self, typename Request>
  void serve_stream(const char* name, Self* self,
                    RpcReactor* (Self::*method)(RpcCall*, const LazyMessage<Request>*)) {
    add<Response>(
        name, RpcMethod::Type::kServerStream,
        [self, method](RpcCall& call, const RequestMessage& request, google::protobuf::Message*) {
          const LazyMessage<Request> message(request);
          return (self->*method)(&call, &message);
        });
  }
  // The same by `run(call, request)`.
  template <typename Request, typename Response, typename Run>
  void serve_stream_of(const char* name, Run run) {
    add<Response>(name, RpcMethod::Type::kServerStream,
                  [run = std::move(run)](RpcCall& call, const RequestMessage& request,
                                         google::protobuf::Message*) {
                    return run(call, LazyMessage<Request>(request));
                  });
  }
  template <typename Self, typename Response>
  void serve_client_stream(const char* name, Self* self,
                           RpcReactor* (Self::*method)(RpcCall*, Response*)) {
    add<Response>(
        name, RpcMethod::Type::kClientStream,
        [self, method](RpcCall& call, const RequestMessage&, google::protobuf::Message* response) {
          return (self->*method)(&call, static_cast<Response*>(response));
        });
  }
  template <typename Response, typename Self>
  void serve_bidi_stream(const char* name, Self* self, RpcReactor* (Self::*method)(RpcCall*)) {
    add<Response>(name, RpcMethod::Type::kBidiStream,
                  [self, method](RpcCall& call, const RequestMessage&, google::protobuf::Message*) {
                    return (self->*method)(&call);
                  });
  }

 private:
  template <typename Response, typename Run>
  void add(const char* name, RpcMethod::Type type, Run run) {
    methods_.push_back({.name = name,
                        .type = type,
                        .new_response = [] { return std::make_unique<Response>(); },
                        .run = std::move(run)});
  }

  std::deque<RpcMethod> methods_;  // stay where they are
};

}  // namespace lintel
