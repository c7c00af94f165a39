// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/storage/redis/held_session.h"

#include <algorithm>
#include <utility>

#include "server/sessions/storage/storage_records.h"

namespace lintel {
namespace {

using Kind = SessionStorage::Write::Kind;

// The bounds of the past from which a session can be written again.
constexpr std::size_t kMostMarks = 1024;
constexpr std::size_t kMostTail = 1 << 16;

int width_of(std::int32_t token) {
  const auto bits = static_cast<std::uint32_t>(token);
  return bits < 256 ? 1 : bits < 65536 ? 2 : 4;
}

}  // namespace

HeldSession::HeldSession(SessionStorage::Claim claim, Row row, int bytes,
                         std::shared_ptr<ClaimLease> until)
    : nonce(claim.nonce),
      fence(claim.fence),
      width(bytes),
      lease(std::move(until)),
      claim_(claim),
      row_(std::move(row)),
      tail_first_(row_.position) {
  mark();
}

void HeldSession::mark() {
  if (!marks_.empty() && marks_.back().digest == row_.digest) return;
  marks_.push_back({row_.digest, row_.position});
  if (marks_.size() > kMostMarks) marks_.pop_front();
}

HeldSession::SentPtr HeldSession::next() {
  auto sent = std::make_shared<Sent>();
  // A lost renewal delays nothing.
  const auto ahead = std::find_if(flights_.rbegin(), flights_.rend(),
                                  [](const Flight& flight) { return !flight.is_renewal; });
  sent->least = ahead == flights_.rend() ? known_ : std::max(known_, ahead->number);
  sent->number = ++last_;
  sent->claim = claim_;
  sent->before = row_;
  sent->first = row_.position;
  sent->befores = {row_.digest};
  sent->befores.insert(sent->befores.end(), maybe_.begin(), maybe_.end());
  sent->nonce = nonce;
  sent->width = width;
  return sent;
}

HeldSession::SentPtr HeldSession::renewal() {
  SentPtr sent = next();
  sent->kind = Kind::kState;
  sent->is_renewal = true;
  sent->after = row_;
  flights_.push_back({sent->number, row_, /*is_renewal=*/true});
  return sent;
}

SessionError HeldSession::apply(const SessionStorage::Write& write, SentPtr* result) {
  StorageSession session(row_);
  StorageSession::Undo undo;
  const SessionError outcome = session.apply(write, &undo);
  if (outcome != SessionError::kNone) return outcome;
  const SentPtr sent = *result != nullptr ? *result : next();
  const bool is_first = *result == nullptr;
  sent->kind = write.kind;
  sent->is_history |= write.before != write.after;
  sent->with_row |= write.kind != Kind::kValues && write.kind != Kind::kRelease;
  if (write.kind == Kind::kRewind) {
    sent->first = session.row().position;
    sent->tokens.clear();
  }
  const std::vector<std::int32_t>& tokens = session.tokens();
  sent->tokens.insert(sent->tokens.end(), tokens.begin(), tokens.end());
  sent->after = session.row();
  for (const std::int32_t token : tokens) width = std::max(width, width_of(token));
  sent->width = width;
  if (is_first) flights_.push_back({sent->number, std::move(row_)});
  row_ = session.row();
  if (write.kind == Kind::kRewind) {
    if (row_.position < tail_first_) {
      forget_tail();
    } else {
      tail_.resize(std::min<std::size_t>(tail_.size(),
                                         static_cast<std::size_t>(row_.position - tail_first_)));
    }
  }
  tail_.insert(tail_.end(), tokens.begin(), tokens.end());
  if (tail_.size() > 2 * kMostTail) {
    const std::size_t gone = tail_.size() - kMostTail;
    tail_.erase(tail_.begin(), tail_.begin() + static_cast<std::ptrdiff_t>(gone));
    tail_first_ += static_cast<std::int64_t>(gone);
  }
  mark();
  *result = sent;
  return SessionError::kNone;
}

void HeldSession::forget_tail() {
  tail_.clear();
  tail_first_ = row_.position;
}

void HeldSession::lets_go(Sent& sent) {
  for (const std::uint64_t where : put) {
    const auto& states = sent.after.states;
    if (std::ranges::find(states, where, &SessionStorage::StateRef::where) == states.end()) {
      sent.dropped.push_back(where);
    }
  }
}

void HeldSession::stands(const Sent& sent) {
  known_ = std::max(known_, sent.number);
  if (sent.is_history) maybe_.clear();
  for (const SessionStorage::StateRef& state : sent.after.states) put.erase(state.where);
  const auto flight = std::ranges::find(flights_, sent.number, &Flight::number);
  if (flight != flights_.end()) {
    flights_.erase(flights_.begin(), flight + 1);
  } else if (flights_.empty() && sent.number == last_) {
    row_ = sent.after;  // an earlier one was assumed to have failed
    forget_tail();
  }
}

void HeldSession::is_refused(const Sent& sent, bool may_stand) {
  if (may_stand && sent.is_history) maybe_.push_back(sent.after.digest);
  const auto flight = std::ranges::find(flights_, sent.number, &Flight::number);
  if (flight == flights_.end()) return;  // an earlier one has failed already
  if (sent.is_renewal) {
    flights_.erase(flight);  // nothing depends on it
    return;
  }
  row_ = std::move(flight->before);
  flights_.erase(flight, flights_.end());
  const std::int64_t end = tail_first_ + static_cast<std::int64_t>(tail_.size());
  if (row_.position < tail_first_ || row_.position > end) {
    forget_tail();
  } else {
    tail_.resize(static_cast<std::size_t>(row_.position - tail_first_));
  }
}

std::optional<HeldSession::Missing> HeldSession::missing(const Sent& sent,
                                                         const Digest& digest) const {
  const auto last_with = [&](auto from, const Digest& wanted) {
    return std::find_if(from, marks_.rend(),
                        [&](const Mark& mark) { return mark.digest == wanted; });
  };
  // Marks after it belong to later writes, or to writes that were not stored.
  const auto begin = last_with(marks_.rbegin(), sent.before.digest);
  // The last mark with the digest, as a history may return to an earlier position.
  const auto found = last_with(begin, digest);
  if (found == marks_.rend()) return std::nullopt;
  Missing missing{.first = std::min(found->position, sent.before.position)};
  for (auto later = found; later != begin;) {
    missing.first = std::min(missing.first, (--later)->position);
  }
  const std::int64_t end = tail_first_ + static_cast<std::int64_t>(tail_.size());
  if (missing.first < std::min(tail_first_, sent.before.position) || sent.before.position > end) {
    if (missing.first != sent.before.position) return std::nullopt;
    return missing;
  }
  if (missing.first < tail_first_) return std::nullopt;
  missing.tokens.assign(tail_.begin() + (missing.first - tail_first_),
                        tail_.begin() + (sent.before.position - tail_first_));
  return missing;
}

}  // namespace lintel
