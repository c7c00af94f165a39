// Memory bandwidth: of the machine, and what softmax attention over a cache makes of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bench/statistics.h"
#include "model/config/config.h"

namespace lintel::bench {

// Bytes a second that `workers` threads read together, each from several places of a buffer of its
// own of `bytes_per_worker`: from memory where no cache holds so much, else from the cache that
// does.
Summary read_bandwidth(int workers, std::size_t bytes_per_worker, int repeats);

// Bytes a second of all workers together.
struct Bandwidth {
  // Reading a buffer for each worker that no cache holds, from several places at a time.
  Summary memory;
  // Keys and values, by softmax attention of every layer alone, no projections: every worker has
  // `batch` sequences that have seen `position` values and feeds one more to each.
  Summary cached_softmax;
  Summary share;  // of the two, measured one right after the other
};
Bandwidth measure_bandwidth(const ModelConfig& config, int workers, int batch,
                            std::int64_t position, int repeats);

inline constexpr std::size_t kBufferBytes = std::size_t{256} << 20;  // of a worker

}  // namespace lintel::bench
