// SPDX-License-Identifier: Apache-2.0
// FaultyStorage: a storage that takes nothing more when its test says so, as where the process
// dies.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "server/sessions/storage/session_storage.h"

namespace lintel::testing {

// Passes everything on to `to`, which outlives it.
class FaultyStorage final : public SessionStorage {
 public:
  explicit FaultyStorage(SessionStorage& to) : to_(to) {}

  // From now on: everything is refused (dead), or commits alone are.
  void die() { refuse_ = dead_ = true; }
  void refuse_commits(std::optional<SessionError> with) {
    outcome_ = with.value_or(SessionError::kNone);
    refuse_ = with.has_value();
  }
  // Commits that were asked for wait until they are let go.
  void hold_commits(bool hold) {
    holds_ = hold;
    if (hold) return;
    for (auto& [writes, done] : std::exchange(held_, {}))
      commit(std::move(writes), std::move(done));
  }
  std::size_t held() const { return held_.size(); }
  // Other processes write, too.
  void share() { shared_ = true; }
  // The number of operations that a caller waits for, so far.
  int asked() const { return asked_; }
  // Claims are good for as long as this, from now on; null: until they are released.
  void lend(std::shared_ptr<const ClaimLease> lease) { lease_ = std::move(lease); }
  // Called before tokens are read.
  void before_read(std::function<void()> call) { before_read_ = std::move(call); }

  bool is_shared() const override { return shared_; }

  Opened open(const SessionId& id, const Owner& owner, const Digest* have) override {
    ++asked_;
    if (dead_) return {.outcome = SessionError::kStoreBroken};
    Opened opened = to_.open(id, owner, have);
    if (lease_ != nullptr) opened.lease = lease_;
    return opened;
  }
  // Opens as a shared storage does, if it is one.
  Opened open_at(const SessionId& id, const Owner& owner, const Digest& at,
                 const std::string& call) override {
    Opened found = find(id, owner);
    const bool is_named = !call.empty() && (found.row.call.find(call) != std::string::npos ||
                                            found.row.last_calls.find(call) != std::string::npos);
    if (!shared_ || found.outcome != SessionError::kNone || found.row.digest != at || is_named) {
      return found;
    }
    found = to_.open(id, owner, nullptr);
    if (found.outcome != SessionError::kNone) return to_.find(id, owner);
    const auto lease = std::make_shared<ClaimLease>();
    lease->prolong(TimePoint::max());
    found.lease = lease_ != nullptr ? lease_ : lease;
    return found;
  }
  Opened find(const SessionId& id, const Owner& owner) override {
    ++asked_;
    return to_.find(id, owner);
  }
  void commit(std::vector<Write> writes, Done done) override {
    if (refuse_) return done(std::vector<SessionError>(writes.size(), outcome_));
    if (holds_) {
      held_.emplace_back(std::move(writes), std::move(done));
    } else {
      to_.commit(std::move(writes), std::move(done));
    }
  }
  SessionError read_tokens(const SessionId& id, std::int64_t first,
                           std::span<std::int32_t> tokens) override {
    if (before_read_) before_read_();
    return to_.read_tokens(id, first, tokens);
  }
  SessionError put_state(const SessionId& id, std::span<const std::byte> state,
                         StateRef* ref) override {
    return dead_ ? SessionError::kStoreBroken : to_.put_state(id, state, ref);
  }
  SessionError read_state(const StateRef& ref, std::span<std::byte> state) override {
    return to_.read_state(ref, state);
  }
  std::vector<Row> list(const std::string& model, const SessionId& after, std::size_t limit,
                        const std::optional<Owner>& owner) override {
    return to_.list(model, after, limit, owner);
  }
  void renew(std::span<const SessionId> busy, Done done) override { to_.renew(busy, done); }
  std::size_t sweep(std::size_t most) override { return to_.sweep(most); }
  Health health() const override { return to_.health(); }

 private:
  SessionStorage& to_;
  std::atomic<bool> refuse_{false}, dead_{false};
  std::atomic<SessionError> outcome_{SessionError::kStoreBroken};
  bool holds_ = false, shared_ = false;
  std::atomic<int> asked_{0};
  std::shared_ptr<const ClaimLease> lease_;
  std::function<void()> before_read_;
  std::vector<std::pair<std::vector<Write>, Done>> held_;
};

}  // namespace lintel::testing
