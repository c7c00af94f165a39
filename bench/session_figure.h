// SessionFigure: one row of what sessions cost, with what it is to be held against.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/statistics.h"

namespace lintel::bench {

struct SessionFigure {
  std::string name;  // for programs, e.g. "fork_us"
  std::string what;
  std::string unit;              // "us"
  Summary value;                 // of the repeats
  std::optional<double> most{};  // that it is to be; none: nothing was promised
  std::string beside{};          // what the machine does of the same kind, measured next to it
  std::string others{};          // what other systems do, from their own figures or code
};

// Microseconds of each of `count` calls.
inline std::vector<double> microseconds_of(int count, const std::function<void()>& call) {
  std::vector<double> all;
  for (int i = 0; i < count; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    all.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  return all;
}

// What a quantity was in each repeat.
class Repeats {
 public:
  void add(double value) { values_.push_back(value); }
  bool empty() const { return values_.empty(); }
  Summary summary() const { return summarize(values_); }
  double median() const { return summary().median; }

 private:
  std::vector<double> values_;
};

}  // namespace lintel::bench
