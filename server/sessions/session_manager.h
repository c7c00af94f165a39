// SPDX-License-Identifier: Apache-2.0
// SessionManager: the sessions there are, and the memory that sequences may take.
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
#include "server/core/mutex.h"
#include "server/sessions/adapter_table.h"
#include "server/sessions/lease.h"
#include "server/sessions/session_history.h"
#include "server/sessions/session_memory.h"
#include "server/sessions/session_options.h"

namespace lintel {

// ClosedSessions: ids of sessions that went with their models, so that their owners learn why.

// Remembers the last kMost. Not thread-safe: the store's mutex guards it.
class ClosedSessions {
 public:
  static constexpr std::size_t kMost = 10'000;

  // Where there is no memory for it, the session is simply not found.
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

  // Whether the owner had such a session.
  bool had(const std::string& id, const Owner& owner) const {
    const auto found = owners_.find(id);
    return found != owners_.end() && found->second == owner;
  }

 private:
  std::map<std::string, Owner> owners_;  // by id
  std::deque<std::string> order_;        // in which they are forgotten
};

// An owner's sessions in the store, and of them those that are idle and outlive it, last used last.
struct OwnersSessions {
  std::size_t count = 0;
  std::list<SessionRecord*> idle_stored;
};

// Thread-safe. One store for all models. Memory is admitted by admitted_bytes() before a state is
// made, and counted until after it is zeroed and freed (promises 4 and 5). Idle sessions past the
// timeout are evicted by evict_idle(), which the server calls periodically, and before anything is
// refused for lack of memory or places; then those go that a store has, too, the longest unused
// first. However many sessions there are, none of this looks at more of them than it evicts.
class SessionManager {
 public:
  static constexpr std::int64_t kHistoryTokens = 16384;

  struct Options {
    std::size_t max_sessions = 0;          // 0: only memory limits them
    std::size_t session_memory_bytes = 0;  // budget of all states, one-shot calls included
    std::chrono::seconds idle_timeout{0};  // 0: never evicted
    // Of the above, one owner's share. 0: no limit of its own.
    std::size_t max_sessions_per_owner = 0;
    std::size_t bytes_per_owner = 0;
    // Most tokens of a session whose history is kept; before them the oldest go.
    std::int64_t history_tokens = kHistoryTokens;
  };

  // What the sessions and one-shot calls are and hold now, and what became of sessions so far.
  struct Stats {
    std::size_t idle_sessions = 0, busy_sessions = 0;
    std::size_t idle_bytes = 0, busy_bytes = 0, one_shot_bytes = 0;
    std::uint64_t created = 0, evicted = 0;
    std::uint64_t forked = 0, rewound = 0;   // forks are not among those created
    std::uint64_t unloaded = 0, loaded = 0;  // stored sessions: evicted from memory, loaded again
    std::uint64_t examined = 0;              // looked at to find out whether they are to be evicted
  };

  // What was found or made, or why not.
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
    std::vector<HistoryMark> marks;    // of them: where each came from
    std::int64_t first = 0;
    SessionRefusal refusal;
  };

  // What a sequence of num_tokens fed tokens is admitted for: its state, the objects that hold it,
  // and the store's record of it. SIZE_MAX where no state can hold so many.
  static std::size_t admitted_bytes(const Transformer& model, std::int64_t num_tokens);
  // What a session is admitted for: the same, its history and the states that it keeps. SIZE_MAX
  // also where its length has no end and its state neither.
  // image: what it begins with in place of SessionOptions::initial.
  static std::size_t session_bytes(const Transformer& model, const SessionOptions& session,
                                   std::int64_t history_tokens = kHistoryTokens,
                                   const SessionImage* image = nullptr);

  SessionManager(const Options& options, const Clock& clock);
  ~SessionManager();  // REQUIRES: no lease lives
  SessionManager(const SessionManager&) = delete;
  SessionManager& operator=(const SessionManager&) = delete;

  // kNeedsMaxTokens where the state grows without bound. `adapter`: of the model, for as long as
  // the session lives. Throws ModelError for an initial image that is not of this model.
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
  // Empty: it is not in memory. Also of a busy session.
  SessionPin pin(const std::string& id, const Owner& owner = {}) EXCLUDES(mutex_);
  // Memory for a one-shot call of num_samples sequences that will have at most max_tokens tokens
  // each (0: the model's own limit, which is also the lease's max_tokens()), and call_bytes that
  // the call holds in addition. The lease's sequence is the first; the memory of the others is
  // admitted for clones of it, which must be gone before the lease is.
  LeaseResult lease_one_shot(const std::string& model_name,
                             std::shared_ptr<const Transformer> model, std::int64_t max_tokens,
                             int num_samples, const Owner& owner = {}, std::size_t call_bytes = 0,
                             SharedAdapter adapter = nullptr);
  std::optional<SessionInfo> get(const std::string& id, const Owner& owner = {}) const;
  // Ordered by id, those after `after_id`, at most `limit`; all models when `model` is empty. One
  // owner's, or all owners' when `owner` is nullopt.
  std::vector<SessionInfo> list(const std::string& model, const std::string& after_id,
                                std::size_t limit,
                                const std::optional<Owner>& owner = std::nullopt) const;
  // kNone, kNotFound, kUnloaded or kBusy.
  SessionRefusal remove(const std::string& id, const Owner& owner = {});
  // The same, but a leased session goes when its lease ends.
  void remove_when_idle(const std::string& id, const Owner& owner = {});
  std::size_t evict_idle();  // how many went
  // The model goes: its idle sessions are closed now, leased ones when their leases end. Returns
  // how many sessions it had.
  std::size_t close_sessions(const Transformer& model);
  std::size_t close_sessions(const ServedAdapter& adapter);  // the same of an adapter
  // Whether the model has sessions that no store has: they would be lost with it.
  bool has_unstored_sessions(const Transformer& model) const EXCLUDES(mutex_);
  // Copies, and ways back (session_copies.cpp, session_images.cpp). Positions are numbers of
  // tokens; kOutOfRange names those that can be reached: the next call reads the tokens before such
  // a position again, from the nearest state before it. While a session is copied it is busy.
  //
  // `count` sessions with the first `position` tokens of this one (nullopt: all), or none of them.
  // A busy one can be forked, too, but not where it stands: kBusy. durability: nullopt: this one's.
  ForkResult fork(const std::string& id, const Owner& owner, std::optional<std::int64_t> position,
                  int count, std::optional<Durability> durability = std::nullopt);
  // Takes back all tokens from `position` on, if the history is the expected one.
  CreateResult rewind(const std::string& id, const Owner& owner, std::int64_t position,
                      const std::optional<Digest>& expected);
  // A state of a session that its store has, as SequenceState::save_pages wrote it.
  struct StoredState {
    std::int64_t num_tokens = 0;
    std::span<const std::byte> bytes;
    std::span<const PageRun> pages;  // that the bytes lack
  };
  // The same of a session that is leased. stored: another state to go back to, which is taken where
  // none at hand is as near.
  SessionRefusal rewind(SessionLease& lease, std::int64_t position,
                        const std::optional<Digest>& expected = std::nullopt,
                        const StoredState* stored = nullptr);
  // All that the session is. Without a history it is as short as the state allows; without a state,
  // or where there is none at hand, the history begins at 0. Of a busy session as fork.
  ImageResult image(const std::string& id, const Owner& owner, std::optional<std::int64_t> position,
                    bool with_history, bool with_state) {
    return image(id, owner, position, with_history, with_state, nullptr);
  }
  // Where a state of so many bytes is appended in place of image.state, called once the rest of the
  // image is known: so a snapshot needs no copy of the state. Not called without a state.
  using StatePlace = std::function<std::vector<std::byte>&(const SessionImage&, std::size_t)>;
  // in_pages: the image's state leaves full pages to its `pages`; `place` is not called.
  ImageResult image(const std::string& id, const Owner& owner, std::optional<std::int64_t> position,
                    bool with_history, bool with_state, const StatePlace& place,
                    bool in_pages = false);
  // A session out of an image, admitted as by create. Throws ModelError for one that is not of this
  // model, or contradicts itself.
  CreateResult restore(const std::string& model_name, std::shared_ptr<const Transformer> model,
                       const SessionImage& image, const Owner& owner = {},
                       SharedAdapter adapter = nullptr,
                       const SessionOptions& session = SessionOptions());
  // Sessions that a store has, too, whenever they are idle: they leave memory when others need it.
  //
  // What it was made as, without `initial`; nothing where it is not there.
  std::optional<SessionOptions> made_as(const std::string& id, const Owner& owner) const
      EXCLUDES(mutex_);
  // From now on it is one of them.
  void set_stored(const std::string& id, const Owner& owner) EXCLUDES(mutex_);
  // Those of them that are idle, the last used first; of one model, or of all (null).
  struct Named {
    std::string id;
    Owner owner;
  };
  std::vector<Named> idle_stored(const Transformer* model = nullptr) const EXCLUDES(mutex_);
  // Loads one of them, under its id; kBusy where it is in memory. Admitted and checked as by
  // restore.
  LoadResult load(const StoredSession& stored, const std::string& model_name,
                  std::shared_ptr<const Transformer> model, const SessionImage& image,
                  const Owner& owner, SharedAdapter adapter) EXCLUDES(mutex_);
  // Tokens [from, to) (nullopt: to the last), also of a busy session.
  HistoryResult history(const std::string& id, const Owner& owner, std::int64_t from,
                        std::optional<std::int64_t> to) const;
  // Why there is no such session: kNotFound, or kUnloaded of those that are remembered.
  SessionRefusal absence(const std::string& id, const Owner& owner = {}) const;

  // Memory for bytes that are no sequence: a snapshot on its way, a named state.
  SessionMemory::Result admit_bytes(const Owner& owner, std::size_t bytes) EXCLUDES(mutex_) {
    return reserve(owner, bytes, /*takes_place=*/false);
  }

  // As SessionMemory::lend.
  void lend(SpareMemory* spare) { memory_.lend(spare); }
  std::size_t free_bytes() const { return memory_.free_bytes(); }

  // Notified when memory was released. What was refused for want of it may then be asked for again.
  CapacityListeners& waiting_room() { return memory_.waiting_room(); }
  std::size_t bytes_in_use() const;
  std::size_t num_sessions() const;
  Stats stats() const;
  const Options& options() const { return options_; }

 private:
  friend class SessionLease;
  friend class SessionPin;

  // Sessions that a walk over all of them looks at before it lets others have the mutex.
  static constexpr std::size_t kWalkAtATime = 1024;

  // Evicts idle sessions where that makes room.
  SessionMemory::Result reserve(const Owner& owner, std::size_t bytes, bool takes_place)
      EXCLUDES(mutex_);
  // Whether a session went, so that what was refused may be asked for again.
  bool make_room(SessionError refused, const Owner& owner) EXCLUDES(mutex_);
  // The session, if it is the owner's; else null.
  std::shared_ptr<SessionRecord> find(const std::string& id, const Owner& owner) const
      REQUIRES(mutex_);
  // What was admitted and is not yet among the sessions, or is a one-shot call's.
  struct Made {
    std::shared_ptr<SessionRecord> record;  // null: refused
    SessionRefusal refusal;
  };
  // Reserves, then makes a record without sequence and history.
  Made new_record(const std::string& model_name, std::shared_ptr<const Transformer> model,
                  const SessionOptions& session, std::size_t bytes, bool takes_place,
                  const Owner& owner, SharedAdapter adapter) EXCLUDES(mutex_);
  // A session, empty or as the image says.
  Made new_session(const std::string& model_name, std::shared_ptr<const Transformer> model,
                   SessionOptions session, const SessionImage* image, const Owner& owner,
                   SharedAdapter adapter) EXCLUDES(mutex_);
  CreateResult add(Made made) EXCLUDES(mutex_);

  // The session that copies are made of: held where it was idle, so that its state can be read.
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
  // The session was used just now, and is idle: the last to be evicted.
  void note_use(SessionRecord& record) REQUIRES(mutex_);
  // Among the idle ones, as the last used, and out of them again.
  void begin_idle(SessionRecord& record) REQUIRES(mutex_);
  void end_idle(SessionRecord& record) REQUIRES(mutex_);
  // Into the map, and idle; false: one of that id is there.
  bool insert(const std::shared_ptr<SessionRecord>& record) REQUIRES(mutex_);
  // Takes a session out of the map, without asking for memory.
  using Sessions = std::map<std::string, std::shared_ptr<SessionRecord>>;
  Sessions::node_type extract(Sessions::iterator session) REQUIRES(mutex_);
  static SessionInfo info_of(const SessionRecord& record);
  // Of the sessions that `goes` says.
  template <typename Goes>
  std::size_t close_sessions_that(const Goes& goes) EXCLUDES(mutex_);
  // Takes a session out of the store; one that is leased stays, and with `later` goes afterwards.
  SessionRefusal take_out(const std::string& id, const Owner& owner, bool later) EXCLUDES(mutex_);
  SessionRefusal absence_of(const std::string& id, const Owner& owner) const REQUIRES(mutex_);

  const Options options_;
  const Clock& clock_;

  SessionMemory memory_;  // of sessions, those being made or freed included, and one-shot calls

  // Nothing is made or freed under it: zeroing a state takes its time.
  mutable Mutex mutex_;
  Sessions sessions_ GUARDED_BY(mutex_);  // by id
  // Of them, those without a lease, last used last: those that live here alone, and those that a
  // store has.
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
