// SPDX-License-Identifier: Apache-2.0
// MemoryPlan: the parts of the memory limit, fixed when the server starts.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "server/config/server_options.h"
#include "server/core/memory_limit.h"

namespace lintel {

// The limit of --memory-limit, or of this machine.
MemoryLimit memory_limit_of(const ServerOptions& options);

// Replaces every size of `options` that is kAutoBytes and does not depend on models by its part of
// the limit. Those of models, sessions and the prefix cache stay.
void choose_sizes(ServerOptions& options, const MemoryLimit& limit);

// Memory of stored responses where there is no session storage; 0 with one.
std::size_t response_bytes(const ServerOptions& options, const MemoryLimit& limit);

// The memory of the models that are loaded when the server starts.
struct LoadedModels {
  std::size_t count = 0;
  std::size_t weight_bytes = 0;  // resident, with adapters
  std::size_t worker_bytes = 0;  // buffers of all workers
};

struct MemoryPlan {
  // The part of the limit that the rows may have: the rest is for the allocator and the system.
  static constexpr std::size_t kTenths = 9;
  // The start fails if --session-memory auto has less.
  static constexpr std::size_t kLeastSessionBytes = std::size_t{64} << 20;

  struct Row {
    std::string name;
    std::size_t bytes = 0;
    std::string flag;  // what sets it; empty: nothing does
  };

  MemoryLimit limit;
  std::vector<Row> rows;               // sessions last
  std::size_t model_memory_bytes = 0;  // the bound of models; 0: none
  std::size_t session_memory_bytes = 0;
  std::size_t prefix_memory_bytes = 0;
  bool is_too_small = false;  // too little is left for --session-memory auto

  std::size_t most_bytes() const { return limit.bytes / 10 * kTenths; }
  std::size_t total_bytes() const;
  // A line for the limit, for each row and for the sum.
  std::vector<std::string> table() const;
};

// REQUIRES: choose_sizes(options, limit).
MemoryPlan plan_memory(const ServerOptions& options, const MemoryLimit& limit,
                       const LoadedModels& models);

}  // namespace lintel
