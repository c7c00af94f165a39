// SPDX-License-Identifier: Apache-2.0
// The protocol by which replicas write one session into a shared store that may fail over to a copy
// that is behind, small enough that every order of events can be tried:
// server/sessions/storage/redis in a nutshell.
//
// Two replicas, a store with one copy that follows it, at most one failover. A lease may end at any
// moment, so a claim is always granted: no clock excludes a writer, only the check of each write
// does. Requests may arrive late, twice (a paused server reads both when it wakes), or not at all;
// answers may be lost; processes may forget all they know.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace lintel::testing {

struct ProtocolRules {
  // Conditions that a write must find in the store, all of them:
  bool counter = false;  // the number of the claim, counted up by the store
  bool nonce = false;    // the claim's random number
  bool length = false;   // as many tokens as the writer believes
  bool digest = false;   // just the tokens that the writer believes
  bool waits = false;    // a write is acknowledged once the copy has it (WAIT 1)
};

struct ProtocolBounds {
  std::size_t tokens = 3;  // of a session
  int claims = 3;          // in all
  bool has_late_requests = false;
};

// A forbidden result of an order of events.
struct ProtocolFault {
  enum class Kind {
    kForeignWrite,  // a write was accepted upon tokens that its writer does not know of: two lines
                    // in one, or a hole
    kGone,          // a token that was acknowledged is not in the store
  } kind{};
  std::vector<std::string> trace;  // the events, for people
};

struct ProtocolSearch {
  std::size_t states = 0;
  std::optional<ProtocolFault> foreign_write, gone;  // a shortest trace of each
};

// Tries every order of events.
ProtocolSearch search_protocol(const ProtocolRules& rules, const ProtocolBounds& bounds = {});

}  // namespace lintel::testing
