#include "server/engine/thread_choice.h"

#include <algorithm>
#include <bit>
#include <span>

namespace lintel {
namespace {

// The most that the larger number may take of the smaller one's time, to be adopted and to be kept.
constexpr double kWorthBeginning = 0.90, kWorthKeeping = 0.95;
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

std::size_t ThreadChoice::class_of(int rows) {
  const auto more = static_cast<unsigned>(std::max(rows, 1) - 1);
  return std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(more)), 7);
}

void ThreadChoice::begin_try(Class& of, int available) {
  const bool may_more = 2 * of.threads <= available;
  const bool may_less = of.threads > 1;
  if (!may_more && !may_less) return;
  const bool more = may_more && (of.more_next || !may_less);
  of.tried = more ? 2 * of.threads : of.threads / 2;
  of.more_next = !more;
  of.steps = 0;
  of.own.count = of.other.count = 0;
}

int ThreadChoice::choose(int rows, int available) {
  current_ = class_of(rows);
  Class& of = classes_[current_];
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

int ThreadChoice::wanted() {
  const int now = std::max(asked_, classes_[current_].tried);
  if (now >= wanted_) {
    until_fewer_ = kStepsOfPatience;
  } else if (--until_fewer_ > 0) {
    return wanted_;
  }
  return wanted_ = now;
}

void ThreadChoice::note(int threads, Duration took) {
  Class& of = classes_[current_];
  if (of.tried == 0) return;
  const bool is_first_of_turn = of.steps % kTurn == 0;  // whose weights lie in the other caches
  Samples& samples = in_turn_of_other(of) ? of.other : of.own;
  ++of.steps;
  if (threads == asked_ && !is_first_of_turn && samples.count < kSamples) {
    samples.took[samples.count++] = took;
  }
  if (of.own.count == kSamples && of.other.count == kSamples) {
    judge(of);
  } else if (of.steps >= kMostPatience * 2 * static_cast<int>(kSamples)) {
    of.tried = 0;
    of.pause = std::min(2 * of.pause, kLongestPause);
    of.until_try = of.pause;
  }
}

void ThreadChoice::judge(Class& of) {
  const Duration most = kMostDisturbed * std::max(usual(of.own.took), usual(of.other.took));
  const double own = mean(of.own.took, most);
  const double other = mean(of.other.took, most);
  const bool is_better =
      of.tried > of.threads ? other < kWorthBeginning * own : own > kWorthKeeping * other;
  if (is_better) {
    of.more_next = of.tried > of.threads;  // further the same way
    of.threads = of.tried;
    of.pause = kFirstPause;
  } else {
    of.pause = std::min(2 * of.pause, kLongestPause);
  }
  of.tried = 0;
  of.until_try = of.pause;
}

}  // namespace lintel
