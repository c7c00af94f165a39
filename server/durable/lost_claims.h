// LostClaims: claims on sessions that could not be given back when it was time.
#pragma once

#include <string>
#include <vector>

#include "server/base/mutex.h"
#include "server/sessions/session_memory.h"
#include "server/vault/session_vault.h"

namespace lintel {

// A full disk takes no write, not even the one that gives a session back. Thread-safe.
class LostClaims {
 public:
  void add(std::string id, Owner owner, const SessionVault::Claim& claim) EXCLUDES(mutex_);
  // Gives one back that nothing was written under, without waiting; what fails is one of these.
  // REQUIRES: this outlives the vault's answers.
  void give_back(SessionVault& vault, const SessionVault::Row& row,
                 const SessionVault::Claim& claim) EXCLUDES(mutex_);
  // Waits. Tries again to give them back.
  void give_back(SessionVault& vault) EXCLUDES(mutex_);

 private:
  struct Lost {
    std::string id;
    Owner owner;
    SessionVault::Claim claim;
  };

  Mutex mutex_;
  std::vector<Lost> lost_ GUARDED_BY(mutex_);
};

}  // namespace lintel
