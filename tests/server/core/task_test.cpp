// SPDX-License-Identifier: Apache-2.0
#include "server/core/task.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

using Text = Task<std::string>;

std::string text_of_exception() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return "out of memory";
  } catch (const std::exception& error) {
    return error.what();
  }
}

// Counts its copies that are there.
struct Counted {
  explicit Counted(int& living) : count(&living) { ++*count; }
  Counted(const Counted& other) : count(other.count) { ++*count; }
  Counted(Counted&& other) noexcept : count(other.count) { ++*count; }
  Counted& operator=(const Counted&) = delete;
  ~Counted() { --*count; }
  int* count;
};

// A callback that comes when the test says so.
struct Callback {
  void operator()(std::function<void(int)> done) { waiting = std::move(done); }
  void come(int value) { std::exchange(waiting, nullptr)(value); }
  std::function<void(int)> waiting;
};

// The result of a task that was started.
struct Ending {
  void start(Text task, std::shared_ptr<const TaskScope> scope = std::make_shared<TaskScope>(),
             RequestMemory::Charge memory = {}) {
    std::move(task).start({.scope = std::move(scope),
                           .of_exception = text_of_exception,
                           .memory = std::move(memory),
                           .on_end = [this](std::string text) { result = std::move(text); }});
  }
  std::optional<std::string> result;
};

const auto kAsText = [](int value) { return std::to_string(value); };

template <typename Begin>
CallbackAwait<std::string, Begin, decltype(kAsText)> callback(const Begin& begin) {
  return {begin, kAsText};
}

Text two_callbacks(Callback& first, Callback& second, Counted counted, std::string text) {
  const auto begin_first = [&first](auto done) { first(done); };
  text += co_await callback(begin_first);
  const auto begin_second = [&second](auto done) { second(done); };
  const std::string more = co_await callback(begin_second);
  const Counted again = counted;
  co_return text + more;
}

TEST_CASE("a task runs from callback to callback and ends when its frame is gone") {
  Callback first, second;
  int living = 0;
  Ending ending;
  std::move(two_callbacks(first, second, Counted(living), "a long text that is no short string "))
      .start({.scope = std::make_shared<TaskScope>(),
              .of_exception = text_of_exception,
              .on_end = [&](std::string text) {
                CHECK(living == 0);
                ending.result = std::move(text);
              }});
  CHECK(living == 1);
  first.come(1);
  CHECK_FALSE(ending.result);
  CHECK(living == 1);
  second.come(23);
  CHECK(ending.result == "a long text that is no short string 123");
}

TEST_CASE("a task that was not started destroys its parameters once") {
  Callback first, second;
  int living = 0;
  {
    const Text task = two_callbacks(first, second, Counted(living), "");
    CHECK(living == 1);
    CHECK(task.frame_bytes() > sizeof(std::string));
  }
  CHECK(living == 0);
}

// Measures the distance of the frames of its calls on the stack.
class StackDepth {
 public:
  void note() {
    const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
    lowest_ = std::min(lowest_, here);
    highest_ = std::max(highest_, here);
  }
  std::uintptr_t bytes() const { return highest_ - lowest_; }

 private:
  std::uintptr_t lowest_ = UINTPTR_MAX, highest_ = 0;
};

Text many_ready_awaits(int count, StackDepth& depth) {
  int sum = 0;
  const auto begin = [&depth](auto done) {
    depth.note();
    done(1);
  };
  for (int i = 0; i < count; ++i) {
    const std::string one = co_await callback(begin);
    sum += one.front() - '0';
  }
  co_return std::to_string(sum);
}

TEST_CASE("a million awaits that are ready at once take no stack") {
  StackDepth depth;
  Ending ending;
  ending.start(many_ready_awaits(1'000'000, depth));
  CHECK(ending.result == "1000000");
  CHECK(depth.bytes() < 1024);
}

// Two tasks that resume each other.
Text relay(int count, Callback& mine, Callback& other, StackDepth& depth) {
  const auto begin = [&](auto done) {
    mine(done);
    depth.note();
    if (other.waiting) other.come(0);
  };
  for (int i = 0; i < count; ++i) co_await callback(begin);
  co_return "over";
}

TEST_CASE("tasks that resume each other take no stack") {
  StackDepth depth;
  Callback first, second;
  Ending one, other;
  one.start(relay(100'000, first, second, depth));
  other.start(relay(100'000, second, first, depth));
  while (first.waiting || second.waiting) (first.waiting ? first : second).come(0);
  CHECK(one.result == "over");
  CHECK(other.result == "over");
  CHECK(depth.bytes() < 4096);
}

Text throwing(Counted counted, Callback& at, bool before) {
  const Counted local = counted;
  if (before) throw std::runtime_error("at first");
  const auto begin = [&at](auto done) { at(done); };
  const std::string text = co_await callback(begin);
  throw std::runtime_error("after " + text);
}

TEST_CASE("an exception in a task is its result, and its variables are destroyed once") {
  const bool before = GENERATE(true, false);
  Callback at;
  int living = 0;
  Ending ending;
  ending.start(throwing(Counted(living), at, before));
  if (!before) at.come(7);
  CHECK(ending.result == (before ? "at first" : "after 7"));
  CHECK(living == 0);
}

enum class Fails { kBegin, kTake };

Text failing_await(Fails fails) {
  const auto begin = [fails](auto done) {
    if (fails == Fails::kBegin) throw std::bad_alloc();
    done();
  };
  const auto take = []() -> std::string { throw std::runtime_error("not taken"); };
  const std::string text =
      co_await CallbackAwait<std::string, decltype(begin), decltype(take)>(begin, take);
  co_return "awaited: " + text;
}

TEST_CASE("an await returns the exception of the callback that it waits for, or of its beginning") {
  Ending ending;
  ending.start(failing_await(Fails::kBegin));
  CHECK(ending.result == "awaited: out of memory");
  ending.start(failing_await(Fails::kTake));
  CHECK(ending.result == "awaited: not taken");
}

// Runs what it is handed, one after the other.
class OtherThread {
 public:
  ~OtherThread() {
    run(nullptr);
    thread_.join();
  }
  void run(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    changed_.notify_all();
  }
  std::thread::id id() const { return thread_.get_id(); }

 private:
  void loop() {
    while (true) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !work_.empty(); });
        work = std::move(work_.front());
        work_.erase(work_.begin());
      }
      if (work == nullptr) return;
      work();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::function<void()>> work_;
  std::thread thread_{[this] { loop(); }};
};

Text hops(int count, OtherThread& first, OtherThread& second, Counted counted) {
  const Counted local = counted;
  int wrong = 0;
  for (int i = 0; i < count; ++i) {
    OtherThread& next = i % 2 == 0 ? first : second;
    const auto begin = [&next](auto done) { next.run([done] { done(0); }); };
    co_await callback(begin);
    if (std::this_thread::get_id() != next.id()) ++wrong;
  }
  co_return std::to_string(wrong) + " on a wrong thread";
}

TEST_CASE("a task continues on the thread that ends its await, and none of its runs overlap") {
  constexpr int kTasks = 8;
  int living[kTasks] = {};
  std::vector<std::string> results(kTasks);
  {
    OtherThread first, second;
    std::mutex mutex;
    std::condition_variable changed;
    int left = kTasks;
    for (int i = 0; i < kTasks; ++i) {
      hops(2'000, first, second, Counted(living[i]))
          .start({.scope = std::make_shared<TaskScope>(),
                  .of_exception = text_of_exception,
                  .on_end = [&, i](std::string text) {
                    const std::lock_guard lock(mutex);
                    results[static_cast<std::size_t>(i)] = std::move(text);
                    --left;
                    changed.notify_all();
                  }});
    }
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return left == 0; });
  }
  for (int i = 0; i < kTasks; ++i) {
    CHECK(results[static_cast<std::size_t>(i)] == "0 on a wrong thread");
    CHECK(living[i] == 0);
  }
}

struct CountedScope final : TaskScope {
  explicit CountedScope(int& count) : runs(count) {}
  void run(std::coroutine_handle<> coroutine) const override {
    ++runs;
    coroutine.resume();
    ++runs;
  }
  int& runs;
};

TEST_CASE("each run of a task is within its scope, which outlives the run") {
  Callback first, second;
  int living = 0, runs = 0;
  Ending ending;
  ending.start(two_callbacks(first, second, Counted(living), ""),
               std::make_shared<CountedScope>(runs));
  CHECK(runs == 2);
  first.come(1);
  CHECK(runs == 4);
  second.come(2);
  CHECK(runs == 6);
}

TEST_CASE("the memory of a task is released before its end is known") {
  RequestMemory memory({.bytes = 1 << 20}, [] {});
  Callback first, second;
  int living = 0;
  Text task = two_callbacks(first, second, Counted(living), "");
  RequestMemory::Charge charge(&memory, "alice");
  REQUIRE_FALSE(charge.add(task.frame_bytes()));
  std::optional<std::size_t> at_end;
  std::move(task).start({.scope = std::make_shared<TaskScope>(),
                         .of_exception = text_of_exception,
                         .memory = std::move(charge),
                         .on_end = [&](const std::string&) { at_end = memory.stats().bytes; }});
  first.come(1);
  CHECK(memory.stats().bytes > 0);
  second.come(2);
  CHECK(at_end == 0);
}

}  // namespace
}  // namespace lintel::testing
