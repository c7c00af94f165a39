// SPDX-License-Identifier: Apache-2.0
// WritingSessions: sessions that are written without end, and held against what was acknowledged.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/server/sessions/storage/redis_failures/tally.h"
#include "tests/server/sessions/storage/storage_calls.h"

namespace lintel::testing {

// One session after the other, each claimed at one of the storages, written, released, and claimed
// again: then it has to be as it was acknowledged, or as one of the writes of unknown outcome left
// it. One thread.
class WritingSessions {
 public:
  WritingSessions(int number, std::uint64_t seed, std::vector<SessionStorage*> storages,
                  Tally& tally);

  void run(const std::atomic<bool>& over);
  // All that was written is there, in each storage's eyes. REQUIRES: nothing fails any more.
  void check_all();

 private:
  using SteadyTime = std::chrono::steady_clock::time_point;

  void begin_next();
  bool create();
  bool open(SessionStorage& storage);
  // Releases a refused session, too: until then the storage takes it for held.
  SessionError give_back(SessionStorage& storage, Client session);
  // Confirms a loss by a write: until one is acknowledged, a former master may have answered. A
  // claim waits for no replica, and a write on a stale master is refused.
  void confirm_loss(SessionStorage& storage, const SessionStorage::Opened& opened);
  // Compares the values from a little before `position` on.
  void compare_values(SessionStorage& storage, std::int64_t position);
  // Until it is acknowledged; false: the claim is lost, or to continue is useless.
  bool write(SessionStorage& storage, bool is_end);
  bool is_stuck(const std::string& what);
  std::int32_t value_at(std::int64_t position) const;
  std::string name() const { return known_.row.id; }

  const int number_;
  std::minstd_rand random_;
  const std::vector<SessionStorage*> storages_;
  Tally& tally_;
  const std::atomic<bool>* over_ = nullptr;

  int made_ = 0;
  bool is_created_ = false;
  Client known_;                             // as it was acknowledged
  std::vector<Client> maybe_;                // as writes of unknown outcome leave it
  std::set<std::vector<std::byte>> passed_;  // digests of all that was acknowledged
  std::vector<Client> finished_;
  SteadyTime progress_;
};

}  // namespace lintel::testing
