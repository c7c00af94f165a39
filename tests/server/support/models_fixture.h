// SPDX-License-Identifier: Apache-2.0
// What tests of models share: a repository of tiny ones, and what loads and keeps them.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "server/models/model_loader.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {

// Two workers a model, and a repository that is empty at first.
struct ModelsFixture {
  ModelsFixture() {
    options.repository = directory.path();
    options.scheduling.workers = 2;
    options.drain_timeout_ms = std::chrono::minutes(10);
  }

  // Writes a model into the repository. Another seed is another model.
  void write(const std::string& path, std::uint64_t seed = 5) const {
    std::filesystem::create_directories((directory.path() / path).parent_path());
    write_random_model(directory.path() / path, tiny_config(TinyModel::kTokens), seed);
  }
  // A model that no repository has.
  std::shared_ptr<ServedModel> model(const std::string& name, std::int64_t version) const {
    if (!std::filesystem::exists(directory.path() / "unnamed")) write("unnamed");
    return ModelLoader(options, std::make_shared<ModelMemory>(0), clock)
        .serve(name, version, Transformer::load(directory.path() / "unnamed", {}));
  }

  const TemporaryDirectory directory;
  const SteadyClock clock;
  ModelOptions options;
  SessionManager::Options sessions{.session_memory_bytes = 1u << 30};
};

}  // namespace lintel::testing
