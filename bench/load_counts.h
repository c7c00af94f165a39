// SPDX-License-Identifier: Apache-2.0
// LoadCounts: the turns of a load, as the tables, figures and plots of its report.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/chat_client.h"
#include "bench/conversations.h"
#include "bench/report.h"
#include "bench/run_flags.h"

namespace lintel::bench {

// A distribution in bounded memory. Beyond kKept samples, quantiles are those of kKept that are
// chosen by chance; count, mean and most are exact.
class SampleSet {
 public:
  static constexpr std::size_t kKept = 1'000'000;

  void add(double sample);
  std::int64_t count() const { return count_; }
  // REQUIRES: count() > 0.
  double mean() const { return sum_ / static_cast<double>(count_); }
  double most() const { return most_; }
  double quantile_at(double share) const;  // see quantile()
  std::vector<double> sorted() const;      // the kept ones

 private:
  std::vector<double> kept_;
  std::int64_t count_ = 0;
  double sum_ = 0, most_ = 0;
  DrawStream chosen_{0, 0};
};

struct TurnRecord {
  using Clock = ChatAnswer::Clock;
  Clock::time_point due;   // when it was to be sent: times are counted from here
  Clock::time_point sent;  // equal to `end` where it never was
  Clock::time_point end;
  int turn = 0;  // of its conversation, from 0
  ChatAnswer answer;
};

// Counts turns that are due within the window, whenever they end; rates have the answers and tokens
// that came within it. One thread at a time.
class LoadCounts {
 public:
  using Clock = ChatAnswer::Clock;

  struct Bounds {  // seconds; absent: none
    std::optional<double> first_token, per_token;
    bool any() const { return first_token || per_token; }
  };

  LoadCounts(Clock::time_point begin, Clock::time_point end, Bounds bounds)
      : begin_(begin), end_(end), bounds_(bounds) {}

  // Ends the window earlier. REQUIRES: nothing that was added came after `time`.
  void end_at(Clock::time_point time);
  void add(const TurnRecord& record);

  std::int64_t answered() const { return answered_; }
  std::int64_t refused() const { return refused_; }
  std::int64_t failed() const { return failed_; }
  std::int64_t unfinished() const { return unfinished_; }
  std::int64_t turns() const { return answered_ + refused_ + failed_ + unfinished_; }
  double seconds() const;
  double tokens_per_second() const { return tokens_ / seconds(); }
  // True if there were turns, and all of them failed because no connection came about.
  bool all_unreached() const;
  // The most frequent status and its first error, "429: the queue is full"; empty: no turn was
  // refused or failed.
  std::string first_error() const;

  // `load` names the row: "64 users". cpu_seconds: CPU of the clients in the window.
  void add_to(Measurement& measurement, const std::string& load, double cpu_seconds) const;

 private:
  struct Status {
    std::int64_t count = 0;
    bool is_refusal = false;
    std::string error;  // of the first
  };
  struct TimeRow {
    const char* name;    // of the row
    const char* figure;  // of its figures
    const SampleSet& samples;
  };
  struct OfTurn {
    std::int64_t count = 0;
    double prompt_tokens = 0, cached_tokens = 0;
    SampleSet first_token;
  };

  bool holds(Clock::time_point time) const { return begin_ <= time && time < end_; }
  void add_outcome(const ChatAnswer& answer);
  void add_times(const TurnRecord& record);
  bool is_within_bounds(const TurnRecord& record) const;
  Table table_of_requests(const std::string& load, double cpu_seconds) const;
  std::array<TimeRow, 5> time_rows() const;
  Table table_of_times() const;
  Table table_of_turns() const;
  Table table_of_statuses() const;
  std::vector<Plot> plots() const;

  const Clock::time_point begin_;
  Clock::time_point end_;
  const Bounds bounds_;
  // Turns that were due within the window.
  std::int64_t answered_ = 0, refused_ = 0, failed_ = 0, unfinished_ = 0;
  std::int64_t within_bounds_ = 0;
  std::int64_t uncounted_ = 0;  // answered, and the server did not say how many tokens
  std::int64_t unknown_cached_ = 0;
  std::map<std::string, Status> statuses_;
  std::map<int, OfTurn> by_turn_;
  SampleSet first_token_, between_messages_, per_token_, whole_, late_;  // seconds
  // Answers and tokens that came within it.
  std::int64_t answers_ = 0, good_answers_ = 0;
  double tokens_ = 0, prompt_tokens_ = 0, cached_tokens_ = 0;
};

}  // namespace lintel::bench
