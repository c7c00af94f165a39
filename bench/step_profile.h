// Where the time of steps goes: the clock that the model itself has not.
#pragma once

#include <array>
#include <chrono>

#include "model/transformer.h"

namespace lintel::bench {

class StepProfile final : public StepObserver {
 public:
  void enter(StepPart part) override {
    const auto now = std::chrono::steady_clock::now();
    seconds_[static_cast<std::size_t>(part_)] +=
        std::chrono::duration<double>(now - since_).count();
    since_ = now;
    part_ = part;
  }
  // Forgets what was counted.
  void start() {
    seconds_ = {};
    part_ = StepPart::kOther;
    since_ = std::chrono::steady_clock::now();
  }
  double seconds(StepPart part) const { return seconds_[static_cast<std::size_t>(part)]; }

 private:
  std::array<double, 3> seconds_ = {};
  StepPart part_ = StepPart::kOther;
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
};

}  // namespace lintel::bench
