// SPDX-License-Identifier: Apache-2.0
// SessionManager: all sessions in memory, and the memory that sequences may take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/transformer.h"
#include "server/core/clock.h"
#include "server/core/memory_limit.h"
#include "server/core/mutex.h"
#include "server/sessions/adapter_table.h"
#include "server/sessions/session.h"
#include "server/sessions/session_history.h"
#include "server/sessions/session_memory.h"
#include "server/sessions/session_options.h"

namespace lintel {

// ClosedSessions: ids of sessions that went with their models, so that their owners learn why.

// Remembers the last kMost. Not thread-safe: the store's mutex guards it.
class ClosedSessions {
 public:
  static constexpr std::size_t kMost = 10'000;

  // Remembers a session, unless there is no memory: then it is simply not found.
  void remember(const std::string& id, const Owner& owner) noexcept {
    try {
      if (order_.size() == kMost) {
        owners_.erase(order_.front());
        order_.pop_front();
      }
      order_.push_back(id);
      owners_.emplace(id, owner);
    } catch (const std::bad_alloc&) {
    }
  }

  // True if the owner had such a session.
  bool had(const std::string& id, const Owner& owner) const {
    const auto found = owners_.find(id);
    return found != owners_.end() && found->second == owner;
  }

 private:
  std::map<std::string, Owner> owners_;  // by id
  std::deque<std::string> order_;        // in which they are forgotten
};

// The number of an owner's sessions in the store, and its idle stored ones, last used last.
struct OwnersSessions {
  std::size_t count = 0;
  std::list<SessionRecord*> idle_stored;
};

// Thread-safe. One store for all models. Memory is admitted by admitted_bytes() before a state is
// made, and counted until after it is zeroed and freed (promises 4 and 5). Idle sessions past the
// timeout are evicted by evict_idle(), which the server calls periodically, and before anything is
// refused for lack of memory or places; after them, idle sessions that a store has, too, the
// longest unused first. None of this looks at more sessions than it evicts, however many there are.
class SessionManager {
 public:
  static constexpr std::int64_t kHistoryTokens = 16384;

  struct Options {
    std::size_t max_sessions = 0;  // 0: only memory limits them
    // Budget of all states, one-shot calls included. kAutoBytes: nothing until set_memory().
    std::size_t session_memory_bytes = 0;
    std::chrono::seconds idle_timeout{0};  // 0: never evicted
    // One owner's share of the above. 0: no limit of its own.
    std::size_t max_sessions_per_owner = 0;
    std::size_t bytes_per_owner = 0;
    // The most tokens of a session whose history is kept; the oldest are dropped.
    std::int64_t history_tokens = kHistoryTokens;
    // The time that a one-shot call waits for memory. 0: it is refused at once.
    std::chrono::milliseconds max_queue_wait{0};
  };

  // Current numbers and memory of sessions and one-shot calls, and counts of events so far.
  struct Stats {
    std::size_t idle_sessions = 0, busy_sessions = 0;
    std::size_t idle_bytes = 0, busy_bytes = 0, one_shot_bytes = 0;
    std::uint64_t created = 0, evicted = 0;
    std::uint64_t forked = 0, rewound = 0;   // forks are not among those created
    std::uint64_t unloaded = 0, loaded = 0;  // stored sessions: evicted from memory, loaded again
    std::uint64_t examined = 0;              // sessions checked for eviction
  };

  // Results: the object found or made, or the reason why there is none.
  struct LeaseResult {
    SessionLease lease;
    SessionRefusal refusal;
  };
  struct LoadResult {
    SessionPin pin;
    SessionRefusal refusal;
  };
  struct CreateResult {
    SessionInfo info;
    SessionRefusal refusal;
  };
  struct ForkResult {
    std::vector<SessionInfo> infos;
    SessionRefusal refusal;
  };
  struct ImageResult {
    SessionImage image;
    SessionRefusal refusal;
  };
  struct HistoryResult {
    std::vector<std::int32_t> tokens;  // [first, first + size)
    std::vector<HistoryMark> marks;    // the sources of the tokens
    std::int64_t first = 0;
    SessionRefusal refusal;
  };

  // Bytes to admit for a sequence of num_tokens fed tokens: its state, the objects that hold it,
  // and the store's record of it. SIZE_MAX if no state can hold so many.
  static std::size_t admitted_bytes(const Transformer& model, std::int64_t num_tokens);
  // Bytes to admit for a session: the same, its history and the states that it keeps. SIZE_MAX also
  // if neither its length nor its state is bounded. image: the initial content, in place of
  // SessionOptions::initial.
  static std::size_t session_bytes(const Transformer& model, const SessionOptions& session,
                                   std::int64_t history_tokens = kHistoryTokens,
                                   const SessionImage* image = nullptr);

  SessionManager(const Options& options, const Clock& clock);
  ~SessionManager();  // REQUIRES: no lease lives
  SessionManager(const SessionManager&) = delete;
  SessionManager& operator=(const SessionManager&) = delete;

  // Creates a session. kNeedsMaxTokens if the state grows without bound. `adapter`: one of the
  // model, for as long as the session lives. Throws ModelError for an initial image of another
  // model.
  CreateResult create(const std::string& model_name, std::shared_ptr<const Transformer> model,
                      const SessionOptions& session, const Owner& owner = {},
                      SharedAdapter adapter = nullptr);
  CreateResult create(const std::string& model_name, std::shared_ptr<const Transformer> model,
                      std::int64_t max_tokens, const Owner& owner = {},
                      SharedAdapter adapter = nullptr) {
    return create(model_name, std::move(model), SessionOptions{.max_tokens = max_tokens}, owner,
                  std::move(adapter));
  }
  LeaseResult lease(const std::string& id, const Owner& owner = {});
  // Pins a session, busy or not. Empty: it is not in memory.
  SessionPin pin(const std::string& id, const Owner& owner = {}) EXCLUDES(mutex_);
  // Admits memory for a one-shot call of num_samples sequences that will have at most max_tokens
  // tokens each (0: the model's own limit, which is also the lease's max_tokens()), and call_bytes
  // that the call holds in addition. The lease's sequence is the first; the memory of the others is
  // admitted for clones of it, which must be gone before the lease is. may_wait: where memory that
  // others hold is in the way, the lease is one that waits (SessionLease::waits_for_memory), unless
  // Options::max_queue_wait is 0. Without may_wait it is refused also while others wait.
  LeaseResult lease_one_shot(const std::string& model_name,
                             std::shared_ptr<const Transformer> model, std::int64_t max_tokens,
                             int num_samples, const Owner& owner = {}, std::size_t call_bytes = 0,
                             SharedAdapter adapter = nullptr, bool may_wait = false);
  std::optional<SessionInfo> get(const std::string& id, const Owner& owner = {}) const;
  // Sessions after `after_id`, ordered by id, at most `limit`; of all models if `model` is empty,
  // and of all owners if `owner` is nullopt.
  std::vector<SessionInfo> list(const std::string& model, const std::string& after_id,
                                std::size_t limit,
                                const std::optional<Owner>& owner = std::nullopt) const;
  // Removes a session. kNone, kNotFound, kUnloaded or kBusy.
  SessionRefusal remove(const std::string& id, const Owner& owner = {});
  // The same, but a leased session is removed when its lease ends.
  void remove_when_idle(const std::string& id, const Owner& owner = {});
  std::size_t evict_idle();  // returns how many were evicted
  // Closes the sessions of a model that is unloaded: idle ones now, leased ones when their leases
  // end. Returns how many sessions it had.
  std::size_t close_sessions(const Transformer& model);
  std::size_t close_sessions(const ServedAdapter& adapter);  // the same of an adapter
  // True if the model has sessions that no store has: they would be lost with it.
  bool has_unstored_sessions(const Transformer& model) const EXCLUDES(mutex_);
  // Copying and rewinding (session_copies.cpp, session_images.cpp). Positions are numbers of
  // tokens; kOutOfRange names those that can be reached: the next call reads the tokens before such
  // a position again, from the nearest earlier state. A session is busy while it is copied.
  //
  // Makes `count` sessions with the first `position` tokens of this one (nullopt: all), or none. A
  // busy one can be forked, too, but not at its end: kBusy. durability: nullopt: this one's.
  ForkResult fork(const std::string& id, const Owner& owner, std::optional<std::int64_t> position,
                  int count, std::optional<Durability> durability = std::nullopt);
  // Drops all tokens from `position` on, if the history is the expected one.
  CreateResult rewind(const std::string& id, const Owner& owner, std::int64_t position,
                      const std::optional<Digest>& expected);
  // A stored state of a session, as SequenceState::save_pages wrote it.
  struct StoredState {
    std::int64_t num_tokens = 0;
    std::span<const std::byte> bytes;
    std::span<const PageRun> pages;  // missing in the bytes
  };
  // The same for a leased session. stored: another state to go back to, used if none in memory is
  // as near.
  SessionRefusal rewind(SessionLease& lease, std::int64_t position,
                        const std::optional<Digest>& expected = std::nullopt,
                        const StoredState* stored = nullptr);
  // The image of a session. Without a history it is as short as the state allows; without a state,
  // or if none is in memory, the history begins at 0. Busy sessions: as for fork.
  ImageResult image(const std::string& id, const Owner& owner, std::optional<std::int64_t> position,
                    bool with_history, bool with_state) {
    return image(id, owner, position, with_history, with_state, nullptr);
  }
  // Returns the buffer to which a state of so many bytes is appended in place of image.state, so
  // that a snapshot needs no copy of it. Called once the rest of the image is known; not called
  // without a state.
  using StatePlace = std::function<std::vector<std::byte>&(const SessionImage&, std::size_t)>;
  // in_pages: full pages of the state are in the image's `pages`; `place` is not called.
  ImageResult image(const std::string& id, const Owner& owner, std::optional<std::int64_t> position,
                    bool with_history, bool with_state, const StatePlace& place,
                    bool in_pages = false);
  // Makes a session of an image, admitted as by create. Throws ModelError for one that is
  // inconsistent or of another model.
  CreateResult restore(const std::string& model_name, std::shared_ptr<const Transformer> model,
                       const SessionImage& image, const Owner& owner = {},
                       SharedAdapter adapter = nullptr,
                       const SessionOptions& session = SessionOptions());
  // Stored sessions: those that a store has, too, whenever they are idle. They leave memory when
  // others need it.
  //
  // The options it was made with, except `initial`; nothing if it is not in memory.
  std::optional<SessionOptions> made_as(const std::string& id, const Owner& owner) const
      EXCLUDES(mutex_);
  // Marks a session as stored.
  void set_stored(const std::string& id, const Owner& owner) EXCLUDES(mutex_);
  // Idle stored sessions, the last used first; of one model, or of all (null).
  struct Named {
    std::string id;
    Owner owner;
  };
  std::vector<Named> idle_stored(const Transformer* model = nullptr) const EXCLUDES(mutex_);
  // Loads a stored session, under its id; kBusy if it is in memory. Admitted and checked as by
  // restore.
  LoadResult load(const StoredSession& stored, const std::string& model_name,
                  std::shared_ptr<const Transformer> model, const SessionImage& image,
                  const Owner& owner, SharedAdapter adapter) EXCLUDES(mutex_);
  // Tokens [from, to) (nullopt: to the last), also of a busy session.
  HistoryResult history(const std::string& id, const Owner& owner, std::int64_t from,
                        std::optional<std::int64_t> to) const;
  // The reason why there is no such session: kNotFound, or kUnloaded for remembered ones.
  SessionRefusal absence(const std::string& id, const Owner& owner = {}) const;

  // Admits memory for other bytes than sequences: a snapshot in transfer, a named state.
  SessionMemory::Result admit_bytes(const Owner& owner, std::size_t bytes) EXCLUDES(mutex_) {
    return reserve(owner, bytes, /*takes_place=*/false);
  }

  // Same as SessionMemory::lend().
  void lend(SpareMemory* spare) { memory_.lend(spare); }
  std::size_t free_bytes() const { return memory_.free_bytes(); }

  // Notified when memory was released. Refused requests may be repeated then.
  CapacityListeners& waiting_room() { return memory_.waiting_room(); }
  // One-shot calls that wait for memory.
  MemoryLine::Stats waiting() const { return line_.stats(); }
  std::size_t bytes_in_use() const;
  std::size_t num_sessions() const;
  Stats stats() const;
  // The options, with the memory that set_memory() has set.
  Options options() const {
    Options now = options_;
    now.session_memory_bytes = memory_.limit_bytes();
    return now;
  }
  // Sets the budget, before the first sequence. Thread-safe beside readers of options().
  void set_memory(std::size_t bytes) { memory_.set_limit(bytes); }

  // Sessions and tokens of one model in all of the memory.
  struct Capacity {
    std::int64_t sessions = 0;        // of at most session_tokens each, at a time
    std::int64_t session_tokens = 0;  // 0: any number
    std::int64_t tokens = 0;          // of a sequence that has all memory; 0: any number
  };
  // Sessions of a model whose states grow count as they are after this many tokens, or at their
  // full length where that is less.
  static constexpr std::int64_t kCapacityTokens = 8192;
  Capacity capacity(const Transformer& model) const;

 private:
  friend class SessionLease;
  friend class SessionPin;

  // Sessions that an iteration over all of them visits before it releases the mutex for others.
  static constexpr std::size_t kWalkAtATime = 1024;

  // Reserves memory; evicts idle sessions if that makes room.
  SessionMemory::Result reserve(const Owner& owner, std::size_t bytes, bool takes_place)
      EXCLUDES(mutex_);
  // Evicts a session for a refused request. True if one was evicted, so that it may be repeated.
  bool make_room(SessionError refused, const Owner& owner) EXCLUDES(mutex_);
  // The session, if it is the owner's; else null.
  std::shared_ptr<SessionRecord> find(const std::string& id, const Owner& owner) const
      REQUIRES(mutex_);
  // A record that was admitted and is not yet among the sessions, or is a one-shot call's.
  struct Made {
    std::shared_ptr<SessionRecord> record;  // null: refused
    SessionRefusal refusal;
  };
  // Reserves, then makes a record without sequence and history.
  Made new_record(const std::string& model_name, std::shared_ptr<const Transformer> model,
                  const SessionOptions& session, std::size_t bytes, bool takes_place,
                  const Owner& owner, SharedAdapter adapter) EXCLUDES(mutex_);
  // The same with memory that was admitted, or is not yet.
  Made new_record(const std::string& model_name, std::shared_ptr<const Transformer> model,
                  const SessionOptions& session, SessionMemory::Result admitted, bool takes_place,
                  SharedAdapter adapter) const;
  // Makes the sequence of a one-shot call. Throws std::bad_alloc.
  static void begin_one_shot(SessionRecord& record);
  // Makes a session, empty or from the image.
  Made new_session(const std::string& model_name, std::shared_ptr<const Transformer> model,
                   SessionOptions session, const SessionImage* image, const Owner& owner,
                   SharedAdapter adapter) EXCLUDES(mutex_);
  CreateResult add(Made made) EXCLUDES(mutex_);

  // The session that copies are made of: leased if it was idle, so that its state can be read.
  struct Source {
    SessionLease held;
    std::shared_ptr<SessionRecord> record;  // null: refused
    SessionRefusal refusal;
  };
  Source find_source(const std::string& id, const Owner& owner) EXCLUDES(mutex_);
  static std::int64_t oldest_position(const SessionRecord& record,
                                      const SessionHistory::Extent& extent);
  SessionRefusal out_of_range(const SessionRecord& record) const EXCLUDES(mutex_);
  static void end_call(SessionRecord& record) noexcept;
  static SessionHistory::Options history_of(const Transformer& model, const SessionOptions& session,
                                            std::int64_t history_tokens, const SessionImage* image);
  void give_back(std::shared_ptr<SessionRecord> record) noexcept EXCLUDES(mutex_);
  void unpin(SessionRecord& record) noexcept EXCLUDES(mutex_);
  bool is_current(const SessionRecord& record) const EXCLUDES(mutex_);
  std::list<SessionRecord*>& order_of(const SessionRecord& record) REQUIRES(mutex_);
  // Marks an idle session as used now: the last to be evicted.
  void note_use(SessionRecord& record) REQUIRES(mutex_);
  // Add a session to the idle ones, as the last used, and remove it.
  void begin_idle(SessionRecord& record) REQUIRES(mutex_);
  void end_idle(SessionRecord& record) REQUIRES(mutex_);
  // Adds an idle session to the map; false: its id is taken.
  bool insert(const std::shared_ptr<SessionRecord>& record) REQUIRES(mutex_);
  // Takes a session out of the map, without allocating memory.
  using Sessions = std::map<std::string, std::shared_ptr<SessionRecord>>;
  Sessions::node_type extract(Sessions::iterator session) REQUIRES(mutex_);
  static SessionInfo info_of(const SessionRecord& record);
  // Closes the sessions for which `goes` is true.
  template <typename Goes>
  std::size_t close_sessions_that(const Goes& goes) EXCLUDES(mutex_);
  // Removes a session; a leased one stays, and with `later` is removed afterwards.
  SessionRefusal take_out(const std::string& id, const Owner& owner, bool later) EXCLUDES(mutex_);
  SessionRefusal absence_of(const std::string& id, const Owner& owner) const REQUIRES(mutex_);

  const Options options_;
  const Clock& clock_;

  SessionMemory memory_;  // of sessions, also those being made or freed, and one-shot calls
  MemoryLine line_;       // of one-shot calls that wait for it

  // Nothing is made or freed under it: zeroing a state takes time.
  mutable Mutex mutex_;
  Sessions sessions_ GUARDED_BY(mutex_);  // by id
  // Sessions without a lease, last used last: those in memory alone, and those that a store has.
  std::list<SessionRecord*> idle_ GUARDED_BY(mutex_);
  std::list<SessionRecord*> idle_stored_ GUARDED_BY(mutex_);
  std::map<Owner, OwnersSessions> owners_ GUARDED_BY(mutex_);
  std::size_t busy_sessions_ GUARDED_BY(mutex_) = 0;
  std::size_t busy_bytes_ GUARDED_BY(mutex_) = 0;     // of sessions
  std::size_t session_bytes_ GUARDED_BY(mutex_) = 0;  // of sessions in the map
  std::uint64_t created_ GUARDED_BY(mutex_) = 0;
  std::uint64_t evicted_ GUARDED_BY(mutex_) = 0;
  std::uint64_t forked_ GUARDED_BY(mutex_) = 0;
  std::uint64_t rewound_ GUARDED_BY(mutex_) = 0;
  std::uint64_t unloaded_ GUARDED_BY(mutex_) = 0;
  std::uint64_t loaded_ GUARDED_BY(mutex_) = 0;
  std::uint64_t examined_ GUARDED_BY(mutex_) = 0;
  ClosedSessions closed_ GUARDED_BY(mutex_);  // with their models
};

}  // namespace lintel
