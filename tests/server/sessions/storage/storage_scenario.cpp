// SPDX-License-Identifier: Apache-2.0
#include "tests/server/sessions/storage/storage_scenario.h"

#include <algorithm>
#include <numeric>

namespace lintel::testing {
namespace {

// The state that scenarios put for a position of a history.
std::vector<std::byte> state_for(const Client& session, std::int64_t position) {
  const auto tokens =
      std::span(session.tokens)
          .first(static_cast<std::size_t>(std::max<std::int64_t>(position - session.row.base, 0)));
  return state_of(static_cast<std::uint64_t>(position) * 1000003 +
                  std::accumulate(tokens.begin(), tokens.end(), std::uint64_t{0}) *
                      (session.row.base == 0 ? 1 : 0));
}

std::string state_difference(SessionStorage& storage, const Client& session, bool may_be_lost) {
  for (const SessionStorage::StateRef& ref : session.row.states) {
    std::vector<std::byte> state(ref.bytes);
    const SessionError outcome = storage.read_state(ref, state);
    const std::string at = "state at " + std::to_string(ref.position) + ": ";
    const bool needed = session.row.base > 0 && ref.position <= session.row.base;
    if (outcome == SessionError::kDamaged && may_be_lost && !needed) continue;
    if (outcome != SessionError::kNone) return at + to_string(outcome);
    if (session.row.base == 0 && state != state_for(session, ref.position)) return at + "another";
  }
  return "";
}

}  // namespace

std::string difference(SessionStorage& storage, const Sessions& sessions, bool states_may_be_lost) {
  for (const auto& [id, session] : sessions) {
    if (const std::string at = session.difference(storage); !at.empty()) return id + ": " + at;
    const std::string at = state_difference(storage, session, states_may_be_lost);
    if (!at.empty()) return id + ": " + at;
  }
  for (const SessionStorage::Row& row : storage.list("digits", "", 1000, {})) {
    if (!sessions.contains(row.id)) return row.id + " should not be there";
  }
  return "";
}

void Scenario::create(Writes& writes) {
  Client session("session " + std::to_string(made_++));
  if (below(2) == 0 && !sessions_.empty()) {  // a fork
    const Client& source = std::next(sessions_.begin(), below(sessions_.size()))->second;
    session.tokens = source.tokens;
    session.row.base = source.row.base;
    session.row.position = source.row.position;
    session.row.states = source.row.states;
  }
  session.create(writes);
  sessions_.emplace(session.row.id, session);
}

void Scenario::change(SessionStorage& storage, Client& session, Writes& writes) {
  const std::string id = session.row.id;
  const std::int64_t what = below(12);
  if (what < 5) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(1 + below(900)));
    std::iota(tokens.begin(), tokens.end(), static_cast<std::int32_t>(below(70'000)));
    session.append(writes, tokens);
  } else if (what == 5) {
    session.begin(writes, "call " + std::to_string(random_()));
  } else if (what == 6) {
    session.end(writes);
    held_.erase(id);
  } else if (what == 7 && !session.tokens.empty()) {
    session.rewind(writes, session.row.base + below(session.tokens.size()));
  } else if (what == 8 && session.row.position > session.row.base) {
    SessionStorage::StateRef ref;
    ref.position = session.row.position;
    std::vector<SessionStorage::StateRef> states = session.row.states;
    const bool trims = below(3) == 0;
    if (storage.put_state(id, state_for(session, ref.position), &ref) == SessionError::kNone) {
      std::erase_if(states, [&](const auto& state) { return state.position == ref.position; });
      if (states.size() > 2) states.erase(states.begin());
      states.push_back(ref);
    }
    const bool can = trims && !states.empty() && states.front().position > session.row.base;
    session.states(writes, states, can ? states.front().position : 0);
  } else if (what == 9 && below(3) == 0) {
    session.remove(writes);
    held_.erase(id);
    sessions_.erase(id);
  } else {
    session.release(writes);
    held_.erase(id);
  }
}

SessionError Scenario::step(SessionStorage& storage) {
  const Sessions before = sessions_;
  std::vector<std::string> there;
  for (const auto& [id, session] : sessions_) there.push_back(id);
  Writes writes;
  if (sessions_.size() < 3 || below(10) == 0) create(writes);
  std::set<std::string> opened = held_;
  for (const std::string& id : there) {
    if (!held_.contains(id)) {
      if (below(3) != 0) continue;
      const SessionError outcome = sessions_.at(id).open(storage);
      if (outcome != SessionError::kNone) {
        attempted_ = sessions_ = before;
        return outcome;
      }
      held_.insert(id);
      opened.insert(id);
    }
    change(storage, sessions_.at(id), writes);
  }
  if (writes.empty()) create(writes);
  const std::vector<SessionError> outcomes = writes.commit_to(storage);
  const auto refused = std::ranges::find_if(
      outcomes, [](SessionError outcome) { return outcome != SessionError::kNone; });
  if (refused == outcomes.end()) return SessionError::kNone;
  // The claims that were taken for it stay.
  attempted_ = std::move(sessions_);
  sessions_ = before;
  held_ = opened;
  for (auto& [id, session] : sessions_) {
    if (const auto with_claim = attempted_.find(id); with_claim != attempted_.end()) {
      session.claim = with_claim->second.claim;
    }
  }
  return *refused;
}

SessionError Scenario::release(SessionStorage& storage) {
  Writes writes;
  attempted_ = sessions_;
  for (const std::string& id : held_) sessions_.at(id).release(writes);
  held_.clear();
  if (writes.empty()) return SessionError::kNone;
  for (const SessionError outcome : writes.commit_to(storage)) {
    if (outcome != SessionError::kNone) return outcome;
  }
  return SessionError::kNone;
}

}  // namespace lintel::testing
