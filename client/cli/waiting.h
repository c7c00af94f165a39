// A sign of life while the server has nothing to show yet, on terminals only.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "client/cli/console.h"

namespace lintel::cli {

// "the prompt's 65536 values are being read, 12 s", redrawn on standard error once in `period`
// from the end of the first one on, and erased by stop(). The server does not tell how far it is.
// Where standard error is no terminal nothing is printed and no thread is made.
//
// Threads: one at a time; a thread of its own draws.
class Waiting {
 public:
  Waiting(Console& console, std::string what,
          std::chrono::milliseconds period = std::chrono::seconds(1));
  ~Waiting() { stop(); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  void stop();  // idempotent

 private:
  void draw_until_stopped();

  Console& console_;
  const std::string what_;
  const std::chrono::milliseconds period_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace lintel::cli
