// LostClaims: claims on sessions whose release failed.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/core/mutex.h"
#include "server/sessions/session_memory.h"
#include "server/sessions/storage/session_vault.h"

namespace lintel {

// A full disk takes no write, not even the one that gives a session back. Thread-safe.
class LostClaims {
 public:
  void add(std::string id, Owner owner, const SessionVault::Claim& claim);
  // Gives one back that nothing was written under, without waiting; what fails is one of these. The
  // vault may answer when this is gone: then the lease ends it.
  void give_back(SessionVault& vault, const SessionVault::Row& row,
                 const SessionVault::Claim& claim);
  // Waits. Tries again to give them back.
  void give_back(SessionVault& vault);

 private:
  struct Lost {
    std::string id;
    Owner owner;
    SessionVault::Claim claim;
  };

  struct Book {
    Mutex mutex;
    std::vector<Lost> lost GUARDED_BY(mutex);

    void add(Lost claim) EXCLUDES(mutex) {
      MutexLock lock(mutex);
      lost.push_back(std::move(claim));
    }
  };

  const std::shared_ptr<Book> book_ = std::make_shared<Book>();
};

}  // namespace lintel
