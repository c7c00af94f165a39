#include "server/models/batch_rows.h"

#include <unistd.h>

#include <algorithm>

namespace lintel {

int batch_rows_for(const Transformer& model, int workers, std::size_t cache_bytes) {
  if (model.weight_type() == WeightType::kF32) return kMostBatchRows;
  const std::size_t state_bytes = std::max<std::size_t>(model.state_bytes(/*num_tokens=*/64), 1);
  const std::size_t rows = cache_bytes / 4 / static_cast<std::size_t>(workers) / state_bytes;
  return static_cast<int>(std::clamp<std::size_t>(rows, kLeastBatchRows, kMostBatchRows));
}

std::size_t last_cache_bytes() {
  const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return bytes > 0 ? static_cast<std::size_t>(bytes) : std::size_t{32} << 20;
}

}  // namespace lintel
