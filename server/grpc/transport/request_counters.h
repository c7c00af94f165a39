// RequestCounters: how many calls of each method have ended, how, and how long they took.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/core/histogram.h"
#include "server/core/mutex.h"
#include "server/grpc/transport/methods.h"

namespace lintel {

inline constexpr std::size_t kNumStatusCodes = 17;  // OK .. UNAUTHENTICATED

// Thread-safe. A call is counted under the model that it is about, by name; under none, "", when it
// is about none or was refused before its model was known. As many models are kept apart as were
// ever loaded: callers give names of models that there are, never one from the wire.
class RequestCounters {
 public:
  using Codes = std::array<std::uint64_t, kNumStatusCodes>;

  // A call that was refused by its headers: it took no time of the server's.
  void count(Method method, int code) noexcept { cell("", method, code).fetch_add(1, kRelaxed); }
  // Where there is no memory to keep the model apart the call is counted under none.
  void count(Method method, std::string_view model, int code, double seconds) noexcept;

  // Of one model, or of calls about none.
  std::uint64_t get(Method method, std::size_t code, std::string_view model = "") const
      EXCLUDES(mutex_);
  // By model, calls about none first: each method's calls by code, in the order of kMethods.
  std::vector<std::pair<std::string, std::array<Codes, kMethods.size()>>> by_model() const
      EXCLUDES(mutex_);
  // From the headers to the end of the call, in seconds; of all models.
  HistogramSnapshot durations(Method method) const;
  std::uint64_t total() const EXCLUDES(mutex_);

 private:
  static constexpr auto kRelaxed = std::memory_order_relaxed;
  // A stream may run for an hour, a health check takes a fraction of a millisecond.
  static constexpr std::array kBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,  0.25,
                                         0.5,   1.0,    2.5,   5.0,  10.0,  30.0, 60.0, 300.0};

  using Cell = std::atomic<std::uint64_t>;
  using Cells = std::array<std::array<Cell, kNumStatusCodes>, kMethods.size()>;
  // As Histogram, for many writers.
  struct Durations {
    std::array<Cell, kBounds.size() + 1> counts{};
    std::atomic<double> sum{0};
  };

  Cell& cell(std::string_view model, Method method, int code) noexcept EXCLUDES(mutex_);

  Cells without_model_{};
  std::array<Durations, kMethods.size()> durations_{};
  mutable Mutex mutex_;
  // Cells stay where they are, and are counted in without the mutex.
  std::map<std::string, std::unique_ptr<Cells>, std::less<>> models_ GUARDED_BY(mutex_);
};

}  // namespace lintel
