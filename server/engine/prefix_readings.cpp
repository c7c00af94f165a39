#include "server/engine/prefix_readings.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "server/core/guarded.h"

namespace lintel {
namespace {

// Where nothing was measured yet: of a small model on a busy machine.
constexpr Duration kUsualPace = std::chrono::microseconds(50);

std::int64_t values_in_common(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

}  // namespace

PrefixReadings::Shared PrefixReadings::begin(const PrefixPartKey& key,
                                             std::span<const std::int32_t> prompt,
                                             std::int64_t cached, TimePoint now) {
  auto reading = std::make_shared<Reading>();
  reading->key_ = key;
  reading->prompt_ = prompt;
  reading->first_ = cached;
  reading->began_ = now;
  reading->passed_ = cached;
  MutexLock lock(mutex_);
  reading->self_ = readings_.insert(readings_.end(), reading.get());
  return reading;
}

void PrefixReadings::advance(Reading& reading, std::int64_t values) {
  std::size_t waited = 0;
  {
    MutexLock lock(mutex_);
    reading.passed_.store(values);
    waited = std::erase_if(reading.wanted_, [&](std::int64_t wanted) { return wanted <= values; });
  }
  if (waited > 0) wake_();
}

std::int64_t PrefixReadings::next_wanted(const Reading& reading) const {
  MutexLock lock(mutex_);
  const auto next = std::ranges::min_element(reading.wanted_);
  return next == reading.wanted_.end() ? 0 : *next;
}

void PrefixReadings::end(Reading& reading, TimePoint now) {
  bool is_waited_for = false;
  {
    MutexLock lock(mutex_);
    // Without memory for it the next one is taken for a usual one.
    guarded([&]() REQUIRES(mutex_) { paces_[reading.key_.model] = pace(reading, now); }, [] {});
    readings_.erase(reading.self_);
    reading.passed_.store(std::numeric_limits<std::int64_t>::max());
    is_waited_for = !reading.wanted_.empty();
  }
  if (is_waited_for) wake_();
}

Duration PrefixReadings::pace(const Reading& reading, TimePoint now) const {
  const std::int64_t values = reading.passed_.load() - reading.first_;
  if (values > 0 && now > reading.began_) return (now - reading.began_) / values;
  const auto last = paces_.find(reading.key_.model);
  return last == paces_.end() ? kUsualPace : last->second;
}

PrefixReadings::Wait PrefixReadings::wait_for(const PrefixPartKey& key,
                                              std::span<const std::int32_t> prompt,
                                              std::int64_t cached, std::int64_t least,
                                              TimePoint now) {
  Wait wait;
  MutexLock lock(mutex_);
  Reading* best = nullptr;
  for (Reading* const reading : readings_) {
    if (reading->key_ != key) continue;
    const std::int64_t passed = reading->passed_.load();
    const std::int64_t common = values_in_common(prompt, reading->prompt_);
    if (common <= wait.values || common < cached + least) continue;
    if (passed < cached || passed >= common) continue;
    best = reading;
    wait.values = common;
  }
  if (best == nullptr) return {};
  best->wanted_.push_back(wait.values);
  wait.reading = best->shared_from_this();
  wait.longest = pace(*best, now) * (wait.values - cached);
  return wait;
}

}  // namespace lintel
