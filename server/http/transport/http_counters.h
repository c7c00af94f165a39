// HttpCounters: what HTTP counts for the metrics.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lintel {

// Thread-safe. Requests that were turned into calls are among gRPC's counts, too.
struct HttpCounters {
  std::atomic<std::int64_t> connections{0};  // open now
  std::atomic<std::uint64_t> accepted{0};    // connections so far
  std::atomic<std::uint64_t> refused{0};     // connections beyond a bound
  std::atomic<std::int64_t> body_bytes{0};   // of requests, not yet handed on
  std::atomic<std::uint64_t> timeouts{0};    // connections closed for being slow
  std::atomic<std::uint64_t> exceptions{0};  // caught, each the end of a connection at most
  // Answers by their status: [4] of 4xx. [0]: clients that went before theirs was out.
  std::array<std::atomic<std::uint64_t>, 6> answers{};
};

}  // namespace lintel
