// SPDX-License-Identifier: Apache-2.0
#include "server/security/quotas.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace lintel {
namespace {

Quotas::Limits settled(Quotas::Limits limits) {
  if (limits.token_burst == 0) limits.token_burst = 10 * limits.tokens_per_second;
  return limits;
}

}  // namespace

Quotas::Quotas(const Limits& limits, const Clock& clock)
    : limits_(settled(limits)), clock_(clock) {}

Quotas::Account& Quotas::account(const std::string& identity) {
  const TimePoint now = clock_.now();
  const double burst = static_cast<double>(limits_.token_burst);
  const auto [found, is_new] = accounts_.try_emplace(identity);
  Account& account = found->second;
  if (is_new) {
    account.tokens = burst;
  } else {
    const double seconds = std::chrono::duration<double>(now - account.updated).count();
    const double income = std::max(seconds, 0.0) * static_cast<double>(limits_.tokens_per_second);
    account.tokens = std::min(account.tokens + income, burst);
  }
  account.updated = std::max(account.updated, now);
  return account;
}

bool Quotas::enter_stream(const std::string& identity) {
  MutexLock lock(mutex_);
  Account& mine = account(identity);
  if (limits_.max_streams != 0 &&
      (mine.streams >= limits_.max_streams || mine.on_the_wire >= kMostOnTheWire)) {
    return false;
  }
  ++mine.streams;
  return true;
}

void Quotas::finish_stream(const std::string& identity) {
  MutexLock lock(mutex_);
  Account& mine = account(identity);
  --mine.streams;
  ++mine.on_the_wire;
}

void Quotas::leave_stream(const std::string& identity) {
  MutexLock lock(mutex_);
  Account& mine = account(identity);
  --mine.on_the_wire;
  if (mine.streams == 0 && mine.on_the_wire == 0 &&
      mine.tokens >= static_cast<double>(limits_.token_burst)) {
    accounts_.erase(identity);
  }
}

Duration Quotas::debt(const Account& account) const {
  if (account.tokens >= 0) return Duration::zero();
  const double seconds = -account.tokens / static_cast<double>(limits_.tokens_per_second);
  return std::chrono::ceil<std::chrono::microseconds>(std::chrono::duration<double>(seconds)) +
         std::chrono::microseconds(1);
}

Duration Quotas::pay(const std::string& identity, std::int64_t tokens) {
  if (limits_.tokens_per_second == 0) return Duration::zero();
  MutexLock lock(mutex_);
  Account& mine = account(identity);
  mine.tokens -= static_cast<double>(tokens);
  return debt(mine);
}

Duration Quotas::wait_to_begin(const std::string& identity) {
  if (limits_.tokens_per_second == 0) return Duration::zero();
  MutexLock lock(mutex_);
  return std::max<Duration>(debt(account(identity)) - kLongestWait, Duration::zero());
}

}  // namespace lintel
