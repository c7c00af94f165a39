// SignalWatcher: SIGTERM and SIGINT, taken by one thread.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace lintel {

// The constructor blocks both signals in the calling thread, hence in every thread it makes later,
// and a thread of its own waits for them: nothing runs in a signal handler. The first signal calls
// `on_first` on that thread; a second one ends the process at once.
// REQUIRES: made in main before any other thread.
class SignalWatcher {
 public:
  explicit SignalWatcher(std::function<void(int signal)> on_first);
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

 private:
  std::atomic<bool> quitting_{false};
  std::thread thread_;
};

}  // namespace lintel
