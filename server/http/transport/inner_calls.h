// InnerCalls: runs HTTP requests as gRPC calls within this process.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "server/core/mutex.h"
#include "server/http/transport/http_message.h"

namespace lintel {

// How the messages of a call become an answer in pieces. Used by one thread at a time.
class StreamAnswer {
 public:
  virtual ~StreamAnswer() = default;
  // Status and headers; asked for once, before the first piece.
  virtual HttpAnswer head() = 0;
  // What a message becomes; may be empty. A status that is not OK ends the call, and tail() gets
  // it.
  virtual grpc::Status piece(grpc::ByteBuffer& message, std::string& out) = 0;
  // The last piece, of a call that ended with this status after its head was sent. Nothing: the
  // connection is cut, so that the client sees that the answer is not whole.
  virtual std::optional<std::string> tail(const grpc::Status& status,
                                          const grpc::ClientContext& call) = 0;
  // The answer of a call that failed before its first message.
  virtual HttpAnswer refusal(const grpc::Status& status, const grpc::ClientContext& call) = 0;
};

// The services see such a call as any other: token, request id and trace come from the request's
// headers, address and certificate from its connection (server/security/inner_call.h). An exchange
// whose client goes cancels its call; a stream's next message is asked for once the client has
// taken what came before.
//
// Thread-safe. A call refers to the object: it outlives its calls, see stop().
class InnerCalls {
 public:
  // `key`: CallPolicy::inner_key.
  InnerCalls(std::shared_ptr<grpc::Channel> channel, std::string key);
  ~InnerCalls();
  InnerCalls(const InnerCalls&) = delete;
  InnerCalls& operator=(const InnerCalls&) = delete;

  // As long as the call may take; nothing: as long as it takes.
  using Timeout = std::optional<std::chrono::milliseconds>;
  // `method`: "/lintel.v1.ModelService/List". Functions are called by the object's threads, those
  // of one call one at a time; they must not block.

  // `done` answers the exchange; the response is empty where the status is not OK.
  using UnaryDone = std::function<void(const grpc::Status&, grpc::ByteBuffer& response,
                                       const grpc::ClientContext&)>;
  void unary(const SharedExchange& exchange, const std::string& method, grpc::ByteBuffer request,
             UnaryDone done, Timeout timeout = {});

  // A server stream, answered in pieces. `metadata`: of the call.
  using Metadata = std::vector<std::pair<std::string, std::string>>;
  void stream(const SharedExchange& exchange, const std::string& method, grpc::ByteBuffer request,
              std::unique_ptr<StreamAnswer> answer, Timeout timeout = {},
              const Metadata& metadata = {});

  // A server stream, answered whole: `each` gets its messages, and a status of it that is not OK
  // ends the call; `done` answers the exchange.
  using EachMessage = std::function<grpc::Status(grpc::ByteBuffer& message)>;
  using GatherDone = std::function<void(const grpc::Status&, const grpc::ClientContext&)>;
  void gather(const SharedExchange& exchange, const std::string& method, grpc::ByteBuffer request,
              EachMessage each, GatherDone done, Timeout timeout = {});

  // Whether all calls have ended within `timeout`. If so, nothing of them runs any more, and what
  // their exchanges need may go. By one thread, once there are no new calls.
  bool stop(std::chrono::nanoseconds timeout) EXCLUDES(mutex_);

 private:
  class Operation;
  template <typename Call>
  class Step;
  class Unary;
  class Stream;
  static constexpr int kThreads = 2;

  void run();
  bool wait_until_none(std::chrono::nanoseconds timeout) EXCLUDES(mutex_);
  void join();
  std::unique_ptr<grpc::ClientContext> context_for(const HttpRequest& request,
                                                   const Timeout& timeout) const;
  void enter() EXCLUDES(mutex_);
  void leave() EXCLUDES(mutex_);

  const std::shared_ptr<grpc::Channel> channel_;
  const std::string key_;
  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
  std::vector<std::thread> threads_;
  Mutex mutex_;
  CondVar none_;
  int running_ GUARDED_BY(mutex_) = 0;
};

// A message as its bytes, and back. Parsing: false where they are no such message.
grpc::ByteBuffer bytes_of(const google::protobuf::Message& message);
grpc::ByteBuffer bytes_of(std::string_view serialized);
void append_to(std::string& text, const grpc::ByteBuffer& bytes);
bool parse_from(const grpc::ByteBuffer& bytes, google::protobuf::Message& message);

}  // namespace lintel
