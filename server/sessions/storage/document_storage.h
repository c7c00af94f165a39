// SPDX-License-Identifier: Apache-2.0
// DocumentStorage: what outlives a call, and the process, besides sessions: chains of documents.
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

// One turn of a conversation, say, which continues another one. Several may continue the same.
struct Document {
  std::string id;      // 1 to 128 bytes; random digits, so that it cannot be guessed
  std::string owner;   // an identity's name
  std::string parent;  // of the same owner; empty: it continues none
  std::string body;
  std::int64_t version = 0;  // of its writes; 0: it is not stored yet
  bool is_hidden = false;    // removed, but others continue it
  std::chrono::system_clock::time_point expires;
  // Of put(), not of find(): the process that is to store it once more; empty: none.
  std::string runner;

  bool operator==(const Document&) const = default;
};

// What a document counts besides its body.
inline constexpr std::size_t kDocumentBytes = 512;

// A document lives until it has expired and nothing continues it, so that a chain lives from its
// last use. Thread-safe. Where waits() all but that wait for a disk or a network: never on a worker
// or a gRPC thread.
class DocumentStorage {
 public:
  using Time = std::chrono::system_clock::time_point;
  using Secret = std::array<std::byte, 32>;

  virtual ~DocumentStorage() = default;
  virtual bool waits() const = 0;
  // Whether other processes write to it, too.
  virtual bool is_shared() const { return false; }

  // Stores it over its version `document.version`, which is then the next one; a new one's parent
  // lives as long. Durable when it returns kNone. kFenced: another version stands there, or none;
  // kNotFound: a new one's parent is not there, or hidden; kOwnerOutOfMemory: a new one would take
  // its owner's documents, those that are hidden and continued too, beyond their bytes; kStore...
  virtual SessionError put(Document& document) = 0;
  // Hidden ones, too. keep_until: it lives so long at least, for it is to be continued. kNotFound
  // also of another owner's; kDamaged, kStore...
  virtual SessionError find(const std::string& id, const std::string& owner,
                            std::optional<Time> keep_until, Document& found) = 0;
  // Hides it at once; it goes when nothing continues it. kNotFound also of a hidden one.
  virtual SessionError remove(const std::string& id, const std::string& owner) = 0;
  // Removes what has expired, at most so many. Returns how many.
  virtual std::size_t sweep(std::size_t most) = 0;

  // A document that was stored with a runner, and not without one since.
  struct Unfinished {
    std::string id, owner, runner;

    bool operator==(const Unfinished&) const = default;
  };
  // At most so many, others at the next call: a round of all. Some may be over, or gone: settle().
  virtual std::vector<Unfinished> unfinished(std::size_t most) = 0;
  // It has no runner any more.
  virtual void settle(const std::string& id) = 0;

  // Whether it takes what is new; as SessionStorage::Health.
  struct Health {
    enum class State { kOk, kFull, kBroken } state = State::kOk;
    std::string why;  // in words, unless kOk
    bool operator==(const Health&) const = default;
  };
  virtual Health health() const { return {}; }

  // Bytes that are this storage's alone, made once.
  virtual SessionError secret(Secret& secret) = 0;

  // A process that writes documents, as others know it. note_alive() says that it is there; called
  // every few seconds.
  virtual void note_alive(const std::string& process) = 0;
  // When a process was last known to be there; nothing: not within a day.
  virtual std::optional<Time> last_seen(const std::string& process) = 0;
};

// In this process's memory, within bounds: beyond them the one goes that expires first and that
// nothing continues.
class MemoryDocuments : public DocumentStorage {
 public:
  // most_bytes: of all; owner_bytes: of each owner's, 0: any number. `clock` outlives it.
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

  // With hidden ones that only this one continued.
  void drop(Documents::iterator at) REQUIRES(mutex_);
  void count(const Document& document, bool is_more) REQUIRES(mutex_);

  const std::size_t most_bytes_;
  const std::uint64_t owner_bytes_;
  const Clock& clock_;
  Secret secret_{};
  mutable Mutex mutex_;
  Documents documents_ GUARDED_BY(mutex_);
  std::set<std::pair<Time, std::string>> leaves_ GUARDED_BY(mutex_);  // that nothing continues
  std::size_t bytes_ GUARDED_BY(mutex_) = 0;
  std::map<std::string, std::size_t> bytes_of_ GUARDED_BY(mutex_);   // by owner
  std::map<std::string, Unfinished> unfinished_ GUARDED_BY(mutex_);  // by id
  std::string listed_until_ GUARDED_BY(mutex_);                      // of them, in this round
  std::map<std::string, Time> processes_ GUARDED_BY(mutex_);
};

}  // namespace lintel
