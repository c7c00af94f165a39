// SPDX-License-Identifier: Apache-2.0
// ReplayedResponse: a finished call, replayed to its client without being run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/core/mutex.h"
#include "server/engine/token_sink.h"
#include "server/sessions/persistence/call_records.h"
#include "server/sessions/storage/session_storage.h"

namespace lintel {

struct IdempotencyKey;
class PersistentSessions;

// Tokens are read from the storage a piece at a time, on threads that may wait, as the sink has
// room for them. The session is free meanwhile. If it forgets the call (it is rewound or removed),
// the rest is not delivered: kStoreAway.
//
// Thread-safe; the sink is called by one thread at a time. The caller of resume() and cancel()
// holds it until the sink has received the end.
class ReplayedResponse : public std::enable_shared_from_this<ReplayedResponse> {
 public:
  static constexpr std::int64_t kPieceTokens = 1024;

  // Replays `call` of a stored session, from terms.from_position on. digest: of the history at the
  // call's end, if it is known. Null if the storage no longer has all of its tokens. `durable`
  // outlives it.
  static std::shared_ptr<ReplayedResponse> of(PersistentSessions& durable,
                                              const SessionStorage::Row& row,
                                              const StoredMarks& marks, const LastCall& call,
                                              std::optional<Digest> digest,
                                              const IdempotencyKey& terms);

  // Begins to deliver the response. Called once.
  void tell(std::shared_ptr<TokenSink> sink) EXCLUDES(mutex_);
  // Continues: the sink has room again.
  void resume() EXCLUDES(mutex_);
  // Delivers only the end from now on. May be called before tell().
  void cancel() EXCLUDES(mutex_);

  const SessionStorage::SessionId& session() const { return session_; }
  const SessionStorage::Owner& owner() const { return owner_; }
  const LastCall& call() const { return call_; }
  // Position of the first token to deliver, and the end: those that a stop excluded are left out.
  std::int64_t first() const { return first_; }
  std::int64_t end() const { return end_; }

 private:
  ReplayedResponse(PersistentSessions& durable, const SessionStorage::Row& row,
                   const StoredMarks& marks, const LastCall& call, std::optional<Digest> digest,
                   const IdempotencyKey& terms);

  // Queues tell_on().
  void go_on() EXCLUDES(mutex_);
  void tell_on() EXCLUDES(mutex_);
  // Delivers the next tokens; nothing: there are more.
  std::optional<RequestOutcome> tell_piece();
  TokenSource source_at(std::int64_t position);
  // The digest of the history at the call's end; nothing if it cannot be read.
  std::optional<Digest> find_digest();
  void finish(RequestOutcome outcome) EXCLUDES(mutex_);

  PersistentSessions& durable_;
  const SessionStorage::SessionId session_;
  const SessionStorage::Owner owner_;
  const LastCall call_;
  const SampleResult told_;  // of the call
  const std::int64_t first_, end_;
  const HistoryBase base_;                // of the stored tokens
  const std::vector<HistoryMark> marks_;  // from there on

  // Used by the delivering thread.
  std::optional<Digest> digest_;
  std::int64_t next_;
  std::size_t next_mark_ = 0;
  TokenSource source_ = TokenSource::kSampled;
  bool has_room_ = true;

  Mutex mutex_;
  std::shared_ptr<TokenSink> sink_ GUARDED_BY(mutex_);  // until it has received the end
  bool is_telling_ GUARDED_BY(mutex_) = false;
  bool is_resumed_ GUARDED_BY(mutex_) = false;
  bool is_cancelled_ GUARDED_BY(mutex_) = false;
};

}  // namespace lintel
