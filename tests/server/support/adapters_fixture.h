// SPDX-License-Identifier: Apache-2.0
// Adapters for tests that need no server.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "model/lora/adapter.h"
#include "server/sessions/adapter_table.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {

// A random adapter of a model with this configuration.
inline std::shared_ptr<const Adapter> random_adapter(const ModelConfig& config, std::uint64_t seed,
                                                     int rank = 2) {
  const TemporaryDirectory directory;
  write_random_adapter(directory.path(), config, {.rank = rank, .seed = seed});
  return Adapter::load(AdapterFiles(directory.path(), config));
}
inline std::shared_ptr<const Adapter> random_adapter(TinyModel kind, std::uint64_t seed) {
  return random_adapter(tiny_config(kind), seed);
}

inline SharedAdapter served(const std::string& name, std::shared_ptr<const Adapter> weights) {
  auto adapter = std::make_shared<ServedAdapter>();
  adapter->name = name;
  adapter->weights = std::move(weights);
  return adapter;
}

}  // namespace lintel::testing
