// SequenceNames: names that clients of the Open Inference Protocol give to sequences, and the
// sessions they stand for.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "server/base/mutex.h"
#include "server/sessions/session_store.h"

namespace lintel {

// A name belongs to an owner and a model. Thread-safe.
class SequenceNames {
 public:
  // The store outlives the object.
  explicit SequenceNames(const SessionStore& store) : store_(store) {}

  // Returns the session the name stood for before.
  std::optional<std::string> put(const Owner& owner, const std::string& model,
                                 const std::string& name, const std::string& session_id)
      EXCLUDES(mutex_);
  std::optional<std::string> find(const Owner& owner, const std::string& model,
                                  const std::string& name) const EXCLUDES(mutex_);
  // Forgets the name if it still stands for this session.
  void forget(const Owner& owner, const std::string& model, const std::string& name,
              const std::string& session_id) noexcept EXCLUDES(mutex_);
  std::size_t size() const EXCLUDES(mutex_);

 private:
  using Key = std::tuple<Owner, std::string, std::string>;  // model, name
  // Names of sessions that were evicted go when there are twice as many as after the last time.
  void forget_evicted() REQUIRES(mutex_);

  const SessionStore& store_;
  mutable Mutex mutex_;
  std::map<Key, std::string, std::less<>> ids_ GUARDED_BY(mutex_);
  std::size_t next_cleaning_ GUARDED_BY(mutex_) = 64;
};

}  // namespace lintel
