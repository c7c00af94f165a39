#include "server/engine/idle_help.h"

#include <algorithm>
#include <chrono>

#include "model/ops/tile_scope.h"
#include "server/core/thread_failures.h"

namespace lintel {
namespace {

// Workers with requests, of all models: the cores are the process's.
std::atomic<std::size_t>& leading_of_process() {
  static std::atomic<std::size_t> count{0};
  return count;
}

constexpr std::chrono::milliseconds kTurn(1);  // before a helper looks after its own
constexpr int kLooksBetweenQuestions = 64;     // of some 20 to 40 ns each

}  // namespace

IdleHelp::IdleHelp(std::size_t workers, std::size_t cores) : cores_(cores), teams_(workers) {}

IdleHelp::~IdleHelp() {
  for (std::size_t i = 0; i < teams_.size(); ++i) set_leading(i, false);
}

void IdleHelp::set_leading(std::size_t worker, bool leads) {
  Led& led = teams_[worker];
  if (led.leads == leads) return;
  led.leads = leads;
  if (leads) {
    leading_.fetch_add(1, std::memory_order_relaxed);
    leading_of_process().fetch_add(1, std::memory_order_relaxed);
  } else {
    led.wanted.store(0, std::memory_order_relaxed);
    leading_.fetch_sub(1, std::memory_order_relaxed);
    leading_of_process().fetch_sub(1, std::memory_order_relaxed);
  }
}

std::size_t IdleHelp::available() const {
  const std::size_t here = std::max<std::size_t>(leading_.load(std::memory_order_relaxed), 1);
  const std::size_t all = leading_of_process().load(std::memory_order_relaxed);
  const std::size_t idle =
      std::min(teams_.size() - std::min(here, teams_.size()), cores_ - std::min(all, cores_));
  return std::min(1 + idle / here, Team::kMostThreads);
}

std::size_t IdleHelp::want(std::size_t worker, std::size_t helpers) {
  Led& led = teams_[worker];
  if (led.wanted.load(std::memory_order_relaxed) != helpers) {
    led.wanted.store(helpers, std::memory_order_relaxed);
  }
  return helpers - std::min(helpers, led.here.load(std::memory_order_relaxed));
}

IdleHelp::Led* IdleHelp::most_in_need() {
  Led* found = nullptr;
  std::size_t most = 0;
  for (Led& led : teams_) {
    const std::size_t wanted = led.wanted.load(std::memory_order_relaxed);
    const std::size_t lacking = wanted - std::min(wanted, led.here.load(std::memory_order_relaxed));
    if (lacking > most) {
      most = lacking;
      found = &led;
    }
  }
  return found;
}

bool IdleHelp::help(std::size_t worker, const std::function<bool()>& stop, const Clock& clock) {
  set_leading(worker, false);
  Led* const led = most_in_need();
  if (led == nullptr) return false;
  const std::size_t seat = led->team->sit_down(led->wanted.load(std::memory_order_relaxed));
  if (seat == 0) return false;
  led->here.fetch_add(1, std::memory_order_relaxed);
  Left left = Left::kStopped;
  survives(ServerThread::kWorker, [&] { left = help_one(*led, seat, stop, clock); });
  led->team->stand_up(seat);
  led->here.fetch_sub(1, std::memory_order_relaxed);
  return left == Left::kStopped;
}

IdleHelp::Left IdleHelp::help_one(Led& led, std::size_t seat, const std::function<bool()>& stop,
                                  const Clock& clock) {
  const TileScope tiles;  // one for all parts
  const TimePoint end = clock.now() + kTurn;
  for (int looks = 1;; ++looks) {
    const bool helped = led.team->help(seat);
    if (!helped) rest_a_moment();
    const bool asks = looks % kLooksBetweenQuestions == 0;
    if ((helped || asks) && stop()) return Left::kStopped;
    if (!asks) continue;
    if (led.wanted.load(std::memory_order_relaxed) < seat) return Left::kNobodyWants;
    if (clock.now() >= end) return Left::kStopped;
  }
}

}  // namespace lintel
