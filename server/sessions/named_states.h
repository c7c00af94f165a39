// SPDX-License-Identifier: Apache-2.0
// NamedStates: what sessions had seen, kept under names, for sessions and calls to begin with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/core/mutex.h"
#include "server/sessions/session_history.h"
#include "server/sessions/session_memory.h"

namespace lintel {

// Constant. Zeroed and freed with its last reference.
struct NamedState {
  NamedState(SessionMemory::Reservation admitted, SessionImage of)
      : memory(std::move(admitted)), image(std::move(of)) {}
  ~NamedState();

  const SessionMemory::Reservation memory;  // first: until the state is zeroed and freed
  std::string name;
  bool is_public = false;
  std::string model_identity;            // of the weights and their types
  std::string numerics;                  // used to compute the state
  std::string numerics_text;             // the same for people
  std::int64_t numerics_changed_at = 0;  // others before this token; 0: none
  SessionImage image;                    // with as few tokens as its state allows
};

// Thread-safe. A name is private to its owner or public; an owner's own takes precedence.
class NamedStates {
 public:
  static constexpr std::size_t kMostOfOwner = 1000;  // the public ones count together

  using Shared = std::shared_ptr<const NamedState>;

  // Saves a state, replacing one with its name. False: the owner has kMostOfOwner already.
  bool save(const Owner& owner, Shared state) EXCLUDES(mutex_);
  // True if there is a place for a state of this name.
  bool has_place(const Owner& owner, const std::string& name, bool is_public) const
      EXCLUDES(mutex_);
  Shared find(const Owner& owner, const std::string& name) const EXCLUDES(mutex_);  // or null
  // Removes a state. False: there was none.
  bool remove(const Owner& owner, const std::string& name, bool is_public) EXCLUDES(mutex_);

  // States of an owner and public ones, by name, an owner's first; of all models if `model` is
  // empty. `after`: the last one of the previous page.
  struct Place {
    std::string name;
    bool is_public = false;
    auto operator<=>(const Place&) const = default;
  };
  std::vector<Shared> list(const Owner& owner, const std::string& model,
                           const std::optional<Place>& after, std::size_t limit) const
      EXCLUDES(mutex_);

 private:
  using ByName = std::map<std::string, Shared>;
  ByName& of(const Owner& owner, bool is_public) REQUIRES(mutex_) {
    return is_public ? public_ : owned_[owner];
  }

  mutable Mutex mutex_;
  std::map<Owner, ByName> owned_ GUARDED_BY(mutex_);
  ByName public_ GUARDED_BY(mutex_);
};

}  // namespace lintel
