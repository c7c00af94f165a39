#include "server/grpc/transport/request_counters.h"

#include <algorithm>
#include <new>

namespace lintel {

RequestCounters::Cell& RequestCounters::cell(std::string_view model, Method method,
                                             int code) noexcept {
  const std::size_t row = static_cast<std::size_t>(method);
  auto column = static_cast<std::size_t>(code);
  if (column >= kNumStatusCodes) column = 2;  // UNKNOWN
  if (model.empty()) return without_model_[row][column];
  try {
    MutexLock lock(mutex_);
    auto found = models_.find(model);
    if (found == models_.end()) {
      found = models_.emplace(std::string(model), std::make_unique<Cells>()).first;
    }
    return (*found->second)[row][column];
  } catch (const std::bad_alloc&) {
    return without_model_[row][column];
  }
}

void RequestCounters::count(Method method, std::string_view model, int code,
                            double seconds) noexcept {
  cell(model, method, code).fetch_add(1, kRelaxed);
  Durations& durations = durations_[static_cast<std::size_t>(method)];
  const auto bucket = std::ranges::lower_bound(kBounds, seconds) - kBounds.begin();
  durations.counts[static_cast<std::size_t>(bucket)].fetch_add(1, kRelaxed);
  durations.sum.fetch_add(seconds, kRelaxed);
}

std::uint64_t RequestCounters::get(Method method, std::size_t code, std::string_view model) const {
  const std::size_t row = static_cast<std::size_t>(method);
  if (model.empty()) return without_model_[row][code].load(kRelaxed);
  MutexLock lock(mutex_);
  const auto found = models_.find(model);
  return found == models_.end() ? 0 : (*found->second)[row][code].load(kRelaxed);
}

std::vector<std::pair<std::string, std::array<RequestCounters::Codes, kMethods.size()>>>
RequestCounters::by_model() const {
  std::vector<std::pair<std::string, std::array<Codes, kMethods.size()>>> all;
  const auto add = [&all](const std::string& model, const Cells& cells) {
    auto& counts = all.emplace_back(model, std::array<Codes, kMethods.size()>{}).second;
    for (std::size_t row = 0; row < cells.size(); ++row) {
      for (std::size_t code = 0; code < kNumStatusCodes; ++code) {
        counts[row][code] = cells[row][code].load(kRelaxed);
      }
    }
  };
  add("", without_model_);
  MutexLock lock(mutex_);
  for (const auto& [model, cells] : models_) add(model, *cells);
  return all;
}

HistogramSnapshot RequestCounters::durations(Method method) const {
  const Durations& durations = durations_[static_cast<std::size_t>(method)];
  HistogramSnapshot snapshot;
  snapshot.bounds.assign(kBounds.begin(), kBounds.end());
  for (const Cell& count : durations.counts) snapshot.counts.push_back(count.load(kRelaxed));
  snapshot.sum = durations.sum.load(kRelaxed);
  return snapshot;
}

std::uint64_t RequestCounters::total() const {
  std::uint64_t sum = 0;
  const auto add = [&sum](const Cells& cells) {
    for (const auto& codes : cells) {
      for (const Cell& count : codes) sum += count.load(kRelaxed);
    }
  };
  add(without_model_);
  MutexLock lock(mutex_);
  for (const auto& [model, cells] : models_) add(*cells);
  return sum;
}

}  // namespace lintel
