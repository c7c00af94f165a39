#include "server/app/signals.h"

#include <pthread.h>
#include <signal.h>

#include <cstdlib>

#include "server/core/thread_failures.h"

namespace lintel {
namespace {

constexpr int kQuit = SIGUSR1;  // from the destructor; from others it means nothing

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, kQuit);
  return set;
}

}  // namespace

SignalWatcher::SignalWatcher(std::function<void(int)> on_first) {
  const sigset_t set = watched_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  thread_ = std::thread([this, set, on_first = std::move(on_first)] {
    bool first = true;
    while (true) {
      int signal = 0;
      if (sigwait(&set, &signal) != 0 || quitting_) return;
      if (signal == kQuit) continue;
      if (!first) std::_Exit(128 + signal);
      first = false;
      survives(ServerThread::kSignals, [&] { on_first(signal); });
    }
  });
}

SignalWatcher::~SignalWatcher() {
  quitting_ = true;
  pthread_kill(thread_.native_handle(), kQuit);
  thread_.join();
}

}  // namespace lintel
