// SPDX-License-Identifier: Apache-2.0
#include "server/engine/intra_op_parallelism.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <span>
#include <utility>

#include "model/ops/tile_scope.h"
#include "server/core/threads.h"

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

IntraOpParallelism::IntraOpParallelism(std::size_t workers, std::size_t cores)
    : cores_(cores), teams_(workers) {}

IntraOpParallelism::~IntraOpParallelism() {
  for (std::size_t i = 0; i < teams_.size(); ++i) set_leading(i, false);
}

void IntraOpParallelism::set_leading(std::size_t worker, bool leads) {
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

std::size_t IntraOpParallelism::available() const {
  const std::size_t here = std::max<std::size_t>(leading_.load(std::memory_order_relaxed), 1);
  const std::size_t all = leading_of_process().load(std::memory_order_relaxed);
  const std::size_t idle =
      std::min(teams_.size() - std::min(here, teams_.size()), cores_ - std::min(all, cores_));
  return std::min(1 + idle / here, StepThreadPool::kMostThreads);
}

std::size_t IntraOpParallelism::want(std::size_t worker, std::size_t helpers) {
  Led& led = teams_[worker];
  if (led.wanted.load(std::memory_order_relaxed) != helpers) {
    led.wanted.store(helpers, std::memory_order_relaxed);
  }
  return helpers - std::min(helpers, led.here.load(std::memory_order_relaxed));
}

IntraOpParallelism::Led* IntraOpParallelism::most_in_need() {
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

bool IntraOpParallelism::help(std::size_t worker, const std::function<bool()>& stop,
                              const Clock& clock) {
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

IntraOpParallelism::Left IntraOpParallelism::help_one(Led& led, std::size_t seat,
                                                      const std::function<bool()>& stop,
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

namespace {

// The most that the larger number may take of the smaller one's time, to be adopted and to be kept.
constexpr double kWorthBeginning = 0.90, kWorthKeeping = 0.95;
// Share of the other number's time below which the difference is clear, so that the next try of
// long steps is far away.
constexpr double kClear = 0.75;
constexpr int kClearPause = 8;
// Helpers that never come: a try ends after so many times its steps.
constexpr int kMostPatience = 8;

// A step that another process held up counts, for it may be the second thread's doing, but not for
// more than so many usual ones.
constexpr int kMostDisturbed = 4;

Duration usual(std::span<Duration> took) {
  const auto middle = took.begin() + static_cast<std::ptrdiff_t>(took.size() / 2);
  std::ranges::nth_element(took, middle);
  return *middle;
}

double mean(std::span<const Duration> took, Duration most) {
  Duration sum{};
  for (const Duration one : took) sum += std::min(one, most);
  return static_cast<double>(sum.count()) / static_cast<double>(took.size());
}

}  // namespace

std::size_t ThreadCountTuner::class_of(int rows) {
  const auto more = static_cast<unsigned>(std::max(rows, 1) - 1);
  return std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(more)), 7);
}

void ThreadCountTuner::begin_try(Class& of, int available) {
  const bool may_more = 2 * of.threads <= available;
  const bool may_less = of.threads > 1;
  if (!may_more && !may_less) return;
  const bool more = may_more && (of.more_next || !may_less);
  of.tried = more ? 2 * of.threads : of.threads / 2;
  of.more_next = !more;
  of.steps = 0;
  of.own.count = of.other.count = 0;
}

int ThreadCountTuner::choose(int rows, int available) {
  current_ = class_of(rows);
  Class& of = classes_[current_];
  if (starts_with_all_ && !of.is_known) {
    of.threads = static_cast<int>(std::bit_floor(static_cast<unsigned>(std::max(available, 1))));
  }
  asked_ = std::min(of.threads, static_cast<int>(std::bit_floor(static_cast<unsigned>(available))));
  if (available < 2 || asked_ < of.threads) {  // others need the cores: nothing is learnt
    of.tried = 0;
    return asked_;
  }
  if (of.tried > available) of.tried = 0;
  if (of.tried == 0 && --of.until_try <= 0) {
    begin_try(of, available);
    of.until_try = of.pause;
  }
  if (of.tried != 0 && in_turn_of_other(of)) asked_ = of.tried;
  return asked_;
}

int ThreadCountTuner::wanted() {
  const int now = std::max(asked_, classes_[current_].tried);
  if (now >= wanted_) {
    until_fewer_ = kStepsOfPatience;
  } else if (--until_fewer_ > 0) {
    return wanted_;
  }
  return wanted_ = now;
}

void ThreadCountTuner::note(int threads, Duration took) {
  Class& of = classes_[current_];
  if (of.tried == 0) {
    const auto fitting = static_cast<std::size_t>(kTryTime / std::max(took, Duration(1)));
    of.samples = std::clamp(fitting, kFewestSamples, kSamples);
    // The first try of more threads comes as soon as with shorter steps.
    if (!std::exchange(of.is_known, true) && of.threads == 1) {
      of.until_try = std::min(of.until_try, static_cast<int>(of.samples));
    }
    return;
  }
  const bool is_first_of_turn = of.steps % of.turn() == 0;  // whose weights lie in the other caches
  Samples& samples = in_turn_of_other(of) ? of.other : of.own;
  ++of.steps;
  if (threads == asked_ && !is_first_of_turn && samples.count < of.samples) {
    samples.took[samples.count++] = took;
  }
  if (of.own.count == of.samples && of.other.count == of.samples) {
    judge(of);
  } else if (of.steps >= kMostPatience * 2 * static_cast<int>(of.samples)) {
    of.tried = 0;
    of.pause = std::min(2 * of.pause, kLongestPause);
    of.until_try = of.pause;
  }
}

void ThreadCountTuner::judge(Class& of) {
  const std::span<Duration> all_own(of.own.took.data(), of.samples);
  const std::span<Duration> all_other(of.other.took.data(), of.samples);
  const Duration most = kMostDisturbed * std::max(usual(all_own), usual(all_other));
  const double own = mean(all_own, most);
  const double other = mean(all_other, most);
  const bool is_better =
      of.tried > of.threads ? other < kWorthBeginning * own : own > kWorthKeeping * other;
  if (is_better) {
    of.more_next = of.tried > of.threads;  // further the same way
    of.threads = of.tried;
    of.pause = kFirstPause;
  } else {
    const bool is_clear = own < kClear * other && of.samples < kSamples;
    of.pause = std::min((is_clear ? kClearPause : 2) * of.pause, kLongestPause);
  }
  of.tried = 0;
  of.until_try = of.pause;
}

void StepSharing::begin(int rows, TimePoint now) {
  const int available = static_cast<int>(help_.available());
  const bool tries = step_threads_ == 0;
  const int threads = tries ? choice_.choose(rows, available) : std::min(step_threads_, available);
  const int wanted = tries ? choice_.wanted() : threads;
  const std::size_t missing = help_.want(worker_, static_cast<std::size_t>(wanted) - 1);
  if (missing > 0) call(missing, now);
  team().use(static_cast<std::size_t>(threads));
  threads_ = static_cast<int>(team().threads());
}

void StepSharing::end(Duration took) {
  if (step_threads_ == 0) choice_.note(threads_, took);
}

void StepSharing::call(std::size_t helpers, TimePoint now) {
  if (now < next_call_) return;
  const bool came_in_vain = now - next_call_ < pause_;  // the last one was not long ago
  pause_ = came_in_vain ? std::min(2 * pause_, kLongestPause) : kLeastPause;
  next_call_ = now + pause_;
  queue_.call_idle(helpers);
}

}  // namespace lintel
