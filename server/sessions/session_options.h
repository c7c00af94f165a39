// SPDX-License-Identifier: Apache-2.0
// SessionOptions: properties chosen when a session is created; SessionInfo: its current ones.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "server/sessions/session_history.h"

namespace lintel {

// Durability: the part of a session that outlives the process.

// Nothing; whole calls; calls in progress, whose tokens are drawn again; each token before it is
// sent.
enum class Durability : std::uint8_t { kNone, kCall, kInput, kToken };

class Transformer;

// Numerics of tokens whose machine is not known, and of a state that was converted from another KV
// type: no machine computes its bits.
inline constexpr const char* kUnknownNumerics = "unknown";

struct SessionOptions {
  std::int64_t max_tokens = 0;  // 0: the model's own limit
  // Tokens whose history is kept; 0, and at most: SessionManager::Options::history_tokens.
  std::int64_t history_tokens = 0;
  std::int64_t window = 0;  // tokens after which its state is rebuilt; 0: never
  // States to go back to: one every checkpoint_every tokens (0: only at the ends of calls), at most
  // checkpoint_keep in all (0: none).
  std::uint32_t checkpoint_every = 0;
  std::uint32_t checkpoint_keep = 0;
  // With a store: the part of it that outlives the process, and the time until it expires unused
  // (0: the store's default).
  Durability durability = Durability::kNone;
  std::chrono::seconds expire_after{0};
  // The numerics of its tokens when it was loaded, if they differ from this machine's; else empty.
  // kUnknownNumerics where its KV cache was converted. Tokens before numerics_changed_at have yet
  // others; 0: none have.
  std::string numerics;
  std::string numerics_text;  // the same for people; empty: not known
  std::int64_t numerics_changed_at = 0;
  // The beginning of its id, before the part that cannot be guessed: a session that has a name is
  // found by it in a store. Empty: none.
  std::string id_prefix;
  // The initial content; null: the session begins empty.
  std::shared_ptr<const SessionImage> initial;
};

// The properties of a stored session that is loaded, in addition to its image.
struct StoredSession {
  std::string id;
  SessionOptions options;  // without `initial`
  std::chrono::system_clock::time_point created, last_used;
};

// A call that was interrupted by the end of its process.
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
  std::int64_t num_tokens = 0;               // with the pending one; of a busy one, so far
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
  // The numerics of its last tokens (empty: this machine's), and of those before
  // numerics_changed_at (empty: not known); 0: there are none such.
  std::string numerics;
  std::string numerics_text;  // of either, for people
  std::string numerics_before;
  std::int64_t numerics_changed_at = 0;
  std::chrono::system_clock::time_point expires;  // of a durable one, if unused until then
  std::chrono::system_clock::time_point created;
  std::chrono::system_clock::time_point last_used;
};

}  // namespace lintel
