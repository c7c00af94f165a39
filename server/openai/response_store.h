// SPDX-License-Identifier: Apache-2.0
// ResponseStore: responses that outlive their calls, and those that run.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/core/json_reader.h"
#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/core/threads.h"
#include "server/openai/event_log.h"
#include "server/openai/sealer.h"
#include "server/sessions/session_error.h"
#include "server/sessions/storage/document_storage.h"

namespace lintel {

inline constexpr std::size_t kMostChain = 10'000;  // responses, one after the other

// What is stored of a response: what it was made of, and what came of it. Its tokens and its state
// are functions of these.
struct ResponseRecord {
  std::string digits;  // of its id, which is "resp_" and these
  std::string owner;
  std::string parent;               // the digits of the response that it continues; empty: none
  nlohmann::ordered_json response;  // as it was last shown
  nlohmann::ordered_json input;     // items of the request
  nlohmann::ordered_json pieces;    // as make_events() needs them
  std::uint64_t seed = 0;           // of the draws
  std::string request_digest;       // of one with an Idempotency-Key; empty: it has none
  std::string process;              // that runs it, or did
  bool is_interrupted = false;      // it ended without an end of its own: it may be run again
  // The request's body, of one in the background until it ends: a server runs it again where its
  // own is gone. Else empty.
  std::string request;
  std::int64_t version = 0;  // of the storage

  std::string status() const { return response.value("status", ""); }
};

// How much of a chain is read.
struct ChainBounds {
  std::size_t json_bytes = 0;    // of its items, as they are stored
  std::size_t memory_bytes = 0;  // tree_memory() of them, with reasoning joined
  JsonBudget* budget = nullptr;  // charged with what is read, while it is; null: none
  // Asked before each response is read; null: never.
  std::function<bool()> is_cancelled;
};

// A response that this process runs. Thread-safe.
class RunningResponse {
 public:
  // Its answer is to end with the next token.
  void cancel() { is_cancelled_ = true; }
  bool is_cancelled() const { return is_cancelled_; }

  // Of one in the background its events from the first on; null: they are not kept.
  std::shared_ptr<EventLog> log() const { return log_; }
  // The most that its record may take in memory when it is over and its events are made again.
  std::size_t repeated_bytes() const { return repeated_bytes_; }

 private:
  friend class ResponseStore;

  std::shared_ptr<EventLog> log_;   // constant since it runs
  std::size_t repeated_bytes_ = 0;  // likewise
  std::atomic<bool> is_cancelled_{false};
};

// 128 random bits as 32 digits.
std::string random_digits();
// The digits of an id; empty: it is none.
std::string digits_of_response(const std::string& id);

// Thread-safe. Where waits() all but end() wait for a disk or a network.
class ResponseStore {
 public:
  struct Options {
    std::chrono::seconds expire = std::chrono::hours(720);  // after the last use of a chain
    // A response whose server is gone is in progress for so long, then it has failed.
    std::chrono::seconds resume{60};
    std::uint64_t owner_bytes = 0;  // the bound of `documents`, for refusals
  };

  // Both outlive it.
  ResponseStore(DocumentStorage& documents, const Clock& clock, Options options);
  ~ResponseStore();  // writes what is queued

  bool waits() const { return documents_.waits(); }
  std::uint64_t owner_bytes() const { return options_.owner_bytes; }

  // Digits that only this owner's key has; with a key of the storage, so that none can be guessed.
  SessionError digits_of_key(const std::string& owner, const std::string& key, std::string& digits);

  // What seals texts for this owner.
  SessionError sealer(const std::string& owner, std::optional<Sealer>& sealer);

  // A new response, or one that is run again: it is stored, and known to run, when this returns
  // kNone. kFenced: another call runs it; kNotFound: its parent is gone; kOwnerOutOfMemory: its
  // owner has stored as much as it may; kStore...
  // has_log: its events are kept while it runs. repeated_bytes: as RunningResponse's.
  SessionError begin(ResponseRecord& record, bool has_log,
                     std::shared_ptr<RunningResponse>& running, std::size_t repeated_bytes = 0);
  // Its end, or that nothing came of it: stored when `then` is called, by any thread, also before
  // this returns. Does not wait. is_refused_when_full: where there is no room for it, its client
  // gets an error, and what was stored of it is deleted.
  void end(ResponseRecord record, bool is_refused_when_full,
           std::function<void(SessionError)> then);

  // As it stands; of one whose server is gone for long, as it has failed. One that was cancelled is
  // so at once, and has its output when its call has ended. budget: charged with its text and its
  // trees, null: none. kNotFound also of another owner's, and of one that was deleted; kTooLarge:
  // the budget has no room; kDamaged, kStore...
  SessionError find(const std::string& digits, const std::string& owner, ResponseRecord& record,
                    JsonBudget* budget = nullptr);
  // The same, also of a deleted one that others continue, and as it is stored.
  SessionError find_stored(const std::string& digits, const std::string& owner,
                           ResponseRecord& record, bool& is_hidden, JsonBudget* budget = nullptr);
  // The items of a response and of all that it continues, in their order, with reasoning joined;
  // and the bytes of their JSON. One response at a time is parsed. kOutOfRange: they are more than
  // kMostChain; kTooLarge: more than the bounds, or the budget has no room; kBusy: it is in
  // progress, or has failed; kUnloaded: is_cancelled().
  SessionError read_chain(const std::string& digits, const std::string& owner,
                          const ChainBounds& bounds, nlohmann::ordered_json& items,
                          std::size_t& json_bytes);
  // The items of one response: its input, then its output as far as it is stored. As find().
  SessionError find_items(const std::string& digits, const std::string& owner,
                          nlohmann::ordered_json& items, JsonBudget* budget = nullptr);
  SessionError remove(const std::string& digits, const std::string& owner);
  // The one that runs here; null: none does.
  std::shared_ptr<RunningResponse> running(const std::string& digits, const std::string& owner);
  // Has `then` called when the response does not run here any more, also where it does not now: by
  // a thread that may wait, where the storage waits.
  void when_over(const std::string& digits, const std::string& owner, std::function<void()> then);
  // Whether the process that runs a response in progress, another than this one, may be there.
  bool may_run_elsewhere(const ResponseRecord& record);

  // Nothing came of one that begin() has stored, and nothing more can be written of it. One in the
  // background stays in progress, and is run again.
  void abandon(const std::string& digits) noexcept;
  // What is due: now and then.
  void look();

  // look() has `run` called with the responses in the background that no process runs any more: of
  // a storage that is shared, whose own was not seen for Options::resume, 5 s at least. By a thread
  // that may wait. One whose run is refused is tried again later. Null: no more, when this returns.
  void run_interrupted_by(std::function<void(ResponseRecord)> run) EXCLUDES(run_mutex_);
  void note_refused(const std::string& digits) EXCLUDES(mutex_);

 private:
  struct Running {
    std::string owner;
    std::shared_ptr<RunningResponse> response;
    std::vector<std::function<void()>> waiting;
  };

  void run_interrupted() EXCLUDES(run_mutex_);
  Document document_of(const ResponseRecord& record) const;
  void forget(const std::string& digits) EXCLUDES(mutex_);

  DocumentStorage& documents_;
  const Clock& clock_;
  const Options options_;
  const std::string process_;  // this one
  Mutex mutex_;
  std::map<std::string, Running> running_ GUARDED_BY(mutex_);
  std::map<std::string, TimePoint> refused_ GUARDED_BY(mutex_);  // until then not tried again
  TimePoint next_interrupted_;                                   // of look() alone
  std::atomic<bool> runs_interrupted_{false};
  Mutex run_mutex_;
  std::function<void(ResponseRecord)> run_ GUARDED_BY(run_mutex_);
  WorkThreads threads_;  // last: their work uses the rest
};

}  // namespace lintel
