// Sessions to measure with, made without a scheduler.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/transformer.h"
#include "server/core/clock.h"
#include "server/models/served_model.h"
#include "server/sessions/session_store.h"

namespace lintel::bench {

// A store, and a session in it that has seen as many values as a whole sequence of the model.
// One thread.
class MadeSession {
 public:
  MadeSession(std::shared_ptr<const Transformer> model, std::int64_t num_values);

  SessionStore& store() { return store_; }
  const std::string& id() const { return id_; }
  const ServedModel& model() const { return model_; }
  const std::vector<std::int32_t>& values() const { return values_; }

 private:
  const SteadyClock clock_;
  ServedModel model_;  // without a scheduler
  const std::vector<std::int32_t> values_;
  SessionStore store_;
  std::string id_;
};

}  // namespace lintel::bench
