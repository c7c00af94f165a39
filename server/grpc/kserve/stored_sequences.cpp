#include "server/grpc/kserve/stored_sequences.h"

#include <new>
#include <utility>
#include <vector>

#include "model/core/sha256.h"

namespace lintel {

std::string SequenceName::id_prefix() const {
  constexpr std::size_t kDigits = 32;
  Sha256 hash;
  for (const std::string& part : {owner, model, name}) {
    hash.add_length(part.size());
    hash.add(part);
  }
  return hash.hex().substr(0, kDigits);
}

std::optional<std::string> StoredSequences::next(const SequenceName& name,
                                                 const std::string& after) const {
  const std::vector<SessionInfo> found =
      context_.durable->list(name.model, after, /*limit=*/1, name.owner);
  if (found.empty() || !found.front().id.starts_with(name.id_prefix())) return std::nullopt;
  return found.front().id;
}

std::optional<std::string> StoredSequences::find(const SequenceName& name) {
  try_again();
  std::optional<std::string> id = next(name, name.id_prefix());
  while (id && has_ended(*id)) id = next(name, *id);
  return id;
}

SessionRefusal StoredSequences::remove(const SequenceName& name) {
  std::string after = name.id_prefix();
  while (const auto id = next(name, after)) {
    after = *id;
    const SessionRefusal refusal = context_.durable->remove(*id, name.owner);
    if (refusal && refusal.error != SessionError::kNotFound) return refusal;
    MutexLock lock(mutex_);
    ended_.erase(*id);
  }
  return {};
}

void StoredSequences::end(const Owner& owner, const std::string& id) noexcept {
  try {
    {
      MutexLock lock(mutex_);
      ended_[id].owner = owner;
    }
    remove_later(id, owner);
  } catch (const std::bad_alloc&) {  // then it goes when it has not been used for long enough
  }
}

bool StoredSequences::has_ended(const std::string& id) const {
  MutexLock lock(mutex_);
  return ended_.contains(id);
}

void StoredSequences::remove_later(const std::string& id, const Owner& owner) {
  {
    MutexLock lock(mutex_);
    const auto found = ended_.find(id);
    if (found == ended_.end() || std::exchange(found->second.is_queued, true)) return;
  }
  context_.calls.hold();  // the server does not go before it
  const bool queued = context_.durable->run([this, id, owner] {
    const SessionRefusal refusal = context_.durable->remove(id, owner);
    {
      MutexLock lock(mutex_);
      const bool is_gone = !refusal || refusal.error == SessionError::kNotFound;
      const auto found = ended_.find(id);
      if (found != ended_.end()) found->second.is_queued = false;
      if (found != ended_.end() && is_gone) ended_.erase(found);
    }
    context_.calls.release();
  });
  if (queued) return;
  context_.calls.release();
  MutexLock lock(mutex_);
  const auto found = ended_.find(id);
  if (found != ended_.end()) found->second.is_queued = false;
}

void StoredSequences::try_again() {
  std::vector<std::pair<std::string, Owner>> waiting;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, ended] : ended_) {
      if (!ended.is_queued) waiting.emplace_back(id, ended.owner);
    }
  }
  for (const auto& [id, owner] : waiting) remove_later(id, owner);
}

}  // namespace lintel
