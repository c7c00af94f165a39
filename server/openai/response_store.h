// SPDX-License-Identifier: Apache-2.0
// ResponseStore: responses that outlive their calls, and running ones.
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

// A stored response: its request and its result. Its tokens and its state follow from them.
struct ResponseRecord {
  std::string digits;  // of its id, which is "resp_" and these
  std::string owner;
  std::string parent;               // the digits of the response that it continues; empty: none
  nlohmann::ordered_json response;  // as last shown
  nlohmann::ordered_json input;     // items of the request
  nlohmann::ordered_json pieces;    // the data for RepeatedEvents
  std::uint64_t seed = 0;           // of the draws
  std::string request_digest;       // with an Idempotency-Key; empty: without
  std::string process;              // the process that runs or ran it
  bool is_interrupted = false;      // its run was cut off: it may be run again
  // The body of a request in the background until it ends: another server runs it again if its own
  // is gone. Empty otherwise.
  std::string request;
  std::int64_t version = 0;  // of the storage

  std::string status() const { return response.value("status", ""); }
};

// Bounds of the part of a chain that is read.
struct ChainBounds {
  std::size_t json_bytes = 0;    // of its items as stored
  std::size_t memory_bytes = 0;  // tree_memory() of them, with reasoning joined
  JsonBudget* budget = nullptr;  // charged while a response is read; null: none
  // Called before each response is read; null: never cancelled.
  std::function<bool()> is_cancelled;
};

// A response that this process runs. Thread-safe.
class RunningResponse {
 public:
  // Ends its answer with the next token.
  void cancel() { is_cancelled_ = true; }
  bool is_cancelled() const { return is_cancelled_; }

  // The events, from the first on, of a response in the background; null: they are not kept.
  std::shared_ptr<EventLog> log() const { return log_; }
  // The most memory for its record when it is over and its events are repeated.
  std::size_t repeated_bytes() const { return repeated_bytes_; }

 private:
  friend class ResponseStore;

  std::shared_ptr<EventLog> log_;   // constant while it runs
  std::size_t repeated_bytes_ = 0;  // likewise
  std::atomic<bool> is_cancelled_{false};
};

// 128 random bits as 32 digits.
std::string random_digits();
// The digits of a response's id; empty for other texts.
std::string digits_of_response(const std::string& id);

// Thread-safe. If waits() is true, all functions but end() wait for a disk or a network.
class ResponseStore {
 public:
  struct Options {
    std::chrono::seconds expire = std::chrono::hours(720);  // after the last use of a chain
    // The time for which a response whose server is gone is in progress; then it has failed.
    std::chrono::seconds resume{60};
    std::uint64_t owner_bytes = 0;  // the bound of `documents`, for refusals
  };

  // Both outlive it.
  ResponseStore(DocumentStorage& documents, const Clock& clock, Options options);
  ~ResponseStore();  // writes what is queued

  bool waits() const { return documents_.waits(); }
  std::uint64_t owner_bytes() const { return options_.owner_bytes; }

  // Computes digits specific to this owner's key, with a secret of the storage, so that they cannot
  // be guessed.
  SessionError digits_of_key(const std::string& owner, const std::string& key, std::string& digits);

  // Makes the sealer of texts for this owner.
  SessionError sealer(const std::string& owner, std::optional<Sealer>& sealer);

  // Begins a new response, or one that is run again: it is stored, and known to run, when this
  // returns kNone. kFenced: another call runs it; kNotFound: its parent is gone; kOwnerOutOfMemory:
  // its owner's documents would exceed their bytes; kStore... has_log: its events are kept while it
  // runs. repeated_bytes: as RunningResponse's.
  SessionError begin(ResponseRecord& record, bool has_log,
                     std::shared_ptr<RunningResponse>& running, std::size_t repeated_bytes = 0);
  // Ends a response, or notes its failure: stored when `then` is called, by any thread, possibly
  // before this returns. Does not wait. is_refused_when_full: without room its client gets an
  // error, and its stored record is deleted.
  void end(ResponseRecord record, bool is_refused_when_full,
           std::function<void(SessionError)> then);

  // Finds a response in its current state; failed, if its server has been gone for long. A
  // cancelled one is cancelled at once, and has its output when its call has ended. budget: charged
  // with its text and its trees, null: none. kNotFound also for another owner's or a deleted one;
  // kTooLarge: the budget has no room; kDamaged, kStore...
  SessionError find(const std::string& digits, const std::string& owner, ResponseRecord& record,
                    JsonBudget* budget = nullptr);
  // The same in the stored state, also for a deleted one that others continue.
  SessionError find_stored(const std::string& digits, const std::string& owner,
                           ResponseRecord& record, bool& is_hidden, JsonBudget* budget = nullptr);
  // Reads the items of a response and of all that it continues, in their order, with reasoning
  // joined, and the bytes of their JSON. One response at a time is parsed. kOutOfRange: they are
  // more than kMostChain; kTooLarge: more than the bounds, or the budget has no room; kBusy: it is
  // in progress, or has failed; kUnloaded: is_cancelled().
  SessionError read_chain(const std::string& digits, const std::string& owner,
                          const ChainBounds& bounds, nlohmann::ordered_json& items,
                          std::size_t& json_bytes);
  // Reads the items of one response: its input, then its stored output. Errors as of find().
  SessionError find_items(const std::string& digits, const std::string& owner,
                          nlohmann::ordered_json& items, JsonBudget* budget = nullptr);
  SessionError remove(const std::string& digits, const std::string& owner);
  // The response if it runs here, else null.
  std::shared_ptr<RunningResponse> running(const std::string& digits, const std::string& owner);
  // Calls `then` when the response no longer runs here, also if it does not run now: on a thread
  // that may wait, if the storage waits.
  void when_over(const std::string& digits, const std::string& owner, std::function<void()> then);
  // True if another process, which runs a response in progress, may be alive.
  bool may_run_elsewhere(const ResponseRecord& record);

  // Abandons a response that begin() has stored, when nothing more of it can be written. One in the
  // background stays in progress, and is run again.
  void abandon(const std::string& digits) noexcept;
  // Does periodic work; called now and then.
  void look();

  // Sets the function that look() calls with responses in the background that no process runs any
  // more: on a shared storage, whose process was not seen for Options::resume, at least 5 s. Called
  // on a thread that may wait. A response whose run is refused is tried again later. Null: `run` is
  // not called any more when this returns.
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
  std::map<std::string, TimePoint> refused_ GUARDED_BY(mutex_);  // not tried again before
  TimePoint next_interrupted_;                                   // used by look() only
  std::atomic<bool> runs_interrupted_{false};
  Mutex run_mutex_;
  std::function<void(ResponseRecord)> run_ GUARDED_BY(run_mutex_);
  WorkThreads threads_;  // last: their work uses the members above
};

}  // namespace lintel
