// SPDX-License-Identifier: Apache-2.0
// SessionOptions: what a session is to be; SessionInfo: what it is.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "server/sessions/session_history.h"

namespace lintel {

// Durability: what of a session outlives the process.

// Nothing; whole calls; calls in progress, whose tokens are drawn again; each token before it is
// sent.
enum class Durability : std::uint8_t { kNone, kCall, kInput, kToken };

class Transformer;

struct SessionOptions {
  std::int64_t max_tokens = 0;  // 0: the model's own limit
  // Tokens whose history is kept; 0, and at most: SessionManager::Options::history_tokens.
  std::int64_t history_tokens = 0;
  std::int64_t window = 0;  // tokens after which its state is rebuilt; 0: never
  // States to go back to: one every so many tokens (0: none but at the ends of calls), and so many
  // of them in all. keep 0: none.
  std::uint32_t checkpoint_every = 0;
  std::uint32_t checkpoint_keep = 0;
  // With a store: what of it outlives the process, and for how long where it is not used (0: as the
  // store's own option says).
  Durability durability = Durability::kNone;
  std::chrono::seconds expire_after{0};
  // That its tokens were computed with when it came into memory, where these are others than this
  // machine's; else empty. Those before numerics_changed_at with yet others; 0: there are none
  // such.
  std::string numerics;
  std::string numerics_text;  // the same for people; empty: not known
  std::int64_t numerics_changed_at = 0;
  // What its id begins with, before the part that cannot be guessed: a session that has a name is
  // found by it in a store. Empty: nothing.
  std::string id_prefix;
  // What it begins with; null: nothing was seen yet.
  std::shared_ptr<const SessionImage> initial;
};

// What a session that is loaded again has in addition to its image.
struct StoredSession {
  std::string id;
  SessionOptions options;  // without `initial`
  std::chrono::system_clock::time_point created, last_used;
};

// A call that the process did not live to end.
struct InterruptedCall {
  std::string call_id;
  std::int64_t start_position = 0;   // tokens before it
  std::int64_t stored_position = 0;  // tokens that are stored, those of the call included
};

struct SessionInfo {
  std::string id;
  std::string model;
  const Transformer* transformer = nullptr;  // to find the model by; not to be used
  std::string adapter;                       // empty: none
  std::int64_t num_tokens = 0;               // pending one included; of a busy one, by now
  std::int64_t oldest_position = 0;          // the lowest it can go back to
  std::string digest;                        // of its history, hexadecimal
  bool has_pending = false;
  bool busy = false;
  std::size_t state_bytes = 0;  // admitted
  std::int64_t max_tokens = 0;  // 0: unbounded
  std::int64_t window = 0;
  Durability durability = Durability::kNone;
  bool in_memory = true;  // else it is in the store alone, until a call needs it
  std::optional<InterruptedCall> interrupted;
  // That its last tokens were computed with (empty: this machine's), and those before
  // numerics_changed_at (empty: not known); 0: there are none such.
  std::string numerics;
  std::string numerics_text;  // of either, for people
  std::string numerics_before;
  std::int64_t numerics_changed_at = 0;
  std::chrono::system_clock::time_point expires;  // of a durable one: when unused until then
  std::chrono::system_clock::time_point created;
  std::chrono::system_clock::time_point last_used;
};

}  // namespace lintel
