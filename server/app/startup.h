// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <iosfwd>
#include <string>
#include <thread>

#include "server/config/server_options.h"
#include "server/models/model_options.h"

namespace lintel {

// Work that is done before models are loaded, which may take minutes.

// Checks the files and directories that flags name. The files are read again by their users. Throws
// std::runtime_error naming the flag, the file and the problem.
void check_files(const ServerOptions& options);
// The same, and checks that the addresses are free.
void check_before_loading(const ServerOptions& options);

// Has the `lintel` beside this program pull options.pulled_model, if any, and sets its path. The
// output of `lintel` goes to standard error. Throws std::runtime_error.
void pull_model(ServerOptions& options);

// Threads that a server of these options has when it is ready, and some to spare: gRPC starts its
// own as it needs them.
int threads_at_start(const ServerOptions& options);

// Looks whether the limit of the address space (ulimit -v, RLIMIT_AS), where there is one, leaves
// room for the stacks of the threads that threads_at_start() says and that do not run yet, and for
// what a start allocates. A library that misses either would abort or wait for ever. Near the limit
// it lets all threads allocate from one heap: others would take 64 MiB of addresses each. Throws
// std::runtime_error that says how much is needed.
void check_address_space(const ServerOptions& options);

// Starts and ends as many threads as threads_at_start() says. A library that misses one later would
// abort or wait for ever. Throws std::runtime_error that says how many there can be and what may
// limit them.
void check_threads(const ServerOptions& options);

// The text of a failure for an operator: its own text, and where memory or threads were short what
// may limit them.
std::string text_of_failure(const std::exception& error);

// --print-numerics: prints which bits this machine computes and exits.

// A line for each model that a server of these options would start with: name, version, hash, and
// what computes it, between tabs. Loads one after the other. Throws ModelError.
void print_numerics(const ModelOptions& options, std::ostream& out);

// SignalWatcher: SIGTERM and SIGINT, taken by one thread.

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
