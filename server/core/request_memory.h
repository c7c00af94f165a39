// SPDX-License-Identifier: Apache-2.0
// RequestMemory: the memory that requests may hold, all together and for each identity.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "server/core/mutex.h"

namespace lintel {

// The reason why there is no memory for a request. False: there is.
struct RequestRefusal {
  enum class Kind {
    kNone,
    kFull,          // others hold it: it may be there later
    kIdentityFull,  // other requests of the same identity hold it
    kTooLarge,      // more than `limit`, so that it is never there
  };
  Kind kind = Kind::kNone;
  std::size_t needed = 0;  // bytes of the request, what it had included
  std::size_t limit = 0;   // bytes, of the flag
  const char* flag = "";   // whose limit it is
  explicit operator bool() const { return kind != Kind::kNone; }
};

// Gives what the allocator keeps of freed memory back to the system: after a peak it is tens of
// megabytes, scattered in its heaps.
void trim_heap() noexcept;

// The memory that requests hold from the moment they are parsed: bodies, trees of JSON, prompts,
// answers that are kept until they are written, events that are kept for readers. (HTTP bodies
// count among --http-memory until they are read, with the JSON of those that become messages;
// states and the memory of running sequences count among --session-memory.)
//
// A request is charged with the most that it may come to hold before it holds it, as states are,
// and releases what it has dropped or written. So an accepted request never has to be ended for
// what others hold. There is one place that refuses, Charge::add(), and one that releases.
//
// Thread-safe. A charge is used by one thread at a time. The object outlives its charges.
class RequestMemory {
 public:
  struct Limits {
    std::size_t bytes = 0;
    std::size_t bytes_per_identity = 0;  // 0: no limit of its own
  };
  struct Stats {
    std::size_t bytes = 0;
    // Counts indexed by RequestRefusal::Kind; [0] is not used.
    std::array<std::uint64_t, 4> refused{};
  };

  class Charge;

  // give_back: called before memory that large requests release counts as free. It does not throw.
  explicit RequestMemory(const Limits& limits, std::function<void()> give_back = trim_heap)
      : limits_(limits), give_back_(std::move(give_back)) {}
  ~RequestMemory();  // REQUIRES: no charge lives
  RequestMemory(const RequestMemory&) = delete;
  RequestMemory& operator=(const RequestMemory&) = delete;

  const Limits& limits() const { return limits_; }
  Stats stats() const EXCLUDES(mutex_);

 private:
  struct Share {
    std::size_t bytes = 0;
    std::size_t charges = 0;  // that refer to it
  };
  using Shares = std::map<std::string, Share, std::less<>>;

  Shares::iterator join(const std::string& identity) EXCLUDES(mutex_);
  void join(Shares::iterator share) noexcept EXCLUDES(mutex_);
  void leave(Shares::iterator share) noexcept EXCLUDES(mutex_);
  // request: bytes of all its charges.
  RequestRefusal admit(Shares::iterator share, std::size_t& request, std::size_t more)
      EXCLUDES(mutex_);
  void give_back(Shares::iterator share, std::size_t& request, std::size_t bytes) noexcept
      EXCLUDES(mutex_);

  // Releases of so much in one go are added up, and from so many bytes on `give_back` is called.
  static constexpr std::size_t kLargeBytes = std::size_t{4} << 20;
  static constexpr std::size_t kGivenBackBytes = std::size_t{16} << 20;

  const Limits limits_;
  const std::function<void()> give_back_;
  std::atomic<std::size_t> freed_{0};  // in large releases, since the last call
  mutable Mutex mutex_;
  std::size_t bytes_ GUARDED_BY(mutex_) = 0;
  Shares shares_ GUARDED_BY(mutex_);  // of the identities that have charges
  std::array<std::uint64_t, 4> refused_ GUARDED_BY(mutex_){};
};

// The memory that one request, or a part of it, holds; released when destroyed. Move-only.
class RequestMemory::Charge {
 public:
  // A charge without an account: bytes are counted, and none are refused.
  Charge() = default;
  // Holds nothing yet. memory: null: of no account. Throws std::bad_alloc.
  Charge(RequestMemory* memory, const std::string& identity);
  Charge(Charge&& other) noexcept;
  Charge& operator=(Charge&& other) noexcept;
  ~Charge() { release(); }

  bool has_account() const { return memory_ != nullptr; }
  std::size_t bytes() const { return bytes_; }
  // All or nothing; what was held stays held.
  [[nodiscard]] RequestRefusal add(std::size_t bytes);
  // Releases what is held beyond `bytes`.
  void shrink_to(std::size_t bytes) noexcept;
  // An empty charge of the same request: what is refused for good is what all of them need.
  Charge beside() const noexcept;
  // A charge of `bytes` of these, for what is held apart from now on; all of them where there are
  // fewer. Nothing is asked for.
  Charge split(std::size_t bytes) noexcept;

 private:
  void release() noexcept;

  RequestMemory* memory_ = nullptr;
  Shares::iterator share_;                // where there is an account
  std::shared_ptr<std::size_t> request_;  // bytes of its charges; guarded by the account
  std::size_t bytes_ = 0;
};

}  // namespace lintel
