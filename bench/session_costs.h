// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/measure.h"
#include "model/transformer.h"
#include "server/core/clock.h"
#include "server/models/model_registry.h"
#include "server/sessions/session_manager.h"

namespace lintel::bench {

// SessionFigure: one row of what sessions cost, with what it is to be held against.

struct SessionFigure {
  std::string name;  // for programs, e.g. "fork_us"
  std::string what;
  std::string unit;            // "us"
  Summary value;               // of the repeats
  std::optional<double> most;  // the promised bound; none: nothing was promised
  std::string beside;          // the machine's own speed of the same kind, measured next to it
  std::string others;          // figures of other systems, from their own reports or code
};

inline SessionFigure figure_of(std::string name, std::string what, std::string unit,
                               const std::vector<double>& repeats, std::optional<double> most = {},
                               std::string beside = "", std::string others = "") {
  return {std::move(name),   std::move(what),  std::move(unit), summarize(repeats), most,
          std::move(beside), std::move(others)};
}

inline double microseconds_of(const std::function<void()>& call) { return 1e6 * seconds_of(call); }

// The median of `count` calls.
inline double median_microseconds(int count, const std::function<void()>& call) {
  return repeat(count, [&] { return microseconds_of(call); }).median;
}

// Sessions to measure with, made without a scheduler.

// A store, and a session in it that has seen as many tokens as a whole sequence of the model.
// One thread.
class MadeSession {
 public:
  MadeSession(std::shared_ptr<const Transformer> model, std::int64_t num_tokens);

  SessionManager& store() { return store_; }
  const std::string& id() const { return id_; }
  const ServedModel& model() const { return model_; }
  const std::vector<std::int32_t>& tokens() const { return tokens_; }

 private:
  const SteadyClock clock_;
  ServedModel model_;  // without a scheduler
  const std::vector<std::int32_t> tokens_;
  SessionManager store_;
  std::string id_;
};

// Costs of calls about sessions, and of calls whose prompts came before, over gRPC, on loopback.

std::vector<SessionFigure> call_costs(const std::shared_ptr<const Transformer>& model,
                                      std::int64_t num_tokens, int repeats, int count);

// Prompts of num_tokens that differ in their last token alone: how many are read from their
// beginning, and what that costs.
std::vector<SessionFigure> prefix_costs(const std::shared_ptr<const Transformer>& model,
                                        std::int64_t num_tokens, int repeats);

// Memory of copies of a session: snapshots, forks, rewinds.

// Each repeat measures all of them, one after the other, `count` times each.
std::vector<SessionFigure> copy_costs(MadeSession& session, int repeats, int count);

// Costs of each level of durability for streams.

struct LevelPlan {
  std::filesystem::path directory;  // a store is made in it, and removed
  int workers = 1;
  int streams = 64;
  int repeats = 5;
  double seconds = 2;  // of each measurement
};

// Each repeat has the levels in turn, beginning with another each time. What one loses is against a
// server without a store that was measured just before or just after it.
std::vector<SessionFigure> level_costs(const std::shared_ptr<const Transformer>& model,
                                       const LevelPlan& plan);

// Costs of sessions on a disk: commits, states, and a store that is opened.

struct StoragePlan {
  std::filesystem::path directory;  // stores are made in it, and removed
  int sessions = 10'000;            // of the store that is opened
  int repeats = 5;
  int count = 100;  // of what a repeat measures
};

std::vector<SessionFigure> commit_costs(const StoragePlan& plan);
// States of the session's size, put, read and loaded from; and loaded from its tokens.
std::vector<SessionFigure> wake_costs(MadeSession& session, const StoragePlan& plan);
std::vector<SessionFigure> open_costs(const StoragePlan& plan);

}  // namespace lintel::bench
