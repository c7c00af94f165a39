// SPDX-License-Identifier: Apache-2.0
#include "tests/server/sessions/storage/redis_failures/written_session.h"

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

namespace lintel::testing {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kLongest = 1500;  // tokens of a session; then comes the next one
constexpr auto kPatience = 60s;

// Ids that lie in different buckets, and so at different masters.
std::string id_of(int number, int count) {
  const std::uint32_t bucket = (static_cast<std::uint32_t>(number) * 2654435761U +
                                static_cast<std::uint32_t>(count) * 40503U) >>
                               7;
  char id[32];
  std::snprintf(id, sizeof id, "%03x-%d-%d", bucket & 0xFFF, number, count);
  return id;
}

std::vector<std::byte> bytes_of(const Digest& digest) {
  return {digest.bytes.begin(), digest.bytes.end()};
}

}  // namespace

WritingSessions::WritingSessions(int number, std::uint64_t seed,
                                 std::vector<SessionStorage*> storages, Tally& tally)
    : number_(number),
      random_(static_cast<std::minstd_rand::result_type>(seed * 7919 + 1)),
      storages_(std::move(storages)),
      tally_(tally),
      known_(id_of(number, 0)) {
  begin_next();
}

std::int32_t WritingSessions::value_at(std::int64_t position) const {
  return static_cast<std::int32_t>((position * 7919 + number_ * 104729 + made_ * 31) % 50'000);
}

void WritingSessions::begin_next() {
  known_ = Client(id_of(number_, ++made_));
  maybe_.clear();
  passed_ = {bytes_of(known_.row.digest)};
  is_created_ = false;
  ++tally_.sessions;
  progress_ = std::chrono::steady_clock::now();
}

void WritingSessions::run(const std::atomic<bool>& over) {
  over_ = &over;
  while (!over) {
    if (!is_created_ && !create()) continue;
    SessionStorage& storage = *storages_[random_() % storages_.size()];
    if (!open(storage)) {
      if (is_stuck("could not be claimed")) return;
      std::this_thread::sleep_for(5ms);  // between polls
      continue;
    }
    bool is_held = true;
    const std::int64_t from = known_.row.position;
    for (auto writes = 1 + random_() % 8; is_held && writes > 0; --writes) {
      is_held = write(storage, false);
    }
    if (is_held) compare_values(storage, from);
    is_held = is_held && write(storage, true);
    if (!is_held || known_.row.position < kLongest) continue;
    finished_.push_back(known_);
    begin_next();
  }
}

bool WritingSessions::is_stuck(const std::string& what) {
  if (std::chrono::steady_clock::now() - progress_ < kPatience) return false;
  tally_.is_wrong(name() + " " + what + " for a minute");
  return true;
}

bool WritingSessions::create() {
  Writes writes;
  Client created(known_);
  created.create(writes);
  is_created_ = writes.commit_to(*storages_[0]).front() == SessionError::kNone;
  if (is_created_) ++tally_.acknowledged;
  return is_created_;
}

bool WritingSessions::open(SessionStorage& storage) {
  const SessionStorage::Opened opened = storage.open(known_.row.id, known_.row.owner, nullptr);
  switch (opened.outcome) {
    case SessionError::kNone:
      break;
    case SessionError::kNotFound:
    case SessionError::kDamaged:
      tally_.is_wrong(name() + ", of which " + std::to_string(known_.row.position) +
                      " tokens were acknowledged, is " + to_string(opened.outcome));
      begin_next();
      return false;
    default:
      return false;
  }
  progress_ = std::chrono::steady_clock::now();
  maybe_.insert(maybe_.begin(), known_);
  const auto same = std::ranges::find_if(maybe_, [&](const Client& each) {
    return each.row.digest == opened.row.digest && each.row.position == opened.row.position;
  });
  if (same == maybe_.end()) {
    maybe_.erase(maybe_.begin());
    confirm_loss(storage, opened);
    return false;
  }
  known_ = Client(*same);
  known_.claim = opened.claim;
  maybe_.clear();
  if (known_.row != opened.row) tally_.is_wrong(name() + ": another row than was written");
  return true;
}

SessionError WritingSessions::give_back(SessionStorage& storage, Client session) {
  SessionError outcome{};
  do {
    outcome = commit_one(storage, [&](Writes& to) { session.release(to); });
  } while (outcome == SessionError::kStoreAway && !is_stuck("was not released"));
  return outcome;
}

void WritingSessions::confirm_loss(SessionStorage& storage, const SessionStorage::Opened& opened) {
  Client there(known_);
  there.row = opened.row;
  there.claim = opened.claim;
  const SessionError outcome = give_back(storage, there);
  if (outcome != SessionError::kNone) {
    ++tally_.stale;
    return;
  }
  // Its position and digest tell where they are those of an earlier moment.
  ++tally_.rolled_back;
  const bool is_earlier = passed_.contains(bytes_of(opened.row.digest));
  tally_.is_wrong(name() + ": " + std::to_string(known_.row.position) +
                  " tokens were acknowledged, " + std::to_string(opened.row.position) +
                  " are there, " + (is_earlier ? "an earlier moment" : "no moment that was"));
  begin_next();
}

void WritingSessions::compare_values(SessionStorage& storage, std::int64_t position) {
  const bool all = random_() % 16 == 0;
  const std::int64_t from = all ? 0 : std::max<std::int64_t>(position - 64, 0);
  std::vector<std::int32_t> there(static_cast<std::size_t>(known_.row.position - from));
  if (there.empty()) return;
  const SessionError read = storage.read_tokens(known_.row.id, from, there);
  if (read == SessionError::kStoreAway) return;
  const bool same = read == SessionError::kNone &&
                    std::equal(there.begin(), there.end(), known_.tokens.begin() + from);
  if (!same) tally_.is_wrong(name() + ": other tokens than were acknowledged");
}

bool WritingSessions::write(SessionStorage& storage, bool is_end) {
  std::size_t count = 1 + random_() % 12;
  progress_ = std::chrono::steady_clock::now();
  while (true) {
    Client next(known_);
    Writes writes;
    if (is_end) {
      next.end(writes);
    } else {
      std::vector<std::int32_t> more(count);
      for (std::size_t i = 0; i < count; ++i) {
        more[i] = value_at(known_.row.position + static_cast<std::int64_t>(i));
      }
      next.append(writes, more);
    }
    maybe_.push_back(next);
    const SessionError outcome = writes.commit_to(storage).front();
    if (outcome == SessionError::kNone) {
      ++tally_.acknowledged;
      if (!is_end) tally_.tokens += count;
      known_ = std::move(next);
      passed_.insert(bytes_of(known_.row.digest));
      maybe_.clear();
      return true;
    }
    if (outcome != SessionError::kStoreAway) {
      ++tally_.refused;
      if (!is_end) give_back(storage, next);
      return false;
    }
    ++tally_.unanswered;
    if (is_stuck("was not written")) return false;
    count += random_() % 4;  // a failed try is repeated, with more
  }
}

void WritingSessions::check_all() {
  finished_.push_back(known_);
  for (std::size_t i = 0; i < finished_.size(); ++i) {
    const bool is_last = i + 1 == finished_.size();
    if (is_last && !is_created_) break;
    if (is_last && !maybe_.empty()) {  // as one of several
      progress_ = std::chrono::steady_clock::now();
      while (!open(*storages_[0]) && !is_stuck("could not be claimed")) {
        std::this_thread::sleep_for(5ms);  // between polls
      }
      continue;
    }
    const std::string difference = finished_[i].difference(*storages_[i % storages_.size()]);
    if (difference.empty()) continue;
    tally_.is_wrong(finished_[i].row.id + ", at the end: " + difference);
  }
}

}  // namespace lintel::testing
