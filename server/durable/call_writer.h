// CallWriter: the thread that writes down what calls on durable sessions read and draw.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "server/base/clock.h"
#include "server/base/mutex.h"
#include "server/durable/lost_claims.h"
#include "server/sessions/session_options.h"
#include "server/vault/session_vault.h"

namespace lintel {

class DurableCall;

// Many calls' values in one commit. A call's values are in its session's history already, so that
// whoever computes them does nothing for this.
//
// Thread-safe.
class CallWriter {
 public:
  struct Options {
    Duration interval{};                          // values of TOKEN calls are written so often
    Duration lazy_interval{};                     // of INPUT calls so often, or
    std::int64_t lazy_values = 0;                 // once they are so many
    Duration patience = std::chrono::seconds(1);  // with a store that is full or away
    // At a call's end the state is stored if the last stored one is so many values back.
    std::int64_t park_tokens = 0;
    std::chrono::seconds expire_after{};
    bool has_thread = true;  // else write() is called by its owner
  };

  // All outlive it.
  CallWriter(SessionVault& vault, LostClaims& lost, const Clock& clock, const Options& options);
  // Ends the calls that are left. REQUIRES: none runs.
  ~CallWriter();

  // The call's beginning is queued when it returns.
  void add(std::shared_ptr<DurableCall> call) EXCLUDES(mutex_);
  // A call has something to write, or to write again.
  void wake() EXCLUDES(mutex_);
  // The call is over. It uses the writer no more: this may be the last one that the writer waits
  // for to be destroyed.
  void remove(const DurableCall& call) EXCLUDES(mutex_);
  // What is due is queued when it returns.
  void write() EXCLUDES(mutex_);

  SessionVault& vault() const { return vault_; }
  LostClaims& lost_claims() const { return lost_; }
  const Clock& clock() const { return clock_; }
  const Options& options() const { return options_; }
  std::uint64_t states_stored() const { return states_stored_.load(); }
  void count_state() { states_stored_.fetch_add(1); }

 private:
  using Calls = std::vector<std::shared_ptr<DurableCall>>;

  void write_until_closed() EXCLUDES(mutex_);
  void write(const Calls& calls);
  // Until when nothing is due. nullopt: until it is woken.
  std::optional<Duration> pause() const REQUIRES(mutex_);

  SessionVault& vault_;
  LostClaims& lost_;
  const Clock& clock_;
  const Options options_;
  std::atomic<std::uint64_t> states_stored_{0};

  Mutex mutex_;
  CondVar woken_;
  Calls calls_ GUARDED_BY(mutex_);
  bool is_woken_ GUARDED_BY(mutex_) = false;
  bool closing_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace lintel
