// SPDX-License-Identifier: Apache-2.0
// lintel: the command line of a Lintel server.
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "client/cli/program.h"

namespace {

std::atomic<int> received{0};  // the signal that ended the command; 0: none

// Ends as a program without a handler does. A loop of the shell ends with a command that died of
// Ctrl-C, and continues after one that exited with any status.
[[noreturn]] void die_of(int signal_number) {
  signal(signal_number, SIG_DFL);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, signal_number);
  raise(signal_number);  // pending until the thread lets it in
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  _exit(128 + signal_number);
}

// Ctrl-C ends the call on the server; the command writes what it has and dies of the signal. A
// second one does not wait for that. A command that continues after an interrupted call does so.
// The signals are blocked in every thread and one waits for them: cancelling takes locks, which a
// signal handler must not. Those that are ignored, by nohup or in a shell's background, stay so.
void cancel_on_signals(lintel::cli::Console& console) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction inherited {};
    sigaction(number, nullptr, &inherited);
    if (inherited.sa_handler != SIG_IGN) sigaddset(&signals, number);
  }
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals, &console] {
    int number = 0;
    do {
      sigwait(&signals, &number);
    } while (number == SIGINT && console.interrupt());
    received = number;
    console.cancel();
    // Most commands end at once: only of those that do not a second signal is worth a word.
    constexpr timespec kPatience{0, 300'000'000};
    number = sigtimedwait(&signals, nullptr, &kPatience);
    if (number < 0) {
      console.err("lintel: ending; a second signal ends it at once\n");
      sigwait(&signals, &number);
    }
    die_of(number);
  }).detach();
}

}  // namespace

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);  // a closed standard output is noticed by write()
  // Never destroyed: the thread that waits for signals may outlive main.
  static auto& console = *new lintel::cli::Console(STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO);
  cancel_on_signals(console);
  const int code =
      lintel::cli::run_command_line(std::vector<std::string>(argv + 1, argv + argc), console);
  if (received != 0) die_of(received);
  return code;
}
