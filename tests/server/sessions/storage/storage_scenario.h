// SPDX-License-Identifier: Apache-2.0
// Random operations on a few sessions of a storage, beside a plain model of what they leave.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>

#include "tests/server/sessions/storage/storage_calls.h"

namespace lintel::testing {

// The expected contents of a storage, by id.
using Sessions = std::map<std::string, Client>;

// The errors in the sessions, in their states, and in what is listed; empty: none. A state may be
// refused (`states_may_be_lost`), but never be another one, nor the one at which a history begins.
// All claims of the storage are released.
std::string difference(SessionStorage& storage, const Sessions& sessions, bool states_may_be_lost);

// The same seed makes the same steps, as long as all are done.
class Scenario {
 public:
  explicit Scenario(std::uint64_t seed) : random_(seed) {}

  // One commit. Where it is not kDone the model is as before.
  SessionError step(SessionStorage& storage);
  // The storage was closed: no session is held.
  void closed() { held_.clear(); }
  // Releases what it holds.
  SessionError release(SessionStorage& storage);
  const Sessions& sessions() const { return sessions_; }
  // The sessions if the last step that was not done took effect all the same.
  const Sessions& attempted() const { return attempted_; }

 private:
  std::int64_t below(std::uint64_t n) { return static_cast<std::int64_t>(random_() % n); }
  void create(Writes& writes);
  void change(SessionStorage& storage, Client& session, Writes& writes);

  std::mt19937_64 random_;
  Sessions sessions_, attempted_;
  std::set<std::string> held_;
  int made_ = 0;
};

}  // namespace lintel::testing
