// SPDX-License-Identifier: Apache-2.0
// StoredChatStates: states of conversations in session storage.
#pragma once

#include <atomic>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/engine/prefix_cache.h"
#include "server/models/model_registry.h"
#include "server/sessions/digest.h"
#include "server/sessions/persistence/persistent_sessions.h"
#include "server/sessions/storage/session_storage.h"

namespace lintel {

// A client that sends its whole history each turn has no session. The state at the boundary of its
// last turn is kept by the prefix cache; here it is written to session storage, too, as a session
// of its own whose history is the prompt's tokens up to the boundary. Such a session has no call,
// is not listed, and belongs to the same owner. The keys of all these sessions are in memory, so
// that a prompt is looked up without the storage.
//
// A state is found by its inputs: the owner's own tokens, the weights, the adapter, the type of KV
// caches and the numerics of the machine. Sequences that continue from it have the same bits. The
// last two turns of a conversation are stored.
//
// The keys of other servers on a shared storage are read every few seconds: only new ones, as ids
// begin with the time.
//
// Thread-safe. Functions marked "waits" wait for a disk: they run by PersistentSessions::run().
class StoredChatStates {
 public:
  struct Options {
    // True: all turns are stored, not only those of calls that ask for it.
    bool stores_all = false;
    // The time after the end of a turn until it is stored; earlier if memory is needed.
    std::chrono::seconds idle{60};
    std::chrono::seconds expire_after = std::chrono::hours(24);
  };
  struct Stats {
    std::uint64_t stored = 0, restored = 0;
    std::size_t keys = 0;
  };
  // The owner of a conversation, and the model and adapter that compute it.
  struct Reader {
    SharedModel model;
    SharedAdapter adapter;  // null: none
    Owner owner;
  };

  // All arguments outlive it. Waits: reads the keys in the storage.
  //
  // `sessions` may be made only afterwards: their threads, which use the object, do not outlive it.
  StoredChatStates(SessionStorage& storage, PersistentSessions& sessions, PrefixCache& prefixes,
                   const ModelRegistry& models, const Clock& clock, const Options& options);
  ~StoredChatStates();

  // Notes the end of a turn whose boundary is after these tokens. at_once: its state is stored now;
  // otherwise by the options, when it has been idle.
  void note_turn(const Reader& reader, std::span<const std::int32_t> tokens, bool at_once) noexcept;
  // True if a longer beginning of the prompt is stored than is in memory.
  bool has_more(const Reader& reader, std::span<const std::int32_t> prompt) noexcept;
  // Waits. Restores the longest stored beginning of the prompt to the prefix cache, if it can be
  // read.
  void restore(const Reader& reader, std::span<const std::int32_t> prompt) noexcept;

  // Queues the storing of turns that have been idle long enough, and the reading of other servers'
  // keys. Used by one thread.
  void look();
  // Waits. Before the process ends: stores the turns that wait to be idle, the last ones first, but
  // begins no more once `most` has passed. model: before it is unloaded, its turns alone.
  void store_all(Duration most, const Transformer* model = nullptr);

  const Options& options() const { return options_; }
  Stats stats() const;

 private:
  // A digest of the inputs of a state except its tokens.
  using PartKey = Digest;
  struct Stored {
    std::string id;
    std::chrono::system_clock::time_point expires;
  };
  struct Turn {
    PartKey part;
    std::weak_ptr<const ServedModel> model;
    std::weak_ptr<const ServedAdapter> adapter;
    bool has_adapter = false;
    Owner owner;
    std::vector<std::int32_t> tokens;
    TimePoint ended;
  };
  // A stored beginning of a prompt.
  struct Found {
    std::int64_t tokens = 0;
    std::string id;
  };

  static PartKey part_of(const Reader& reader);
  static PartKey part_of(const SessionStorage::Row& row, const std::string& adapter_fingerprint);
  // Waits. Reads keys of the rows after `after`, and advances it. Returns true if there may be
  // more. Used by one thread at a time.
  bool read_keys(std::string& after, std::size_t most) EXCLUDES(mutex_);
  void read_others() EXCLUDES(mutex_);
  // The stored beginnings of a prompt, ascending by length.
  std::vector<Found> find(const PartKey& part, std::span<const std::int32_t> prompt)
      EXCLUDES(mutex_);
  void forget(const PartKey& part, std::int64_t tokens, const std::string& id) EXCLUDES(mutex_);
  // Keys of states that have expired.
  void forget_expired() EXCLUDES(mutex_);
  // The reader of a turn; null: its model or adapter is gone.
  std::shared_ptr<const Reader> reader_of(const Turn& turn) const;
  // Waits. Stores the state of the prefix cache, if it is there.
  void store(const Turn& turn) noexcept;
  void store(const Reader& reader, std::span<const std::int32_t> tokens, const SavedState& state);
  void store_evicted(PrefixCache::EvictedTurn turn) noexcept;
  bool put(const Reader& reader, std::span<const std::int32_t> tokens,
           const SequenceState& sequence);

  SessionStorage& storage_;
  PersistentSessions& sessions_;
  PrefixCache& prefixes_;
  const ModelRegistry& models_;
  const Clock& clock_;
  const Options options_;

  std::atomic<std::uint64_t> stored_{0}, restored_{0};
  std::atomic<int> evicted_waiting_{0};

  mutable Mutex mutex_;
  // Stored states by the number of tokens, then by their digest.
  using OfPart = std::map<std::int64_t, std::map<Digest, Stored>>;
  std::map<PartKey, OfPart> keys_ GUARDED_BY(mutex_);
  std::size_t num_keys_ GUARDED_BY(mutex_) = 0;
  std::deque<Turn> idle_ GUARDED_BY(mutex_);  // the longest idle first
  TimePoint next_forget_, next_read_;         // used by look() only
  std::atomic<bool> is_reading_{false}, has_more_{false};
  // Used by the work that reads, one at a time.
  std::string read_until_;   // the last id
  std::int64_t newest_ = 0;  // of the ids, in milliseconds since 1970
};

}  // namespace lintel
