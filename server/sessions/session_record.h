// SessionRecord: what the store keeps of a session, or of a one-shot call.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "model/transformer.h"
#include "server/core/clock.h"
#include "server/lora/served_adapter.h"
#include "server/sessions/checkpoints.h"
#include "server/sessions/lease_keeper.h"
#include "server/sessions/session_history.h"
#include "server/sessions/session_memory.h"
#include "server/sessions/session_options.h"

namespace lintel {

struct OwnersSessions;  // session_store.h

// Guarded by the store's mutex, but for `sequence`, `of_call` and `keeper`, which belong to the
// lease while there is one, `history` and `checkpoints`, which guard themselves, and what never
// changes.
//
// The history is the session; the sequence holds its first values, all of them but after a rewind,
// in a fork, or where a call ended while it read the others again.
struct SessionRecord {
  SessionRecord(SessionMemory::Reservation admitted, SessionOptions wanted)
      : reservation(std::move(admitted)),
        options(std::move(wanted)),
        checkpoints({options.checkpoint_every, options.checkpoint_keep}) {}

  const SessionMemory::Reservation reservation;       // first: until the state is zeroed and freed
  std::optional<SessionMemory::Reservation> of_call;  // what the call holds in addition
  std::string id;                                     // empty: one-shot
  std::string model_name;
  const SessionOptions options;  // `initial`: only where values before the history's base are in it
  // Before the sequences, which refer to them.
  std::shared_ptr<const Transformer> model;
  SharedAdapter adapter;  // null: none
  std::optional<SequenceState> sequence;
  std::unique_ptr<SessionHistory> history;  // null: one-shot
  Checkpoints checkpoints;
  std::int64_t max_values = 0;

  // Its node in the store's order of last use, or while it is leased the only one in `aside`: it
  // changes places without asking for memory.
  std::list<SessionRecord*> aside{this};
  std::list<SessionRecord*>::iterator node = aside.begin();
  // The same of its owner's order.
  OwnersSessions* of_owner = nullptr;  // while it is in the map
  std::list<SessionRecord*> owner_aside{this};
  std::list<SessionRecord*>::iterator owner_node = owner_aside.begin();

  std::shared_ptr<LeaseKeeper> keeper;  // who takes the lease when it ends; null: the store

  bool busy = false;
  bool stored = false;               // all of it is in a store, too, whenever it is idle
  bool discarded = false;            // by its lease
  bool unloaded = false;             // its model went while it was busy
  bool removed = false;              // a client deleted it while it was busy
  std::int64_t state_values = 0;     // of the sequence, as of the last time the session was idle
  std::int64_t values_at_lease = 0;  // the same when its lease began
  std::int64_t foreign_values = 0;   // its first values, of options.numerics
  TimePoint last_used;
  std::chrono::system_clock::time_point created_at;
  std::chrono::system_clock::time_point last_used_at;
};

}  // namespace lintel
