// SPDX-License-Identifier: Apache-2.0
// StepThreadPool: threads that share the work of one step.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

namespace lintel {

// One thread leads: it splits work into parts, does its own share and what its helpers have not
// started, and waits only for what they have started. So a helper that is late, or gone, costs the
// leader nothing. A helper that has done its share takes what is left of the leader's. No thread
// sleeps in here: helpers poll for work, and the leader waits for the end of a part, some
// microseconds.
//
// Which thread does which part depends on chance. What is computed must not: each part is written
// by one thread, and by itself.
class StepThreadPool {
 public:
  static constexpr std::size_t kMostThreads = 128;  // the leader and its helpers

  StepThreadPool() = default;
  StepThreadPool(const StepThreadPool&) = delete;
  StepThreadPool& operator=(const StepThreadPool&) = delete;

  // ---- The leader's.

  // Limits the threads that share work from here on, the leader included; a helper that comes late
  // from the work before may still take some.
  void use(std::size_t threads) { used_ = threads; }
  // The number of threads that share work, limited by the helpers present.
  std::size_t threads() const;

  // Calls work(begin, end, is_leader) for ranges that make up 0 .. count - 1, on this thread and on
  // those of helpers, and returns when all of them have ended. Helpers see what the leader wrote
  // before, and the leader what they wrote. What lies at the same place of `count` goes to the same
  // helper each time, as far as they are here, whose cache may hold it still. `work` splits
  // nothing. What it throws, on any thread, is thrown here once all threads have ended; parts that
  // had not started by then may be left out.
  template <typename Work>
  void split(std::size_t count, const Work& work) {
    run(
        count,
        [](const void* of, std::size_t begin, std::size_t end, bool is_leader) {
          (*static_cast<const Work*>(of))(begin, end, is_leader);
        },
        &work);
  }

  // ---- A helper's.

  // Takes one of the seats 1 .. most. Returns it, 0 where all of them are taken.
  std::size_t sit_down(std::size_t most);
  void stand_up(std::size_t seat);
  // Does some of the work for the seat, if there is any. Returns whether there was.
  bool help(std::size_t seat);

 private:
  using Call = void (*)(const void* work, std::size_t begin, std::size_t end, bool is_leader);

  static constexpr std::size_t kLeader = 0;  // its seat
  // Bits of the helpers' seats, from the lowest bit of the first word: seat 1.
  using Seats = std::array<std::uint64_t, kMostThreads / 64>;
  Seats taken_seats() const;
  // The rest of a seat's share, in a cache line of its own, which the seat's helper polls.
  struct alignas(64) Share {
    std::atomic<std::uint64_t> left{0};
  };
  struct Range {
    std::size_t begin = 0, end = 0;
  };

  void run(std::size_t count, Call call, const void* work);
  // Does a part, and keeps what it throws, unless another part has thrown already.
  void do_part(Range range, bool is_leader) noexcept;
  // Takes the first or the last of what is left; nothing where nothing is.
  static Range take_first_half(Share& share);
  static Range take_last(Share& share);

  // Used by the leader only.
  std::size_t used_ = kMostThreads;
  std::uint32_t turn_ = 0;

  // Written by the leader while no part is under way, read by who has taken one.
  Call call_ = nullptr;
  const void* work_ = nullptr;

  // Set by the thread that has set has_failed_, before its part counts as done.
  std::exception_ptr failure_;
  std::atomic<bool> has_failed_{false};

  alignas(64) std::array<std::atomic<std::uint64_t>, kMostThreads / 64> seats_{};  // as Seats
  alignas(64) std::atomic<std::size_t> done_{0};  // of the work, by helpers
  std::array<Share, kMostThreads> shares_;        // by seat
};

// Threads that help the leader of a pool, which outlives them, and do nothing else: they poll for
// work, and yield the core while there is none.
class StepHelpers {
 public:
  // Adds `count` helpers, or as many as the pool has seats left. Each has its seat when this
  // returns.
  StepHelpers(StepThreadPool& pool, std::size_t count);
  ~StepHelpers();
  StepHelpers(const StepHelpers&) = delete;
  StepHelpers& operator=(const StepHelpers&) = delete;

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

// Splits where there is a team of more than one; else does all of it here.
template <typename Work>
void split_among(StepThreadPool* team, std::size_t count, const Work& work) {
  if (team != nullptr && count > 1 && team->threads() > 1) return team->split(count, work);
  if (count > 0) work(std::size_t{0}, count, true);
}

// For a thread that waits for another one for less than it would take to sleep.
void rest_a_moment();

}  // namespace lintel
