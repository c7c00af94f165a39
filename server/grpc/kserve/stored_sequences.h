// StoredSequences: sequences that outlive the server, found by their names in the session store.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "server/api/service_context.h"
#include "server/core/mutex.h"
#include "server/sessions/persistence/id_locks.h"

namespace lintel {

// What a sequence is called: a name is its owner's, and its model's.
struct SequenceName {
  Owner owner;
  std::string model, name;

  // What ids of sessions of this name begin with, 32 hexadecimal digits, so that the store's order
  // of ids finds them: the beginning of a SHA-256, which no two names have in common.
  std::string id_prefix() const;
};

// Thread-safe. What is marked "waits" waits for the store. REQUIRES: there is a store.
class StoredSequences {
 public:
  // What the context refers to outlives the object.
  explicit StoredSequences(const ServiceContext& context) : context_(context) {}

  // One at a time of those who look for a name or start its sequence: a start holds its prefix
  // until the new session is kept.
  IdLocks& starts() { return starts_; }
  // Waits. The session's id; nothing: no stored sequence has this name. REQUIRES: held.
  std::optional<std::string> find(const SequenceName& name) EXCLUDES(mutex_);
  // Waits. Removes the sequence of this name, if there is one; kBusy: a call has it. REQUIRES:
  // held.
  SessionRefusal remove(const SequenceName& name) EXCLUDES(mutex_);

  // The sequence is over and is no longer found. A thread of the store removes it.
  void end(const Owner& owner, const std::string& id) noexcept EXCLUDES(mutex_);

 private:
  // The first session of the name after `after`.
  std::optional<std::string> next(const SequenceName& name, const std::string& after) const;
  bool has_ended(const std::string& id) const EXCLUDES(mutex_);
  // Queues the removal of one that has ended; where there is no place it stays to be tried again.
  void remove_later(const std::string& id, const Owner& owner) EXCLUDES(mutex_);
  void try_again() EXCLUDES(mutex_);

  const ServiceContext context_;
  IdLocks starts_;
  struct Ended {
    Owner owner;
    bool is_queued = false;
  };
  mutable Mutex mutex_;
  std::map<std::string, Ended> ended_ GUARDED_BY(mutex_);  // by id; not removed yet
};

}  // namespace lintel
