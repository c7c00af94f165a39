// SPDX-License-Identifier: Apache-2.0
#include "server/app/maintenance.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "server/core/threads.h"

namespace lintel {
namespace {

Duration eviction_interval(std::chrono::milliseconds idle_timeout) {
  if (idle_timeout.count() == 0) return Duration::zero();
  return std::clamp<Duration>(idle_timeout / 4, Maintenance::kInterval, std::chrono::seconds(10));
}

}  // namespace

Maintenance::Maintenance(const State& state, const Clock& clock,
                         std::function<void()> give_back_free_memory)
    : state_(state),
      clock_(clock),
      give_back_free_memory_(std::move(give_back_free_memory)),
      eviction_interval_(eviction_interval(state.store.options().idle_timeout)),
      next_eviction_(clock.now() + eviction_interval_),
      next_give_back_(clock.now() + kIdleTime),
      next_of_store_(clock.now() + kStoreInterval),
      next_of_responses_(next_of_store_) {}

Maintenance::~Maintenance() { stop(); }

void Maintenance::start() {
  thread_ = std::thread([this] {
    while (!stopping_) {
      stopping_bell_.wait(std::chrono::steady_clock::now() + kInterval);
      if (!stopping_) survives(ServerThread::kMaintenance, [this] { look(); });
    }
  });
}

void Maintenance::stop() {
  stopping_ = true;
  stopping_bell_.ring();
  if (thread_.joinable()) thread_.join();
}

void Maintenance::look() {
  const TimePoint now = clock_.now();
  // Each by itself: one that fails is done at the next look, and keeps the others from nothing.
  const auto duty = [](auto&& work) { survives(ServerThread::kMaintenance, work); };
  duty([&] { reload_files(); });
  duty([&] { give_back_memory(now); });
  duty([&] { evict_sessions(now); });
  duty([&] { look_after_store(now); });
  duty([&] { look_after_responses(now); });
  duty([&] {
    if (state_.models != nullptr) state_.models->unload_idle();
  });
}

void Maintenance::reload_files() {
  if (state_.certificates != nullptr) state_.certificates->reload_if_changed();
  if (state_.tokens != nullptr) state_.tokens->reload_if_changed();
}

void Maintenance::give_back_memory(TimePoint now) {
  const std::uint64_t calls = state_.counters.total();
  const bool idle = calls == std::exchange(calls_before_, calls) && state_.calls.count() == 0;
  if (!idle) next_give_back_ = now + kIdleTime;
  if (now < next_give_back_) return;
  give_back_free_memory_();
  next_give_back_ = now + kLongIdleTime;
}

void Maintenance::evict_sessions(TimePoint now) {
  if (eviction_interval_ == Duration::zero() || now < next_eviction_) return;
  next_eviction_ += eviction_interval_;
  const std::size_t evicted = state_.store.evict_idle();
  if (evicted > 0) spdlog::info("{} idle sessions evicted", evicted);
}

void Maintenance::look_after_store(TimePoint now) {
  if (state_.stored == nullptr || now < next_of_store_) return;
  next_of_store_ = now + kStoreInterval;
  state_.stored->look();
}

void Maintenance::look_after_responses(TimePoint now) {
  if (state_.responses == nullptr || now < next_of_responses_) return;
  next_of_responses_ = now + kStoreInterval;
  state_.responses->look();
}

}  // namespace lintel
