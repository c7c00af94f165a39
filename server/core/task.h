// SPDX-License-Identifier: Apache-2.0
// Task: a coroutine that answers a call and waits without a thread.
#pragma once

#include <coroutine>
#include <cstddef>
#include <functional>
#include <memory>
#include <new>
#include <utility>

#include "server/core/request_memory.h"
#include "server/core/threads.h"

// GCC takes the frame of a coroutine for a type of a header where files are compiled together, and
// warns of each lambda in it.
#pragma GCC diagnostic ignored "-Wsubobject-linkage"

namespace lintel {

// Surrounds a task whenever a thread runs it: a thread's fields of the log, for example.
class TaskScope {
 public:
  virtual ~TaskScope() = default;
  virtual void run(std::coroutine_handle<> coroutine) const { coroutine.resume(); }
};

// The part of a task that awaitables know.
//
// A task is resumed by the thread that ended what it waited for, but never below its own run: where
// that thread is still inside the await, the task continues when the await has returned. (GCC makes
// symmetric transfer a tail call with optimised sibling calls only, so that a loop of awaits would
// fill the stack.)
class TaskPromise {
 public:
  TaskPromise(const TaskPromise&) = delete;
  TaskPromise& operator=(const TaskPromise&) = delete;

  // Continues the task, once for each time that it waits; it may be over, and gone, on return.
  void resume() noexcept;

 protected:
  TaskPromise() = default;
  ~TaskPromise() = default;

  void run() noexcept;
  // Called by the task's last await: the thread that runs the task ends it.
  void note_end() const noexcept;
  // Destroys the coroutine, and this with it.
  virtual void end() noexcept = 0;

  std::coroutine_handle<> coroutine_;
  std::shared_ptr<const TaskScope> scope_;
};

// Owns the coroutine until it starts; then it belongs to what it waits for. A coroutine takes its
// parameters by value or refers to what outlives it, and holds no lock over a co_await. GCC 12
// destroys some temporaries twice: no lambda with captures stands in an expression with co_await,
// and no co_await under ?: or in a structured binding.
template <typename Result>
class [[nodiscard]] Task {
 public:
  class promise_type;
  using Handle = std::coroutine_handle<promise_type>;

  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&&) = delete;
  ~Task() {
    if (handle_ != nullptr) handle_.destroy();
  }

  // Called once, by the thread that ran the task to its end, when its frame is gone. It does not
  // throw.
  using OnEnd = std::function<void(Result)>;
  struct Start {
    std::shared_ptr<const TaskScope> scope;
    // The result of the exception that is being handled.
    Result (*of_exception)() noexcept;
    RequestMemory::Charge memory = {};  // of the frame and the parameters; released with them
    OnEnd on_end;
  };
  // Runs the coroutine until it waits for the first time. Once.
  void start(Start start) && noexcept;
  std::size_t frame_bytes() const;

 private:
  explicit Task(Handle handle) : handle_(handle) {}

  Handle handle_;
};

template <typename Result>
class Task<Result>::promise_type final : public TaskPromise {
 public:
  struct FinalAwait {
    bool await_ready() const noexcept { return false; }
    void await_suspend(Handle handle) const noexcept { handle.promise().note_end(); }
    void await_resume() const noexcept {}
  };

  Task get_return_object() noexcept { return Task(Handle::from_promise(*this)); }
  std::suspend_always initial_suspend() const noexcept { return {}; }
  FinalAwait final_suspend() const noexcept { return {}; }
  void return_value(Result result) noexcept { result_ = std::move(result); }
  void unhandled_exception() noexcept { result_ = start_.of_exception(); }

  // The result of the exception that is being handled.
  Result result_of_exception() const noexcept { return start_.of_exception(); }

  // Frames know their sizes.
  static void* operator new(std::size_t bytes) {
    void* const memory = ::operator new(bytes + kHead);
    ::new (memory) std::size_t(bytes + kHead);
    return static_cast<std::byte*>(memory) + kHead;
  }
  static void operator delete(void* frame) noexcept { ::operator delete(head_of(frame)); }

 private:
  friend Task;
  static constexpr std::size_t kHead = __STDCPP_DEFAULT_NEW_ALIGNMENT__;
  static void* head_of(void* frame) { return static_cast<std::byte*>(frame) - kHead; }

  void begin(Start start) noexcept {
    start_ = std::move(start);
    scope_ = std::move(start_.scope);
    coroutine_ = Handle::from_promise(*this);
    run();
  }
  void end() noexcept override {
    Start start = std::move(start_);
    Result result = std::move(result_);
    Handle::from_promise(*this).destroy();
    start.memory = {};
    start.on_end(std::move(result));
  }

  Start start_{};
  Result result_{};
};

template <typename Result>
void Task<Result>::start(Start start) && noexcept {
  std::exchange(handle_, nullptr).promise().begin(std::move(start));
}

template <typename Result>
std::size_t Task<Result>::frame_bytes() const {
  return *static_cast<const std::size_t*>(promise_type::head_of(handle_.address()));
}

// Waits for a callback. `begin(done)` runs at once; `done(...)` is called once, by any thread, and
// the await returns what `take(...)` makes of its arguments there. Where one of them throws it is
// the result of that exception; `begin` that throws does not call `done`. `begin` is a named
// variable of the coroutine.
template <typename Result, typename Begin, typename Take>
class [[nodiscard]] CallbackAwait {
 public:
  CallbackAwait(const Begin& begin, Take take) : begin_(begin), take_(std::move(take)) {}
  CallbackAwait(const CallbackAwait&) = delete;
  CallbackAwait& operator=(const CallbackAwait&) = delete;

  bool await_ready() const noexcept { return false; }
  void await_suspend(typename Task<Result>::Handle handle) noexcept {
    promise_ = &handle.promise();
    const auto done = [this](const auto&... arguments) noexcept {
      end([&] { return take_(arguments...); });
    };
    // The task may be gone when it returns.
    catch_exceptions([&, &begin = begin_] { begin(done); },
                     [this] { end([this] { return promise_->result_of_exception(); }); });
  }
  Result await_resume() noexcept { return std::move(result_); }

 private:
  template <typename Make>
  void end(const Make& make) noexcept {
    result_ = catch_exceptions(make, [this] { return promise_->result_of_exception(); });
    promise_->resume();
  }

  const Begin& begin_;
  const Take take_;
  typename Task<Result>::promise_type* promise_ = nullptr;
  Result result_{};
};

}  // namespace lintel
