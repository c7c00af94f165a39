// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/storage/document_storage.h"

#include <algorithm>
#include <utility>

#include "server/core/random_bytes.h"

namespace lintel {
namespace {

constexpr std::size_t kBytesOfOne = 512;  // what one takes besides its body

}  // namespace

MemoryDocuments::MemoryDocuments(std::size_t most_bytes, const Clock& clock)
    : most_bytes_(most_bytes), clock_(clock) {
  fill_with_random(secret_);
}

SessionError MemoryDocuments::put(Document& document) {
  const MutexLock lock(mutex_);
  const std::size_t bytes = document.body.size() + kBytesOfOne;
  if (bytes > most_bytes_) return SessionError::kStoreFull;
  auto found = documents_.find(document.id);
  const std::int64_t version = found == documents_.end() ? 0 : found->second.document.version;
  if (version != document.version) return SessionError::kFenced;
  if (version > 0) {
    Document& stored = found->second.document;
    if (stored.owner != document.owner) return SessionError::kFenced;
    bytes_ -= stored.body.size() + kBytesOfOne;
    leaves_.erase({stored.expires, stored.id});
    document.is_hidden = stored.is_hidden;
  } else if (!document.parent.empty()) {
    const auto parent = documents_.find(document.parent);
    if (parent == documents_.end() || parent->second.document.owner != document.owner ||
        parent->second.document.is_hidden) {
      return SessionError::kNotFound;
    }
    ++parent->second.children;
    leaves_.erase({parent->second.document.expires, parent->first});
  }
  ++document.version;
  Stored& stored = documents_[document.id];
  stored.document = document;
  stored.document.runner.clear();
  bytes_ += bytes;
  if (document.runner.empty()) {
    unfinished_.erase(document.id);
  } else {
    unfinished_[document.id] = {document.id, document.owner, document.runner};
  }
  while (bytes_ > most_bytes_ && !leaves_.empty()) drop(documents_.find(leaves_.begin()->second));
  // Not before: it is not the one that goes.
  if (stored.children == 0) leaves_.insert({document.expires, document.id});
  return SessionError::kNone;
}

SessionError MemoryDocuments::find(const std::string& id, const std::string& owner,
                                   std::optional<Time>, Document& found) {
  const MutexLock lock(mutex_);
  const auto at = documents_.find(id);
  if (at == documents_.end() || at->second.document.owner != owner) return SessionError::kNotFound;
  const bool has_expired = at->second.document.expires <= clock_.wall_time();
  if (has_expired && at->second.children == 0) return SessionError::kNotFound;
  found = at->second.document;
  return SessionError::kNone;
}

SessionError MemoryDocuments::remove(const std::string& id, const std::string& owner) {
  const MutexLock lock(mutex_);
  const auto at = documents_.find(id);
  if (at == documents_.end() || at->second.document.owner != owner ||
      at->second.document.is_hidden) {
    return SessionError::kNotFound;
  }
  at->second.document.is_hidden = true;
  if (at->second.children == 0) drop(at);
  return SessionError::kNone;
}

void MemoryDocuments::drop(Documents::iterator at) {
  while (at != documents_.end()) {
    const std::string parent = at->second.document.parent;
    bytes_ -= at->second.document.body.size() + kBytesOfOne;
    leaves_.erase({at->second.document.expires, at->first});
    unfinished_.erase(at->first);
    documents_.erase(at);
    at = documents_.find(parent);
    if (at == documents_.end() || --at->second.children > 0) break;
    leaves_.insert({at->second.document.expires, at->first});
    if (!at->second.document.is_hidden) break;
  }
}

std::size_t MemoryDocuments::sweep(std::size_t most) {
  const MutexLock lock(mutex_);
  std::size_t removed = 0;
  for (; removed < most && !leaves_.empty(); ++removed) {
    const auto& [expires, id] = *leaves_.begin();
    if (expires > clock_.wall_time()) break;
    drop(documents_.find(id));
  }
  return removed;
}

std::vector<DocumentStorage::Unfinished> MemoryDocuments::unfinished(std::size_t most) {
  const MutexLock lock(mutex_);
  std::vector<Unfinished> found;
  for (auto at = unfinished_.upper_bound(listed_until_);
       at != unfinished_.end() && found.size() < most; ++at) {
    found.push_back(at->second);
  }
  listed_until_ = found.size() < most ? "" : found.back().id;
  return found;
}

void MemoryDocuments::settle(const std::string& id) {
  const MutexLock lock(mutex_);
  unfinished_.erase(id);
}

SessionError MemoryDocuments::secret(Secret& secret) {
  secret = secret_;
  return SessionError::kNone;
}

void MemoryDocuments::note_alive(const std::string& process) {
  const MutexLock lock(mutex_);
  processes_[process] = clock_.wall_time();
}

std::optional<DocumentStorage::Time> MemoryDocuments::last_seen(const std::string& process) {
  const MutexLock lock(mutex_);
  const auto found = processes_.find(process);
  if (found == processes_.end()) return std::nullopt;
  return found->second;
}

}  // namespace lintel
