// SPDX-License-Identifier: Apache-2.0
// HttpCalls: runs HTTP requests as calls of the server's services.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/status.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "server/core/mutex.h"
#include "server/core/request_memory.h"
#include "server/http/transport/http_message.h"
#include "server/rpc/rpc.h"

namespace lintel {

class BodyWork;

// Turns the messages of a call into an answer in pieces. Used by one thread at a time.
class StreamAnswer {
 public:
  virtual ~StreamAnswer() = default;
  // Status and headers; asked for once, as the call is admitted or with the first piece.
  virtual HttpAnswer head() = 0;
  // Turns a message into a piece; may be empty. A status that is not OK ends the call, and tail()
  // gets it.
  virtual grpc::Status piece(const google::protobuf::Message& message, std::string& out) = 0;
  // The last piece, of a call that ended with this status after its head was sent. Nothing: the
  // connection is cut, so that the client sees that the answer is not whole.
  virtual std::optional<std::string> tail(const grpc::Status& status) = 0;
  // The answer of a call that failed before its first message.
  virtual HttpAnswer refusal(const grpc::Status& status) = 0;
};

// A call has the token, request id and trace of the request's headers, and the address and
// certificate of its connection. An exchange whose client goes cancels its call; a stream's next
// message is written once the client has taken what came before.
//
// Threads: calls run on the object's threads, which translate their messages, too. A call with a
// long request begins on a thread of BodyWork, where the request is parsed, rendered and tokenized.
// Thread-safe. A call refers to the object: it outlives its calls, see stop().
class HttpCalls {
 public:
  // The services outlive the object, and so does `bodies`, which is not used by the constructor and
  // stops before stop(). Null: long requests begin on the object's threads, too. memory: the
  // account of what requests hold, which outlives the object; null: there is none. callers without
  // a token have the names of their certificates if names_by_certificate.
  explicit HttpCalls(std::span<const RpcService* const> services, BodyWork* bodies = nullptr,
                     RequestMemory* memory = nullptr, bool names_by_certificate = false);
  ~HttpCalls();
  HttpCalls(const HttpCalls&) = delete;
  HttpCalls& operator=(const HttpCalls&) = delete;

  // The time that the call may take; nothing: no limit.
  using Timeout = std::optional<std::chrono::milliseconds>;
  // `method`: "lintel.v1.ModelService/List", one of the services'. Functions are called by the
  // object's threads, those of one call one at a time; they must not block.

  // `done` answers the exchange; the response is empty where the status is not OK.
  using UnaryDone =
      std::function<void(const grpc::Status&, const google::protobuf::Message& response)>;
  void unary(const SharedExchange& exchange, const std::string& method, RequestMessage request,
             UnaryDone done, Timeout timeout = {});

  // The same on the calling thread, before it returns: of a method that neither waits nor works for
  // long, such as health's, which answers while all other threads are busy.
  void unary_here(const SharedExchange& exchange, const std::string& method, RequestMessage request,
                  UnaryDone done);

  // A server stream, answered in pieces; of a unary method, of one message; of one that streams
  // both ways, with one request. `headers`: the call has these, too. is_charged: as RpcCall's.
  void stream(const SharedExchange& exchange, const std::string& method, RequestMessage request,
              std::unique_ptr<StreamAnswer> answer, Timeout timeout = {}, HttpHeaders headers = {},
              bool is_charged = false);

  // A server stream, answered whole: `each` gets its messages, and a status of it that is not OK
  // ends the call. A unary method has one message, its response. done: answers and returns null, or
  // begins the answer and returns the function that makes its pieces, which are asked for as the
  // client takes them. The call ends with the last one; until then its last message stays, so that
  // pieces may be made of it. kept: an empty KeptAnswer, which the service charges for the largest
  // answer; null: none.
  using EachMessage = std::function<grpc::Status(const google::protobuf::Message& message)>;
  using NextPiece = std::function<std::string()>;  // empty: it was the last
  using GatherDone = std::function<NextPiece(const grpc::Status&)>;
  void gather(const SharedExchange& exchange, const std::string& method, RequestMessage request,
              EachMessage each, GatherDone done, std::shared_ptr<KeptAnswer> kept,
              Timeout timeout = {}, bool is_charged = false);

  // The name of the exchange's caller, as its call will have it; empty: it has none.
  std::string caller_of(const HttpExchange& exchange) const;
  // An empty charge of that caller.
  RequestMemory::Charge charge_of(const HttpExchange& exchange) const;

  // Returns whether all calls have ended within `timeout`: then nothing of them runs any more, and
  // objects that their exchanges need may go. Called by one thread, once there are no new calls.
  bool stop(std::chrono::nanoseconds timeout) EXCLUDES(mutex_);

  // Timeouts of calls that have not ended; for tests.
  std::size_t num_deadlines() EXCLUDES(mutex_);

 private:
  class Call;
  struct Handlers;
  // The next work of a thread. Belongs to its call; waits in one list at a time.
  struct Task {
    std::shared_ptr<Call> call;  // while it waits or runs
    void (Call::*run)() = nullptr;
    Task* next = nullptr;
  };
  using SteadyTime = std::chrono::steady_clock::time_point;
  using Deadlines = std::multimap<SteadyTime, Call*>;
  static constexpr int kThreads = 2;

  static Handlers unary_handlers(UnaryDone done);
  // Charges the request, which waits for its thread, or answers that there is no memory for it.
  void start(const SharedExchange& exchange, const std::string& method, RequestMessage request,
             Handlers handlers, Timeout timeout, HttpHeaders headers);
  void post(Task& task, std::shared_ptr<Call> call) noexcept EXCLUDES(mutex_);
  // Cancels the call at that time, unless it has ended.
  void add_deadline(SteadyTime time, Call& call) EXCLUDES(mutex_);
  void enter() noexcept EXCLUDES(mutex_);
  // The call has ended; the caller still holds it.
  void leave(Call& call) noexcept EXCLUDES(mutex_);
  void run() EXCLUDES(mutex_);
  bool wait_until_none(std::chrono::nanoseconds timeout) EXCLUDES(mutex_);
  void join();

  BodyWork* const bodies_;  // null: none
  RequestMemory* const memory_;
  const bool names_by_certificate_;
  std::map<std::string, const RpcMethod*, std::less<>> methods_;
  std::vector<std::thread> threads_;
  Mutex mutex_;
  CondVar work_, none_;
  Task* first_ GUARDED_BY(mutex_) = nullptr;
  Task* last_ GUARDED_BY(mutex_) = nullptr;
  Deadlines deadlines_ GUARDED_BY(mutex_);  // of calls that have not ended
  int running_ GUARDED_BY(mutex_) = 0;
  bool stopping_ GUARDED_BY(mutex_) = false;
};

// A message as it came over the wire.
RequestMessage message_of_bytes(std::string_view serialized);

}  // namespace lintel
