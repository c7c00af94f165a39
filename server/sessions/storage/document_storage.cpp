// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/storage/document_storage.h"

#include <algorithm>
#include <utility>

#include "server/core/random_bytes.h"

namespace lintel {

MemoryDocuments::MemoryDocuments(std::size_t most_bytes, const Clock& clock,
                                 std::uint64_t owner_bytes)
    : most_bytes_(most_bytes), owner_bytes_(owner_bytes), clock_(clock) {
  fill_with_random(secret_);
}

void MemoryDocuments::count(const Document& document, bool is_more) {
  const std::size_t bytes = document.body.size() + kDocumentBytes;
  std::size_t& of_owner = bytes_of_[document.owner];
  bytes_ = is_more ? bytes_ + bytes : bytes_ - bytes;
  of_owner = is_more ? of_owner + bytes : of_owner - bytes;
  if (of_owner == 0) bytes_of_.erase(document.owner);
}

SessionError MemoryDocuments::put(Document& document) {
  const MutexLock lock(mutex_);
  const std::size_t bytes = document.body.size() + kDocumentBytes;
  if (bytes > most_bytes_) return SessionError::kStoreFull;
  auto found = documents_.find(document.id);
  const std::int64_t version = found == documents_.end() ? 0 : found->second.document.version;
  if (version != document.version) return SessionError::kFenced;
  if (version > 0) {
    Document& stored = found->second.document;
    if (stored.owner != document.owner) return SessionError::kFenced;
    count(stored, /*is_more=*/false);
    leaves_.erase({stored.expires, stored.id});
    document.is_hidden = stored.is_hidden;
  } else {
    const auto parent = documents_.find(document.parent);
    const bool has_parent = parent != documents_.end() &&
                            parent->second.document.owner == document.owner &&
                            !parent->second.document.is_hidden;
    if (!document.parent.empty() && !has_parent) return SessionError::kNotFound;
    const auto of_owner = bytes_of_.find(document.owner);
    const std::size_t now = of_owner == bytes_of_.end() ? 0 : of_owner->second;
    if (owner_bytes_ > 0 && now + bytes > owner_bytes_) return SessionError::kOwnerOutOfMemory;
    if (has_parent) {
      ++parent->second.children;
      leaves_.erase({parent->second.document.expires, parent->first});
    }
  }
  ++document.version;
  Stored& stored = documents_[document.id];
  stored.document = document;
  stored.document.runner.clear();
  count(document, /*is_more=*/true);
  if (document.runner.empty()) {
    unfinished_.erase(document.id);
  } else {
    unfinished_[document.id] = {document.id, document.owner, document.runner};
  }
  while (bytes_ > most_bytes_ && !leaves_.empty()) drop(documents_.find(leaves_.begin()->second));
  // Added only now: a new document is not the one that is removed.
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
    count(at->second.document, /*is_more=*/false);
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
