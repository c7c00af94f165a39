// SPDX-License-Identifier: Apache-2.0
#include "model/core/step_thread_pool.h"

#include <algorithm>
#include <bit>
#include <thread>
#include <utility>

namespace lintel {
namespace {

// The turn is a part of what is left: a helper that comes late cannot take from another turn what
// it saw in this one.
constexpr std::uint64_t packed(std::uint32_t turn, std::size_t begin, std::size_t end) {
  return std::uint64_t{turn} << 32 | static_cast<std::uint64_t>(begin) << 16 |
         static_cast<std::uint64_t>(end);
}
constexpr std::size_t begin_of(std::uint64_t left) { return left >> 16 & 0xffff; }
constexpr std::size_t end_of(std::uint64_t left) { return left & 0xffff; }
constexpr std::uint32_t turn_of(std::uint64_t left) {
  return static_cast<std::uint32_t>(left >> 32);
}
constexpr std::size_t kMostCount = 0xffff;  // more is one thread's

// After so many looks it is likely that the other thread has lost its core, perhaps to this one.
constexpr int kLooksBeforeYield = 2'000;

constexpr std::size_t word_of(std::size_t seat) { return (seat - 1) / 64; }
constexpr std::uint64_t bit_of(std::size_t seat) { return std::uint64_t{1} << (seat - 1) % 64; }

template <typename Seats>
std::size_t count_of(const Seats& seats) {
  std::size_t count = 0;
  for (const std::uint64_t word : seats) count += static_cast<std::size_t>(std::popcount(word));
  return count;
}

}  // namespace

void rest_a_moment() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

StepThreadPool::Seats StepThreadPool::taken_seats() const {
  Seats seats;
  for (std::size_t i = 0; i < seats.size(); ++i) {
    seats[i] = seats_[i].load(std::memory_order_relaxed);
  }
  return seats;
}

std::size_t StepThreadPool::threads() const { return std::min(used_, 1 + count_of(taken_seats())); }

void StepThreadPool::run(std::size_t count, Call call, const void* work) {
  Seats seats = taken_seats();
  const std::size_t threads = std::min({used_, 1 + count_of(seats), count});
  if (threads <= 1 || count > kMostCount) return call(work, 0, count, true);

  call_ = call;
  work_ = work;
  done_.store(0, std::memory_order_relaxed);
  ++turn_;
  const auto end_of_share = [&](std::size_t i) { return (i + 1) * count / threads; };
  std::array<std::uint8_t, kMostThreads> helpers;
  for (std::size_t i = 1, word = 0; i < threads; ++i) {
    while (seats[word] == 0) ++word;
    helpers[i] = static_cast<std::uint8_t>(
        64 * word + static_cast<std::size_t>(std::countr_zero(seats[word])) + 1);
    seats[word] &= seats[word] - 1;
    shares_[helpers[i]].left.store(packed(turn_, end_of_share(i - 1), end_of_share(i)),
                                   std::memory_order_release);
  }
  shares_[kLeader].left.store(packed(turn_, 0, end_of_share(0)), std::memory_order_release);
  std::size_t own = 0;
  for (Range range; (range = take_first_half(shares_[kLeader])).end > 0;) {
    do_part(range, true);
    own += range.end - range.begin;
  }
  for (std::size_t i = 1; i < threads; ++i) {
    for (Range range; (range = take_last(shares_[helpers[i]])).end > 0;) {
      do_part(range, true);
      own += range.end - range.begin;
    }
  }
  for (int looks = 0; done_.load(std::memory_order_acquire) + own < count; ++looks) {
    looks < kLooksBeforeYield ? rest_a_moment() : std::this_thread::yield();
  }
  if (!has_failed_.load(std::memory_order_relaxed)) return;
  has_failed_.store(false, std::memory_order_relaxed);
  std::rethrow_exception(std::exchange(failure_, nullptr));
}

void StepThreadPool::do_part(Range range, bool is_leader) noexcept {
  if (has_failed_.load(std::memory_order_relaxed)) return;
  try {
    call_(work_, range.begin, range.end, is_leader);
  } catch (...) {
    if (!has_failed_.exchange(true, std::memory_order_relaxed)) {
      failure_ = std::current_exception();
    }
  }
}

StepThreadPool::Range StepThreadPool::take_first_half(Share& share) {
  std::uint64_t left = share.left.load(std::memory_order_acquire);
  for (;;) {
    const std::size_t begin = begin_of(left), end = end_of(left);
    if (begin == end) return {};
    const std::size_t middle = begin + (end - begin + 1) / 2;
    if (share.left.compare_exchange_weak(left, packed(turn_of(left), middle, end),
                                         std::memory_order_acq_rel, std::memory_order_acquire)) {
      return {begin, middle};
    }
  }
}

StepThreadPool::Range StepThreadPool::take_last(Share& share) {
  std::uint64_t left = share.left.load(std::memory_order_acquire);
  for (;;) {
    const std::size_t begin = begin_of(left), end = end_of(left);
    if (begin == end) return {};
    if (share.left.compare_exchange_weak(left, packed(turn_of(left), begin, end - 1),
                                         std::memory_order_acq_rel, std::memory_order_acquire)) {
      return {end - 1, end};
    }
  }
}

std::size_t StepThreadPool::sit_down(std::size_t most) {
  most = std::min(most, kMostThreads - 1);
  for (std::size_t word = 0; word < seats_.size(); ++word) {
    std::uint64_t taken = seats_[word].load(std::memory_order_relaxed);
    while (~taken != 0) {
      const std::size_t seat = 64 * word + static_cast<std::size_t>(std::countr_one(taken)) + 1;
      if (seat > most) return 0;
      if (seats_[word].compare_exchange_weak(taken, taken | bit_of(seat),
                                             std::memory_order_relaxed)) {
        return seat;
      }
    }
  }
  return 0;
}

void StepThreadPool::stand_up(std::size_t seat) {
  seats_[word_of(seat)].fetch_and(~bit_of(seat), std::memory_order_relaxed);
}

bool StepThreadPool::help(std::size_t seat) {
  const auto finish = [this](Range range) {
    do_part(range, false);
    done_.fetch_add(range.end - range.begin, std::memory_order_release);
  };
  bool any = false;
  for (Range range; (range = take_first_half(shares_[seat])).end > 0; any = true) finish(range);
  if (!any) return false;
  // The leader may be slower, or have started later.
  for (Range range; (range = take_last(shares_[kLeader])).end > 0;) finish(range);
  return true;
}

StepHelpers::StepHelpers(StepThreadPool& pool, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t seat = pool.sit_down(StepThreadPool::kMostThreads - 1);
    if (seat == 0) return;
    const auto work = [this, &pool, seat] {
      int looks = 0;
      while (!stop_.load(std::memory_order_relaxed)) {
        if (pool.help(seat)) {
          looks = 0;
        } else if (looks < kLooksBeforeYield) {
          ++looks;
          rest_a_moment();
        } else {
          std::this_thread::yield();
        }
      }
      pool.stand_up(seat);
    };
    try {
      threads_.emplace_back(work);
    } catch (const std::exception&) {  // no more threads: those that there are help
      pool.stand_up(seat);
      return;
    }
  }
}

StepHelpers::~StepHelpers() {
  stop_.store(true, std::memory_order_relaxed);
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace lintel
