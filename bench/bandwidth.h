// Memory bandwidth: of the machine, and what softmax attention over a cache makes of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bench/statistics.h"
#include "model/config.h"

namespace lintel::bench {

// Bytes a second that `workers` threads read together, each from a buffer of its own of
// `bytes_per_worker`, one after the other: from memory where no cache holds so much, else from the
// cache that does.
Summary read_bandwidth(int workers, std::size_t bytes_per_worker, int repeats);

// Attention of every layer alone, no projections: every worker has `batch` sequences that have seen
// `position` values and feeds one more to each.
struct CachedAttention {
  Summary seconds;        // of one step of all workers
  double bytes_read = 0;  // of keys and values, by all workers; a mean over the repeats
};
CachedAttention measure_cached_softmax(int workers, int batch, std::int64_t position,
                                       const ModelConfig& config, int repeats);

}  // namespace lintel::bench
