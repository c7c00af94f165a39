// lintel: the command line of a Lintel server.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "client/cli/commands.h"

namespace {

// Ctrl-C ends the call on the server and the command with it; a second one ends the process. The
// signals are blocked in every thread and one waits for them: cancelling takes locks, which a
// signal handler must not.
void cancel_on_signals(lintel::cli::Console& console) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals, &console] {
    int signal = 0;
    sigwait(&signals, &signal);
    console.cancellation().cancel();
    sigwait(&signals, &signal);
    _exit(lintel::cli::kFailed);
  }).detach();
}

}  // namespace

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);  // a closed standard output is noticed by write()
  // Never destroyed: the thread that waits for signals may outlive main.
  static auto& console = *new lintel::cli::Console(STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO);
  cancel_on_signals(console);
  return lintel::cli::run_command_line(std::vector<std::string>(argv + 1, argv + argc), console);
}
