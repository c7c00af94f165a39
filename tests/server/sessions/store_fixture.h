// SPDX-License-Identifier: Apache-2.0
// A store of sessions on a clock of its own, and a model for them.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "server/sessions/session_manager.h"
#include "tests/server/support/harness.h"
#include "tests/support/catch.h"

namespace lintel::testing {

struct StoreFixture {
  explicit StoreFixture(SessionManager::Options options) : store(options, clock) {}
  std::string create() {
    const auto created = store.create("tiny", model, 0);
    REQUIRE(created.refusal.error == SessionError::kNone);
    return created.info.id;
  }

  std::shared_ptr<const Transformer> model = tiny_model(TinyModel::kImage);
  const std::size_t bytes_each = SessionManager::admitted_bytes(*model, 29);  // of one-shot calls
  const std::size_t session_bytes = SessionManager::session_bytes(*model, {});
  ManualClock clock;
  SessionManager store;
};

// Lets the sequence read tokens 0, 1, ...
inline void feed(const Transformer& model, SequenceState& sequence, int count) {
  Workspace workspace = model.new_workspace(1);
  for (int i = 0; i < count; ++i) {
    const BatchRow row{i, &sequence, false};
    model.step(std::span(&row, 1), workspace);
  }
}

}  // namespace lintel::testing
