// SessionRecord: what the store keeps of a session, or of a one-shot call.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "model/network/transformer.h"
#include "server/adapters/served_adapter.h"
#include "server/base/clock.h"
#include "server/history/value_log.h"
#include "server/sessions/session_memory.h"

namespace lintel {

// Guarded by the store's mutex, but for `sequence` and `of_call`, which belong to the lease while
// there is one, and what never changes.
struct SessionRecord {
  explicit SessionRecord(SessionMemory::Reservation admitted) : reservation(std::move(admitted)) {}

  const SessionMemory::Reservation reservation;       // first: until the state is zeroed and freed
  std::optional<SessionMemory::Reservation> of_call;  // what the call holds beside the sequence
  std::string id;                                     // empty: one-shot
  std::string model_name;
  // Before `sequence`, which refers to them.
  std::shared_ptr<const Transformer> model;
  SharedAdapter adapter;  // null: none
  std::optional<SequenceState> sequence;
  std::int64_t max_values = 0;
  ValueLog* log = nullptr;  // as `sequence`

  // Its node in the store's order of last use, or while it is leased the only one in `aside`: it
  // changes places without asking for memory.
  std::list<SessionRecord*> aside{this};
  std::list<SessionRecord*>::iterator node = aside.begin();

  bool busy = false;
  bool discarded = false;       // by its lease
  bool unloaded = false;        // its model went while it was busy
  bool removed = false;         // somebody was done with it while it was busy
  std::int64_t num_values = 0;  // as of the last time the session was idle
  bool has_pending = false;
  TimePoint last_used;
  std::chrono::system_clock::time_point created_at;
  std::chrono::system_clock::time_point last_used_at;
};

}  // namespace lintel
