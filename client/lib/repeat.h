// SPDX-License-Identifier: Apache-2.0
// Calls on sessions that outlive the server (Session.durability): when a call that was cut off is
// sent again, how long after, and what of its tokens was seen.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "client/lib/call_error.h"
#include "lintel/v1/generation.pb.h"
#include "lintel/v1/session.pb.h"

namespace lintel {

// The key by which a balancer sends a session's calls to the server that has the session in memory.

// Sent as metadata with calls that name a session: Session.affinity_key, the first 64 bits of
// SHA-256(id) in hexadecimal, for proxies' logs shall not hold ids.
inline constexpr const char* kAffinityHeader = "lintel-affinity";
std::string affinity_key(const std::string& session_id);

// Calls that failed because no connection to the server came about.

struct ConnectFailure {
  // The reason, for people: "Connection refused". One line, without the address.
  std::string reason;
  // A remedy to try, where the failure looks like TLS on one side alone; else empty.
  std::string hint;
  // The reason is none that connect() gives. gRPC 1.51 now and then fails a first connection so,
  // which succeeds when it is tried again.
  bool odd = false;
};

// Nothing when the status has another cause: then the call may have reached the server.
// `encrypted`: how the call was to be made.
std::optional<ConnectFailure> connect_failure(const grpc::Status& status, bool encrypted);

// True if gRPC reports a connection that broke under a call; servers have other words.
bool is_lost_connection(const grpc::Status& status);

// The servers that a client may call, each of which will do, and the one that it calls.

// `Server`: one of them. A client stays with one for as long as that answers, for what its sessions
// left in that server's memory; then it goes to the next. A name stands for one server until that
// fails; then for each of the addresses that it has, and when all of those were gone through for
// itself again: by then it may have others.
//
// Threads: any.
template <typename Server>
class Servers {
 public:
  using Shared = std::shared_ptr<Server>;
  // The servers behind that one's name, the one that answers at `peer` last; one or none: it is no
  // name of several. Waits.
  using Spread = std::function<std::vector<Shared>(const Server& server, const std::string& peer)>;

  // REQUIRES: all is not empty. spread: null: names stand for themselves.
  explicit Servers(std::vector<Shared> all, Spread spread = nullptr)
      : original_(std::move(all)), all_(original_), spread_(std::move(spread)) {}

  Shared current() const {
    const std::lock_guard lock(mutex_);
    return all_[current_];
  }
  std::size_t count() const {
    const std::lock_guard lock(mutex_);
    return all_.size();
  }

  // `failed` is not to be called now: the one after it is, unless another call has gone on
  // already. peer: where it was reached; empty: it was not. Returns whether there is another one.
  bool leave(const Shared& failed, const std::string& peer) {
    std::vector<Shared> several;
    if (spread_ != nullptr && !peer.empty() && current() == failed)
      several = spread_(*failed, peer);
    const std::lock_guard lock(mutex_);
    if (all_[current_] != failed) return all_.size() > 1;
    if (several.size() > 1) {
      const auto at = all_.erase(all_.begin() + static_cast<std::ptrdiff_t>(current_));
      all_.insert(at, several.begin(), several.end());  // the first of which is current now
    } else if (++current_ == all_.size()) {
      all_ = original_;
      current_ = 0;
    }
    return all_.size() > 1;
  }

 private:
  const std::vector<Shared> original_;
  mutable std::mutex mutex_;
  std::vector<Shared> all_;  // guarded by mutex_
  std::size_t current_ = 0;  // guarded by mutex_
  const Spread spread_;
};

// 128 random bits in hexadecimal.
std::string random_call_id();

// True if the server may be gone, so that another one can do the call. A server that shuts down
// cancels calls that do not end in time: REQUIRES that this side has not cancelled the call.
bool names_a_lost_server(const CallError& error);

// True if the call may go through when it is sent again. `sent`: it was before, and may still run
// on the server, which then says ABORTED, or has to find its place there once more. REQUIRES as
// above.
bool worth_repeating(const CallError& error, bool sent);

// Pauses between tries: 100 ms, doubling to 2 s, each up to a fifth longer or shorter, so that
// clients that lost their server together do not come back together; at least as long as the server
// says. All of it for at most `patience` since something came.
class RepeatPauses {
 public:
  using Clock = std::chrono::steady_clock;

  explicit RepeatPauses(std::chrono::milliseconds patience) : patience_(patience) {}

  void something_came();
  // After a failure. Nothing: patience is at its end.
  std::optional<std::chrono::milliseconds> next(const CallError& error,
                                                Clock::time_point now = Clock::now());
  // Until it is. REQUIRES: the last call was of next().
  std::chrono::milliseconds left(Clock::time_point now = Clock::now()) const;

 private:
  const std::chrono::milliseconds patience_;
  std::optional<Clock::time_point> give_up_;  // set by the first failure since something came
  std::chrono::milliseconds pause_{0};        // without jitter; 0: none yet
  std::minstd_rand random_{std::random_device{}()};
};

// The positions of a call that were seen, which its repeats do not say again.
class SeenPositions {
 public:
  explicit SeenPositions(std::int64_t from) : next_(from) {}

  // The first one that was not; what a repeat asks for from.
  std::int64_t next() const { return next_; }
  // The part of the chunk that was not; null: all was. Valid until the next call, and as long as
  // the chunk. Throws CallError with INTERNAL where positions are left out.
  const v1::Chunk* new_part(const v1::Chunk& chunk);

 private:
  std::int64_t next_;
  bool any_ = false;
  v1::Chunk cut_;
};

// Sessions known to outlive the server or not, as far as the server has said.
//
// Threads: any.
class KnownDurability {
 public:
  void note(const v1::Session& session);
  std::optional<bool> of(const std::string& id) const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::string, bool> durable_;  // by id; guarded by mutex_
};

}  // namespace lintel
