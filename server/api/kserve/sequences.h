// SPDX-License-Identifier: Apache-2.0
// ClientSequences: the Open Inference Protocol's sequences, each a session under a name of its
// owner's.
#pragma once

#include <grpcpp/support/status.h>

#include <compare>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "server/api/kserve/request.h"
#include "server/api/prepare_generation.h"
#include "server/api/service_context.h"
#include "server/core/mutex.h"

namespace lintel {

// StoredSequences: sequences that outlive the server, found by their names in the session store.

// The name of a sequence, which is unique for its owner and model.
struct SequenceName {
  Owner owner;
  std::string model, name;
  auto operator<=>(const SequenceName&) const = default;

  // The beginning of the ids of sessions of this name, 32 hexadecimal digits, by which the store's
  // order of ids finds them: the first half of a SHA-256, which no two names share.
  std::string id_prefix() const;
};

// Thread-safe. Functions marked "waits" wait for the store. REQUIRES: there is a store.
class StoredSequences {
 public:
  // The objects that the context refers to outlive this one.
  explicit StoredSequences(const ServiceContext& context) : context_(context) {}

  // One at a time of those who look for a name or start its sequence: a start holds its prefix
  // until the new session is kept.
  KeyedMutex& starts() { return starts_; }
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
  KeyedMutex starts_;
  struct Ended {
    Owner owner;
    bool is_queued = false;
  };
  mutable Mutex mutex_;
  std::map<std::string, Ended> ended_ GUARDED_BY(mutex_);  // by id; not removed yet
};

// The sessions that the names of sequences stand for. Thread-safe.
class SequenceNames {
 public:
  // The store outlives the object.
  explicit SequenceNames(const SessionManager& store) : store_(store) {}

  // Returns the session the name stood for before.
  std::optional<std::string> put(const SequenceName& name, const std::string& session_id)
      EXCLUDES(mutex_);
  std::optional<std::string> find(const SequenceName& name) const EXCLUDES(mutex_);
  // Forgets the name if it still stands for this session.
  void forget(const SequenceName& name, const std::string& session_id) noexcept EXCLUDES(mutex_);
  std::size_t size() const EXCLUDES(mutex_);

 private:
  // Names of sessions that were evicted go when there are twice as many as after the last time.
  void forget_evicted() REQUIRES(mutex_);

  const SessionManager& store_;
  mutable Mutex mutex_;
  std::map<SequenceName, std::string> ids_ GUARDED_BY(mutex_);
  std::size_t next_cleaning_ GUARDED_BY(mutex_) = 64;
};

// The session of a call that names a sequence.
struct ClientSequence : SequenceName {
  std::string session_id;  // empty: no sequence
  bool is_new = false;
  bool ends = false;
  bool is_stored = false;  // it outlives the server
};

// Thread-safe.
class ClientSequences {
 public:
  explicit ClientSequences(const ServiceContext& context)
      : context_(context), names_(context.sessions), stored_(context) {}

  // Leases the sequence that the request continues or starts. `target`: the model that it names,
  // and then what it runs on; a sequence continues with the version that it began with. Without a
  // sequence in the request nothing happens. Waits where there is a store.
  grpc::Status find(const Owner& owner, const TensorRequest& request, GenerationTarget& target,
                    ClientSequence& sequence);
  void end(const ClientSequence& sequence) noexcept;
  // The request that used it is over. A start that came to nothing leaves nothing. A stored
  // sequence ends with a request that ended well only: one that was cut off may be repeated.
  void end_if_last(const ClientSequence& sequence, bool ended_well = true) noexcept;

 private:
  // The session that the name stands for, and whether it is a stored one.
  std::optional<std::string> id_of(ClientSequence& sequence);
  grpc::Status resume(const std::string& id, GenerationTarget& target, ClientSequence& sequence);
  grpc::Status start(const TensorRequest& request, GenerationTarget& target,
                     ClientSequence& sequence);
  // Ends the sequence that had the name, and makes the new one. Fails if a call has the old one.
  grpc::Status start_new(const std::string& adapter, SessionOptions options,
                         GenerationTarget& target, ClientSequence& sequence);
  // True if its start was refused or ended before a token was read.
  bool never_began(const ClientSequence& sequence) const;

  const ServiceContext context_;
  SequenceNames names_;  // of those that are in memory alone
  StoredSequences stored_;
};

}  // namespace lintel
