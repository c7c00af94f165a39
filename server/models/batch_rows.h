// How many sequences a worker should step together.
#pragma once

#include <cstddef>

#include "model/network/transformer.h"

namespace lintel {

// A step streams the weights once for all its rows, so more rows are cheaper, until the states they
// belong to no longer fit the last cache beside the weights. In f32 the weights cost most, and
// there are kMostBatchRows; in bf16 and int8 as many as keep the states of all workers within a
// quarter of `cache_bytes`, but no fewer than kLeastBatchRows. Growing states count as they are
// after 64 tokens: they leave the caches anyway.
int batch_rows_for(const Transformer& model, int workers, std::size_t cache_bytes);

inline constexpr int kLeastBatchRows = 16;
inline constexpr int kMostBatchRows = 64;

// Of the last cache of this machine; 32 MiB where it does not tell.
std::size_t last_cache_bytes();

}  // namespace lintel
