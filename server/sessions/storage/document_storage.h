// SPDX-License-Identifier: Apache-2.0
// DocumentStorage: chains of documents that, like sessions, outlive their calls and the process.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/sessions/session_error.h"

namespace lintel {

// An element of a chain, e.g. a turn of a conversation. Several documents may continue the same
// one.
struct Document {
  std::string id;      // 1 to 128 bytes; random digits, so that it cannot be guessed
  std::string owner;   // an identity's name
  std::string parent;  // of the same owner; empty: it continues none
  std::string body;
  std::int64_t version = 0;  // of its writes; 0: it is not stored yet
  bool is_hidden = false;    // removed, but others continue it
  std::chrono::system_clock::time_point expires;
  // Set for put(), not by find(): the process that will store a later version; empty: none.
  std::string runner;

  bool operator==(const Document&) const = default;
};

// Bytes that a document counts in addition to its body.
inline constexpr std::size_t kDocumentBytes = 512;

// A document lives until it has expired and nothing continues it, so that a chain lives from its
// last use. Thread-safe. If waits() is true, all other functions wait for a disk or a network:
// never call them on a worker or a gRPC thread.
class DocumentStorage {
 public:
  using Time = std::chrono::system_clock::time_point;
  using Secret = std::array<std::byte, 32>;

  virtual ~DocumentStorage() = default;
  virtual bool waits() const = 0;
  // True if other processes write to it, too.
  virtual bool is_shared() const { return false; }

  // Stores a document over its version `document.version`, and increments that; the parent of a new
  // one lives as long. Durable when it returns kNone. kFenced: the stored version differs, or there
  // is none; kNotFound: the parent of a new one is missing or hidden; kOwnerOutOfMemory: a new one
  // would take its owner's documents, including hidden ones that are continued, beyond their bytes;
  // kStore...
  virtual SessionError put(Document& document) = 0;
  // Finds a document, hidden or not. keep_until: it lives at least so long, as it will be
  // continued. kNotFound also for another owner's; kDamaged, kStore...
  virtual SessionError find(const std::string& id, const std::string& owner,
                            std::optional<Time> keep_until, Document& found) = 0;
  // Hides a document at once; it is removed when nothing continues it. kNotFound also for a hidden
  // one.
  virtual SessionError remove(const std::string& id, const std::string& owner) = 0;
  // Removes at most `most` expired documents. Returns how many.
  virtual std::size_t sweep(std::size_t most) = 0;

  // A document that was stored with a runner, and not without one since.
  struct Unfinished {
    std::string id, owner, runner;

    bool operator==(const Unfinished&) const = default;
  };
  // At most `most` of them, the next ones at the next call, in rounds. Some may be finished, or
  // gone: settle().
  virtual std::vector<Unfinished> unfinished(std::size_t most) = 0;
  // Notes that a document has no runner any more.
  virtual void settle(const std::string& id) = 0;

  // The state of the storage; as SessionStorage::Health.
  struct Health {
    enum class State { kOk, kFull, kBroken } state = State::kOk;
    std::string why;  // in words, unless kOk
    bool operator==(const Health&) const = default;
  };
  virtual Health health() const { return {}; }

  // Random bytes of this storage, made once.
  virtual SessionError secret(Secret& secret) = 0;

  // Notes that a process that writes documents is alive, for others; called every few seconds.
  virtual void note_alive(const std::string& process) = 0;
  // The time when a process was last alive; nothing: not within a day.
  virtual std::optional<Time> last_seen(const std::string& process) = 0;
};

// Documents in this process's memory, within bounds: beyond them the document that expires first
// and that nothing continues is removed.
class MemoryDocuments : public DocumentStorage {
 public:
  // most_bytes: bound of all documents; owner_bytes: bound of each owner's, 0: none. `clock`
  // outlives it.
  MemoryDocuments(std::size_t most_bytes, const Clock& clock, std::uint64_t owner_bytes = 0);

  bool waits() const override { return false; }
  SessionError put(Document& document) override EXCLUDES(mutex_);
  SessionError find(const std::string& id, const std::string& owner, std::optional<Time> keep_until,
                    Document& found) override EXCLUDES(mutex_);
  SessionError remove(const std::string& id, const std::string& owner) override EXCLUDES(mutex_);
  std::size_t sweep(std::size_t most) override EXCLUDES(mutex_);
  std::vector<Unfinished> unfinished(std::size_t most) override EXCLUDES(mutex_);
  void settle(const std::string& id) override EXCLUDES(mutex_);
  SessionError secret(Secret& secret) override;
  void note_alive(const std::string& process) override EXCLUDES(mutex_);
  std::optional<Time> last_seen(const std::string& process) override EXCLUDES(mutex_);

 private:
  struct Stored {
    Document document;
    std::size_t children = 0;
  };
  using Documents = std::map<std::string, Stored>;

  // Removes a document, and hidden ones that only this one continued.
  void drop(Documents::iterator at) REQUIRES(mutex_);
  void count(const Document& document, bool is_more) REQUIRES(mutex_);

  const std::size_t most_bytes_;
  const std::uint64_t owner_bytes_;
  const Clock& clock_;
  Secret secret_{};
  mutable Mutex mutex_;
  Documents documents_ GUARDED_BY(mutex_);
  std::set<std::pair<Time, std::string>> leaves_ GUARDED_BY(mutex_);  // not continued
  std::size_t bytes_ GUARDED_BY(mutex_) = 0;
  std::map<std::string, std::size_t> bytes_of_ GUARDED_BY(mutex_);   // by owner
  std::map<std::string, Unfinished> unfinished_ GUARDED_BY(mutex_);  // by id
  std::string listed_until_ GUARDED_BY(mutex_);                      // in this round
  std::map<std::string, Time> processes_ GUARDED_BY(mutex_);
};

}  // namespace lintel
