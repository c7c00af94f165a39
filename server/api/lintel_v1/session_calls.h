// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lintel/v1/generation.pb.h"
#include "server/api/model_wait.h"
#include "server/api/refusals.h"
#include "server/api/response_stream.h"
#include "server/api/service_context.h"
#include "server/core/request_memory.h"
#include "server/rpc/answer.h"
#include "server/sessions/session_history.h"

namespace lintel {

// Semaphore: limits the concurrent calls of a kind.

// Thread-safe; outlives what it gives.
class Semaphore {
 public:
  explicit Semaphore(int most) : free_(most) {}

  // Held until the pointer and its copies are gone; null where none is free.
  std::shared_ptr<void> take() {
    if (free_.fetch_sub(1) > 0) {
      return {&free_, [](std::atomic<int>* free) { free->fetch_add(1); }};
    }
    free_.fetch_add(1);
    return nullptr;
  }

 private:
  std::atomic<int> free_;
};

// PieceStream: an answer that is there and goes out in pieces, as fast as its reader takes them.

// One message is made at a time, when the one before it is out. What the pieces are made of goes
// when the reader does. Threads: gRPC's.
template <typename Message>
class PieceStream final : public ResponseStream<Message> {
 public:
  enum class Piece { kMore, kLast, kNone };  // kNone: the message is not to be sent, nor another
  using Fill = std::function<Piece(Message&)>;

  explicit PieceStream(Fill fill) : fill_(std::move(fill)) {}

  // REQUIRES: a reactor runs the stream.
  void begin() { this->pump(); }

 private:
  using Next = typename ResponseStream<Message>::Next;

  Next next(Message& message, grpc::Status& status) override REQUIRES(this->mutex_) {
    if (failure_) {
      status = std::move(*failure_);
      return Next::kFinish;
    }
    switch (fill_(message)) {
      case Piece::kMore:
        return Next::kWrite;
      case Piece::kLast:
        fill_ = nullptr;  // what it holds is free before the reader can know the end
        return Next::kWriteAndFinish;
      case Piece::kNone:
        fill_ = nullptr;
        break;
    }
    return Next::kFinish;
  }
  void on_gone() override { fail(cancelled()); }
  void on_lost() override {
    fail(out_of_memory());
    this->pump();
  }
  TokenUse tokens_used() const override REQUIRES(this->mutex_) { return {}; }

  void fail(grpc::Status status) EXCLUDES(this->mutex_) {
    Fill gone;  // what it holds is released without the mutex
    MutexLock lock(this->mutex_);
    if (!failure_) failure_ = std::move(status);
    gone.swap(fill_);
  }

  Fill fill_ GUARDED_BY(this->mutex_);
  std::optional<grpc::Status> failure_ GUARDED_BY(this->mutex_);
};

// What methods that may wait do around their translation.

// answer(), but `body(scope, wire)` may run after the method has returned, so that it holds what it
// needs: on a thread of the session store, or once a model that it lacked is loaded.
template <typename Request, typename Body>
RpcReactor* answer_waiting(const ServiceContext& context, RpcCall& call, Method method,
                           CallThread thread, const LazyMessage<Request>& request, Body body) {
  struct Waiting {
    Waiting(const ServiceContext& context, RpcCall& call, Method method)
        : held(context.calls), scope(context.gate, call, method) {}
    // First, so that the server does not go before the others.
    struct Held {
      explicit Held(ActiveCalls& active) : calls(active) { calls.hold(); }
      ~Held() { calls.release(); }
      Held(const Held&) = delete;
      Held& operator=(const Held&) = delete;
      ActiveCalls& calls;
    } held;
    CallScope scope;
    RequestMemory::Charge memory;
    Request wire;
  };
  const auto waiting = std::make_shared<Waiting>(context, call, method);
  RpcReactor* const reactor = call.default_reactor();
  const auto end = [waiting, reactor](const grpc::Status& status) {
    waiting->scope.end(status);
    reactor->Finish(status);
  };
  grpc::Status status = waiting->scope.admitted();
  if (status.ok()) {
    const LogFields log_fields = waiting->scope.log_fields();
    const LogScope log(log_fields);
    status = catch_exceptions([&] {
      grpc::Status read = request.read(bounds_of(context.gate, method), waiting->wire);
      const std::string& identity = waiting->scope.caller().name;
      waiting->memory = waiting->scope.charge();
      if (read.ok()) read = charge_message(waiting->wire, identity, waiting->memory);
      if (!read.ok()) return read;
      const auto begin = [&context, &call, reactor, log_fields, thread, waiting, end, body] {
        run_with_models(
            context, call, *reactor, log_fields, thread,
            [waiting, end, body] {
              grpc::Status ended = body(waiting->scope, waiting->wire);
              if (ended.ok()) end(ended);
              return ended;
            },
            end);
      };
      if (thread == CallThread::kOfStore) return run_by_store(context, log_fields, begin);
      begin();
      return read;
    });
  }
  if (!status.ok()) end(status);
  return reactor;
}

// Of a method that names sessions: where there is a store, on one of its threads.
template <typename Request, typename Body>
RpcReactor* answer_by_store(const ServiceContext& context, RpcCall& call, Method method,
                            const LazyMessage<Request>& request, Body body) {
  const bool has_store = context.persistent_sessions != nullptr;
  return answer_waiting(context, call, method, has_store ? CallThread::kOfStore : CallThread::kAny,
                        request, std::move(body));
}

// Of a method that names a model alone.
template <typename Request, typename Body>
RpcReactor* answer_with_model(const ServiceContext& context, RpcCall& call, Method method,
                              const LazyMessage<Request>& request, Body body) {
  return answer_waiting(context, call, method, CallThread::kAny, request, std::move(body));
}

// Common parts of methods that answer with a stream.

// The call's reactor is made and enters, `read(reactor, asked)` fills an Asked in, and
// `begin(reactor, asked)` has the reactor run, or says why the call is refused. `asked` is gone
// when the stream runs. `begin` may run after the method has returned, so that it holds what it
// needs: where there is a session store and `waits(asked)`, by a thread of that, or once a model
// that it lacked is loaded; then it may run again.
template <typename Reactor, typename Asked, typename Read, typename Begin, typename Waits>
Reactor* open_stream_as(const ServiceContext& context, RpcCall& rpc, Method method, Read read,
                        Begin begin, Waits waits) {
  auto reactor = std::make_unique<Reactor>(context.gate, context.calls, rpc, method);
  const LogFields log_fields = reactor->call().scope.log_fields();  // as the call began
  const LogScope log(log_fields);
  grpc::Status status = catch_exceptions([&] {
    grpc::Status entered = reactor->enter();
    if (!entered.ok()) return entered;
    const auto asked = std::make_shared<Asked>();
    grpc::Status is_read = read(*reactor, *asked);
    if (!is_read.ok()) return is_read;
    const bool by_store = context.persistent_sessions != nullptr && waits(*asked);
    const CallThread thread = by_store ? CallThread::kOfStore : CallThread::kAny;
    // gRPC runs nothing of the reactor before it has it from the method, its end neither.
    const auto run = [&context, &rpc, &reactor = *reactor, log_fields, thread, begin, asked] {
      run_with_models(
          context, rpc, reactor, log_fields, thread,
          [&reactor, begin, asked] { return begin(reactor, *asked); },
          [&reactor](grpc::Status refused) { reactor.refuse(std::move(refused)); });
    };
    if (by_store) return run_by_store(context, log_fields, run);
    run();
    return is_read;
  });
  if (!status.ok()) reactor->refuse(std::move(status));
  return reactor.release();  // deletes itself
}

// The same of what `translate` makes of the message.
template <typename Reactor, typename Request, typename Translate, typename Begin, typename Waits>
Reactor* open_stream(const ServiceContext& context, RpcCall& rpc, Method method,
                     const LazyMessage<Request>& request, Translate translate, Begin begin,
                     Waits waits) {
  struct Held {
    RequestMemory::Charge memory;
    decltype(translate(std::declval<Request>())) asked;
  };
  return open_stream_as<Reactor, Held>(
      context, rpc, method,
      [&](Reactor& reactor, Held& held) {
        CallScope& scope = reactor.call().scope;
        Request wire;
        held.memory = scope.charge();
        grpc::Status read = request.read(bounds_of(context.gate, method), wire);
        if (read.ok()) read = charge_message(wire, scope.caller().name, held.memory);
        if (read.ok()) held.asked = translate(std::move(wire));
        return read;
      },
      [begin](Reactor& reactor, const Held& held) { return begin(reactor, held.asked); },
      [&waits](const Held& held) { return waits(held.asked); });
}

// The same of the message itself.
template <typename Reactor, typename Request, typename Begin, typename Waits>
Reactor* open_stream(const ServiceContext& context, RpcCall& rpc, Method method,
                     const LazyMessage<Request>& request, Begin begin, Waits waits) {
  return open_stream<Reactor>(
      context, rpc, method, request, [](Request&& wire) { return std::move(wire); },
      std::move(begin), std::move(waits));
}

// The same of what never waits for the store.
template <typename Reactor, typename Request, typename Begin>
Reactor* open_stream(const ServiceContext& context, RpcCall& rpc, Method method,
                     const LazyMessage<Request>& request, Begin begin) {
  return open_stream<Reactor>(context, rpc, method, request, std::move(begin),
                              [](const Request&) { return false; });
}

// Where a token came from, as the wire has it.

inline v1::ValueSource wire_source(TokenSource source) {
  switch (source) {
    case TokenSource::kSampled:
      return v1::VALUE_SOURCE_SAMPLED;
    case TokenSource::kGiven:
      return v1::VALUE_SOURCE_GIVEN;
    case TokenSource::kPrompt:
      return v1::VALUE_SOURCE_PROMPT;
  }
  return v1::VALUE_SOURCE_UNSPECIFIED;
}

}  // namespace lintel
