// SPDX-License-Identifier: Apache-2.0
// Handlers: a service's methods, each a function from its request to its status. One that waits is
// a coroutine.
#pragma once

#include <grpcpp/support/status.h>

#include <coroutine>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "server/api/lookup.h"
#include "server/api/refusals.h"
#include "server/api/service_context.h"
#include "server/core/request_memory.h"
#include "server/core/task.h"
#include "server/core/threads.h"
#include "server/models/model_manager.h"
#include "server/observability/logging.h"
#include "server/rpc/call_scope.h"
#include "server/rpc/rpc.h"
#include "server/rpc/status.h"

namespace lintel {

// Has a thread of the store run `work`, whose lines of the log are the call's. RESOURCE_EXHAUSTED:
// too much waits, and it is not run. REQUIRES: there is a store.
grpc::Status run_by_store(const ServiceContext& context, const LogFields& log_fields,
                          std::function<void()> work);
// The same, without fields of the log.
grpc::Status run_by_store(const ServiceContext& context, std::function<void()> work);

// Stores what of a session that was just made is to outlive the server. Not OK: the session is gone
// again. Waits where there is a store.
grpc::Status keep_session(const ServiceContext& context, const Owner& owner, SessionInfo& info);

// A handler's call, and what it waits for.
struct Call {
  // Continues the task on the call's threads: one of the store's, once the call has asked for it,
  // else the calling thread. `status`: of the await; not OK where too much waits for the store.
  void resume(TaskPromise& task, grpc::Status& status) noexcept;

  const ServiceContext& context;
  RpcCall& rpc;
  RpcReactor& reactor;
  CallScope& scope;
  bool is_on_store = false;
};

// co_await store_thread(call): a status. From here on the call runs on threads of the session
// store, which may wait, where there is a store. RESOURCE_EXHAUSTED: too much waits.
class [[nodiscard]] StoreThread {
 public:
  explicit StoreThread(Call& call) : call_(call) {}

  bool await_ready() const noexcept { return call_.context.persistent_sessions == nullptr; }
  void await_suspend(Task<grpc::Status>::Handle handle) noexcept {
    call_.is_on_store = true;
    call_.resume(handle.promise(), status_);
  }
  grpc::Status await_resume() noexcept { return std::move(status_); }

 private:
  Call& call_;
  grpc::Status status_;
};
inline StoreThread store_thread(Call& call) { return StoreThread(call); }

// co_await model_load(call, absent, status), after a lookup: whether to look again, since the model
// that it lacked is in memory, and stays for as long as `absent` does. A call that is cancelled or
// past its deadline waits no longer; where it is refused, `status` says why.
class [[nodiscard]] ModelLoad {
 public:
  ModelLoad(Call& call, AbsentModel& absent, grpc::Status& status)
      : call_(call), absent_(absent), status_(status) {}
  ModelLoad(const ModelLoad&) = delete;
  ModelLoad& operator=(const ModelLoad&) = delete;

  bool await_ready();
  void await_suspend(Task<grpc::Status>::Handle handle) noexcept;
  bool await_resume() const noexcept { return has_waited_ && status_.ok(); }

 private:
  static constexpr int kMostLoads = 2;  // of a call, whose models may be unloaded meanwhile

  Call& call_;
  AbsentModel& absent_;
  grpc::Status& status_;
  bool has_waited_ = false;
};
inline ModelLoad model_load(Call& call, AbsentModel& absent, grpc::Status& status) {
  return ModelLoad(call, absent, status);
}

// co_await model_use(call, name, status): the model, which is in memory and in use, and is the
// call's in log and metrics; null: there is none, and `status` says why. As use_model().
class [[nodiscard]] ModelUse {
 public:
  ModelUse(Call& call, const std::string& name, grpc::Status& status, const char* field,
           std::optional<std::int64_t> version, ModelNeed need)
      : call_(call),
        name_(name),
        status_(status),
        field_(field),
        version_(version),
        need_(need),
        load_(call, absent_, status) {}

  bool await_ready() {
    find();
    return load_.await_ready();
  }
  void await_suspend(Task<grpc::Status>::Handle handle) noexcept { load_.await_suspend(handle); }
  SharedModel await_resume();

 private:
  void find();

  Call& call_;
  const std::string& name_;
  grpc::Status& status_;
  const char* const field_;
  const std::optional<std::int64_t> version_;
  const ModelNeed need_;
  AbsentModel absent_;
  SharedModel model_;
  ModelLoad load_;
};
inline ModelUse model_use(Call& call, const std::string& name, grpc::Status& status,
                          const char* field = "model",
                          std::optional<std::int64_t> version = std::nullopt) {
  return ModelUse(call, name, status, field, version, ModelNeed::kAny);
}
// The same for a conversation.
inline ModelUse chat_model_use(Call& call, const std::string& name, grpc::Status& status) {
  return ModelUse(call, name, status, "model", std::nullopt, ModelNeed::kChats);
}

// co_await loaded(load, what), co_await unloaded(unload): the status of what `load(done)` begins
// with ModelManager, and what was loaded; else null.
template <typename What>
struct TakeLoaded {
  grpc::Status operator()(const std::optional<LoadRefusal>& refusal, const What& loaded) const {
    what = loaded;
    return load_status(refusal);
  }
  What& what;
};
template <typename Load, typename What>
CallbackAwait<grpc::Status, Load, TakeLoaded<What>> loaded(const Load& load, What& what) {
  return {load, {what}};
}
struct TakeUnloaded {
  grpc::Status operator()(const std::optional<LoadRefusal>& refusal) const {
    return load_status(refusal);
  }
};
template <typename Unload>
CallbackAwait<grpc::Status, Unload, TakeUnloaded> unloaded(const Unload& unload) {
  return {unload, {}};
}

// The fields of a call's lines of the log, as it began.
class LoggedRuns final : public TaskScope {
 public:
  explicit LoggedRuns(const CallScope& scope) : fields(scope.log_fields()) {}
  void run(std::coroutine_handle<> coroutine) const override {
    const LogScope log(fields);
    coroutine.resume();
  }
  const LogFields fields;
};

// Charges the call with its coroutine and starts it, so that the call may be over when this returns
// OK. Else it does not run.
grpc::Status start_task(Task<grpc::Status> task, const CallScope& scope,
                        RequestMemory::Charge memory, std::shared_ptr<const TaskScope> runs,
                        Task<grpc::Status>::OnEnd on_end);

// A unary call that waits. Deletes itself at its end. A drain does not wait for it, but the server
// does not go before it.
class WaitingCall {
 public:
  WaitingCall(const ServiceContext& context, RpcCall& rpc, Method method)
      : held_(context.calls), scope(context.gate, rpc, method), reactor(*rpc.default_reactor()) {}

  void end(const grpc::Status& status) noexcept {
    scope.end(status);
    reactor.Finish(status);
    delete this;
  }

 private:
  struct Held {
    explicit Held(ActiveCalls& active) : calls(active) { calls.hold(); }
    ~Held() { calls.release(); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    ActiveCalls& calls;
  };

  const Held held_;  // first, so that the server does not go before the others

 public:
  CallScope scope;
  RpcReactor& reactor;
};

// A request that its protocol has read as an Object, or a message. One of both.
template <typename Message, typename Object>
struct ObjectOr {
  std::unique_ptr<Object> object;  // null: there is a message
  Message message;
};

// The message that brings a request over the wire.
template <typename Request>
struct WireOf {
  using Type = Request;
};
template <typename Message, typename Object>
struct WireOf<ObjectOr<Message, Object>> {
  using Type = Message;
};

// Reads a request, which is empty, and charges a message; an object has charged itself.
template <typename Request>
grpc::Status read_charged(const LazyMessage<Request>& lazy, const MessageBounds& bounds,
                          const std::string& caller, RequestMemory::Charge& memory,
                          Request& request) {
  grpc::Status status = lazy.read(bounds, request);
  return status.ok() ? charge_message(request, caller, memory) : status;
}
template <typename Message, typename Object>
grpc::Status read_charged(const LazyMessage<Message>& lazy, const MessageBounds& bounds,
                          const std::string& caller, RequestMemory::Charge& memory,
                          ObjectOr<Message, Object>& request) {
  request.object = lazy.template take_object<Object>();
  if (request.object != nullptr) return grpc::Status::OK;
  return read_charged(lazy, bounds, caller, memory, request.message);
}

// Base of services whose methods are handlers: checks the caller, reads the request within bounds,
// charges it with its coroutine, and ends the call. A handler that throws ends with what the
// exception means.
class HandlerService : public RpcService {
 protected:
  // The objects that the context refers to outlive this one.
  explicit HandlerService(const ServiceContext& context) : context_(context) {}

  // A unary method that never waits.
  template <typename Self, typename Request, typename Response>
  void serve(Method method, grpc::Status (Self::*handler)(CallScope&, const Request&, Response&)) {
    serve_unary<Request, Response>(
        info_of(method).name,
        [this, method, handler](RpcCall& rpc, const LazyMessage<Request>& request,
                                Response& response) {
          CallScope scope(context_.gate, rpc, method);
          grpc::Status status = scope.admitted();
          if (status.ok()) {
            const LogScope log(scope.log_fields());
            status = catch_exceptions([&] {
              Request wire;
              grpc::Status read = request.read(bounds_of(context_.gate, method), wire);
              if (!read.ok()) return read;
              return (static_cast<Self*>(this)->*handler)(scope, wire, response);
            });
          }
          scope.end(status);
          RpcReactor* const reactor = rpc.default_reactor();
          reactor->Finish(status);
          return reactor;
        });
  }
  // A unary method that may wait.
  template <typename Self, typename Request, typename Response>
  void serve(Method method, Task<grpc::Status> (Self::*handler)(Call, Request, Response&)) {
    using Wire = typename WireOf<Request>::Type;
    serve_unary<Wire, Response>(
        info_of(method).name,
        [this, method, handler](RpcCall& rpc, const LazyMessage<Wire>& request,
                                Response& response) {
          RpcReactor* const reactor = rpc.default_reactor();
          auto* const call = new WaitingCall(context_, rpc, method);
          grpc::Status started = call->scope.admitted();
          if (started.ok()) {
            started = begin<Self, Request>(
                handler, method, {context_, rpc, *reactor, call->scope}, request, response,
                [call](const grpc::Status& status) { call->end(status); });
          }
          if (!started.ok()) call->end(started);
          return reactor;
        });
  }
  // A method that answers by a stream, which its handler begins: the call ends with that. Not OK:
  // no stream runs.
  template <typename Message, typename Self, typename Request, typename Reactor>
  void serve_stream(Method method, Task<grpc::Status> (Self::*handler)(Call, Request, Reactor&)) {
    using Wire = typename WireOf<Request>::Type;
    serve_stream_of<Wire, Message>(
        info_of(method).name,
        [this, method, handler](RpcCall& rpc, const LazyMessage<Wire>& request) {
          return run(handler, method, rpc, request,
                     new Reactor(context_.gate, context_.calls, rpc, method));
        });
  }
  // The same for one call, of a reactor that was made for it and deletes itself.
  template <typename Self, typename Request, typename Reactor>
  RpcReactor* run(Task<grpc::Status> (Self::*handler)(Call, Request, Reactor&), Method method,
                  RpcCall& rpc, const LazyMessage<typename WireOf<Request>::Type>& request,
                  Reactor* reactor) {
    grpc::Status started = catch_exceptions([&] { return reactor->enter(); });
    if (started.ok()) {
      started =
          begin<Self, Request>(handler, method, {context_, rpc, *reactor, reactor->call().scope},
                               request, *reactor, [reactor](grpc::Status status) {
                                 if (!status.ok()) reactor->refuse(std::move(status));
                               });
    }
    if (!started.ok()) reactor->refuse(std::move(started));
    return reactor;
  }

  const ServiceContext context_;

 private:
  template <typename Self, typename Request, typename Handler, typename Answer>
  grpc::Status begin(Handler handler, Method method, Call call,
                     const LazyMessage<typename WireOf<Request>::Type>& lazy, Answer& answer,
                     Task<grpc::Status>::OnEnd on_end) noexcept {
    return catch_exceptions([&] {
      const auto runs = std::make_shared<const LoggedRuns>(call.scope);
      const LogScope log(runs->fields);
      // An operator's requests are not charged: they are what makes room.
      RequestMemory::Charge memory =
          info_of(method).role == Role::kAdmin ? RequestMemory::Charge() : call.scope.charge();
      Request request;
      grpc::Status status = read_charged(lazy, bounds_of(context_.gate, method),
                                         call.scope.caller().name, memory, request);
      if (!status.ok()) return status;
      return start_task((static_cast<Self*>(this)->*handler)(call, std::move(request), answer),
                        call.scope, std::move(memory), runs, std::move(on_end));
    });
  }
};

}  // namespace lintel
