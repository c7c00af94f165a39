// SPDX-License-Identifier: Apache-2.0
#include "server/api/handlers.h"

#include <atomic>
#include <chrono>
#include <optional>
#include <utility>

#include "server/api/refusals.h"
#include "server/core/threads.h"

namespace lintel {
namespace {

// One call that waits for a model. Held by the manager until the model is loaded, and by the call's
// reactor until the call is cancelled.
class ModelWait {
 public:
  // The model, which is in use, or why there is none.
  using Done = std::function<void(grpc::Status status, const SharedModel& model)>;

  // `done` is called once. The call may be over by then, but the reactor is there until it returns.
  ModelWait(RpcReactor& reactor, Done done,
            std::optional<std::chrono::system_clock::time_point> deadline)
      : reactor_(reactor), done_(std::move(done)), deadline_(deadline) {}

  void loaded(const std::optional<LoadRefusal>& refusal, const SharedModel& model) noexcept {
    if (is_over_.exchange(true)) return;
    reactor_.when_cancelled(nullptr);  // the call has not finished: the reactor is there
    end(refusal ? catch_exceptions([&] { return load_status(refusal); }) : grpc::Status::OK, model);
  }
  void cancelled() noexcept {
    if (is_over_.exchange(true)) return;
    const bool is_late = deadline_ && *deadline_ <= std::chrono::system_clock::now();
    end(catch_exceptions([&] { return is_late ? deadline_exceeded() : lintel::cancelled(); }),
        nullptr);
  }
  bool is_over() const { return is_over_.load(); }

 private:
  // Frees what the function holds before the load has ended.
  void end(grpc::Status status, const SharedModel& model) noexcept {
    std::exchange(done_, nullptr)(std::move(status), model);
  }

  RpcReactor& reactor_;
  Done done_;
  const std::optional<std::chrono::system_clock::time_point> deadline_;
  std::atomic<bool> is_over_{false};  // who sets it calls the function
};

// A call that is cancelled or past its deadline waits no longer. The reactor is the call's, which
// has not finished and waits for nothing else.
void wait_for_model(const Call& call, const AbsentModel& absent, ModelWait::Done done) {
  const auto wait = std::make_shared<ModelWait>(call.reactor, std::move(done), call.rpc.deadline());
  const std::string name = absent.name;
  const std::optional<std::int64_t> version = absent.version;
  ModelManager& manager = call.context.manager;
  std::function<void()> cancel = [wait, name, version, &manager] {
    manager.stop_waiting(name, version, wait.get());
    wait->cancelled();
  };
  // The call may be over at any time from here on.
  call.reactor.when_cancelled(std::move(cancel));
  catch_exceptions(
      [&] {
        manager.wait_for(name, version, wait.get(),
                         [wait](const std::optional<LoadRefusal>& refusal,
                                const SharedModel& model) { wait->loaded(refusal, model); });
      },
      [&] { wait->loaded(LoadRefusal{.kind = LoadRefusal::Kind::kOutOfMemory}, nullptr); });
  // A call that was cancelled before it waited leaves at once.
  if (wait->is_over()) manager.stop_waiting(name, version, wait.get());
}

}  // namespace

grpc::Status run_by_store(const ServiceContext& context, const LogFields& log_fields,
                          std::function<void()> work) {
  return run_by_store(context, [log_fields, work = std::move(work)] {
    // The work is done even without memory for its log fields: its call waits for it.
    std::optional<LogScope> log;
    catch_exceptions([&] { log.emplace(log_fields); }, [] {});
    work();
  });
}

grpc::Status run_by_store(const ServiceContext& context, std::function<void()> work) {
  if (context.persistent_sessions->run(std::move(work))) return grpc::Status::OK;
  return resource_exhausted("too many calls wait for the session store",
                            std::chrono::milliseconds(200));
}

void Call::resume(TaskPromise& task, grpc::Status& status) noexcept {
  if (is_on_store) {
    grpc::Status taken =
        catch_exceptions([&] { return run_by_store(context, [&task] { task.resume(); }); });
    if (taken.ok()) return;  // the call may be over
    status = std::move(taken);
  }
  task.resume();
}

grpc::Status start_task(Task<grpc::Status> task, const CallScope& scope,
                        RequestMemory::Charge memory, std::shared_ptr<const TaskScope> runs,
                        Task<grpc::Status>::OnEnd on_end) {
  grpc::Status charged =
      request_memory_refusal(memory.add(task.frame_bytes()), scope.caller().name, "message");
  if (!charged.ok()) return charged;
  std::move(task).start({.scope = std::move(runs),
                         .of_exception = status_of_exception,
                         .memory = std::move(memory),
                         .on_end = std::move(on_end)});
  return charged;
}

bool ModelLoad::await_ready() {
  if (!absent_) return true;
  if (absent_.loads < kMostLoads) return false;
  status_ = model_unloaded(absent_.name);
  return true;
}

void ModelLoad::await_suspend(Task<grpc::Status>::Handle handle) noexcept {
  TaskPromise& task = handle.promise();
  has_waited_ = true;
  status_ = grpc::Status::OK;
  const auto done = [this, &task](grpc::Status status, const SharedModel& model) {
    status_ = std::move(status);
    if (!status_.ok()) return task.resume();
    absent_.name.clear();
    absent_.in_use = model;
    ++absent_.loads;
    call_.resume(task, status_);
  };
  catch_exceptions([&] { wait_for_model(call_, absent_, done); },
                   [&] { done(status_of_exception(), nullptr); });
}

void ModelUse::find() {
  model_ = use_model(name_, call_.context, absent_, &status_, field_, version_, need_);
}

SharedModel ModelUse::await_resume() {
  if (load_.await_resume()) {
    find();
    if (absent_) status_ = model_unloaded(absent_.name);
  }
  if (model_ != nullptr) call_.scope.set_model(model_->name);
  return std::move(model_);
}

grpc::Status keep_session(const ServiceContext& context, const Owner& owner, SessionInfo& info) {
  if (context.persistent_sessions == nullptr || info.durability == Durability::kNone)
    return grpc::Status::OK;
  if (const SessionRefusal refusal = context.persistent_sessions->persist(info.id, owner)) {
    context.sessions.remove(info.id, owner);
    return store_refusal(refusal, context.sessions.options(), /*session_id=*/"", owner);
  }
  // The store adds its own details.
  if (auto kept = context.persistent_sessions->find(info.id, owner)) info = *std::move(kept);
  return grpc::Status::OK;
}

}  // namespace lintel
