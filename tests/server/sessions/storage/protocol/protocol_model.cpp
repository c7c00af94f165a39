// SPDX-License-Identifier: Apache-2.0
#include "tests/server/sessions/storage/protocol/protocol_model.h"

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <unordered_map>

namespace lintel::testing {
namespace {

constexpr char kNames[] = {'A', 'B'};
constexpr char kValues[] = {'a', 'b'};  // a replica's own draws: histories show who wrote them

// The session as a Redis server has it.
struct StoredSession {
  int counter = 0, nonce = 0;
  std::string tokens;
};

struct ModelRequest {
  enum class Kind : char { kNone = '-', kClaim = 'c', kWrite = 'w' } kind = Kind::kNone;
  int counter = 0, nonce = 0;  // kClaim: the nonce to be
  std::string before;          // of kWrite
  char token = 0;

  bool exists() const { return kind != Kind::kNone; }
  std::string after() const { return before + token; }
};

struct ModelReplica {
  bool holds = false;
  int counter = 0, nonce = 0;
  std::string tokens;   // the store's tokens, as far as it knows
  std::string missing;  // tokens that the store has lost: written again before anything new
  std::string unacknowledged;
  ModelRequest sent, stray;  // stray: an earlier request that was given up, and may still arrive
};

struct ModelState {
  StoredSession store, copy;
  bool failed_over = false;
  int nonces = 0;  // given out so far
  std::string acknowledged;
  std::array<ModelReplica, 2> replicas;

  std::string key() const {
    std::string all;
    const auto add = [&](const std::string& text) { all += text + '|'; };
    const auto number = [&](int value) { all += static_cast<char>('0' + value); };
    for (const StoredSession* stored : {&store, &copy}) {
      number(stored->counter);
      number(stored->nonce);
      add(stored->tokens);
    }
    number(failed_over);
    number(nonces);
    add(acknowledged);
    for (const ModelReplica& replica : replicas) {
      number(replica.holds);
      number(replica.counter);
      number(replica.nonce);
      add(replica.tokens);
      add(replica.missing);
      add(replica.unacknowledged);
      for (const ModelRequest* request : {&replica.sent, &replica.stray}) {
        all += static_cast<char>(request->kind);
        number(request->counter);
        number(request->nonce);
        add(request->before);
        if (request->token != 0) all += request->token;
      }
    }
    return all;
  }
};

bool begins_with(const std::string& text, const std::string& beginning) {
  return text.compare(0, beginning.size(), beginning) == 0;
}

class ProtocolModel {
 public:
  ProtocolModel(const ProtocolRules& rules, const ProtocolBounds& bounds)
      : rules_(rules), bounds_(bounds) {}

  ProtocolSearch search();

 private:
  using Fault = std::optional<ProtocolFault::Kind>;
  struct Reached {
    std::string from, event;
  };

  void visit(const ModelState& state);
  void visit_replica(const ModelState& state, std::size_t who);
  void visit_arrival(const ModelState& state, std::size_t who, bool is_stray);
  bool passes(const StoredSession& store, const ModelRequest& write) const;
  void answer_claim(ModelState& state, std::size_t who, const ModelRequest& claim) const;
  void answer_write(ModelState& state, std::size_t who, const ModelRequest& write,
                    bool accepted) const;
  void reach(ModelState next, const std::string& event, Fault fault = std::nullopt);
  ProtocolFault fault_after(ProtocolFault::Kind kind, const std::string& event) const;

  const ProtocolRules rules_;
  const ProtocolBounds bounds_;
  std::unordered_map<std::string, Reached> reached_;
  std::deque<ModelState> open_;
  std::string now_;  // key of the state whose successors are looked for
  ProtocolSearch result_;
};

ProtocolSearch ProtocolModel::search() {
  reach(ModelState(), "");
  while (!open_.empty()) {
    const ModelState state = std::move(open_.front());
    open_.pop_front();
    now_ = state.key();
    visit(state);
  }
  result_.states = reached_.size();
  return result_;
}

void ProtocolModel::visit(const ModelState& state) {
  for (std::size_t who = 0; who < 2; ++who) visit_replica(state, who);
  if (state.failed_over) return;
  ModelState next = state;
  next.copy = state.store;
  reach(next, "the copy catches up");
  next = state;
  next.failed_over = true;
  next.store = state.copy;
  for (ModelReplica& replica : next.replicas) replica.unacknowledged.clear();  // WAIT fails
  reach(next, "failover to the copy, which has \"" + state.copy.tokens + '"');
}

void ProtocolModel::visit_replica(const ModelState& state, std::size_t who) {
  const ModelReplica& replica = state.replicas[who];
  const std::string name(1, kNames[who]);
  if (!replica.sent.exists()) {
    ModelState next = state;
    ModelRequest& sent = next.replicas[who].sent;
    if (replica.holds && replica.tokens.size() < bounds_.tokens) {
      sent = {ModelRequest::Kind::kWrite, replica.counter, replica.nonce, replica.tokens,
              replica.missing.empty() ? kValues[who] : replica.missing[0]};
      reach(next, name + " sends a write upon \"" + replica.tokens + '"');
    } else if (!replica.holds && state.nonces < bounds_.claims) {
      sent = {ModelRequest::Kind::kClaim, 0, ++next.nonces, "", 0};
      reach(next, name + " sends a claim");
    }
  } else {
    visit_arrival(state, who, false);
    if (bounds_.has_late_requests &&
        !replica.stray.exists()) {  // it is sent again: both may arrive
      ModelState next = state;
      next.replicas[who].stray = replica.sent;
      if (replica.sent.kind == ModelRequest::Kind::kClaim) next.replicas[who].sent = {};
      reach(next, name + " waits no longer for its answer and may ask again");
    }
  }
  if (replica.stray.exists()) visit_arrival(state, who, true);
  if (!replica.unacknowledged.empty() && (!rules_.waits || state.failed_over ||
                                          begins_with(state.copy.tokens, replica.unacknowledged))) {
    ModelState next = state;
    next.replicas[who].unacknowledged.clear();
    const bool is_one_line = begins_with(replica.unacknowledged, state.acknowledged) ||
                             begins_with(state.acknowledged, replica.unacknowledged);
    if (replica.unacknowledged.size() > state.acknowledged.size()) {
      next.acknowledged = replica.unacknowledged;
    }
    reach(next, name + " acknowledges \"" + replica.unacknowledged + '"',
          is_one_line ? Fault() : Fault(ProtocolFault::Kind::kGone));
  }
  if (replica.holds || !replica.tokens.empty()) {
    ModelState next = state;
    const ModelRequest last = replica.sent, stray = replica.stray;
    next.replicas[who] = {};
    if (bounds_.has_late_requests) next.replicas[who].stray = last.exists() ? last : stray;
    reach(next, name + " restarts");
  }
}

// A request is carried out now, and its answer comes, unless it is lost or no replica waits for it.
void ProtocolModel::visit_arrival(const ModelState& state, std::size_t who, bool is_stray) {
  const ModelReplica& replica = state.replicas[who];
  const ModelRequest request = is_stray ? replica.stray : replica.sent;
  const std::string name(1, kNames[who]);
  ModelState next = state;
  if (is_stray) next.replicas[who].stray = {};
  if (request.kind == ModelRequest::Kind::kClaim) {
    ++next.store.counter;
    next.store.nonce = request.nonce;
    if (is_stray) {
      reach(next, name + "'s late claim is granted, its answer dropped");
      return;
    }
    answer_claim(next, who, request);
    reach(next, name + " is granted claim " + std::to_string(next.store.counter) + " upon \"" +
                    next.store.tokens + '"');
    return;
  }
  const bool is_done = rules_.digest && state.store.tokens == request.after();
  const bool accepted = is_done || passes(state.store, request);
  Fault fault;
  if (accepted && !is_done) {
    if (state.store.tokens != request.before && state.store.tokens != request.after()) {
      fault = ProtocolFault::Kind::kForeignWrite;
    }
    // SETRANGE: at the writer's own offset, over what is there.
    next.store.tokens.resize(request.before.size(), '.');
    next.store.tokens += request.token;
  }
  const std::string event = name + (is_stray ? "'s late write" : "'s write") + " upon \"" +
                            request.before + "\" is " + (accepted ? "accepted" : "refused") +
                            " upon \"" + state.store.tokens + '"';
  if (!is_stray) {
    // The answer is lost, and the write will be sent again.
    reach(next, event + ", the answer lost", fault);
    answer_write(next, who, request, accepted);
  }
  reach(next, event, fault);
}

bool ProtocolModel::passes(const StoredSession& store, const ModelRequest& write) const {
  return (!rules_.counter || store.counter == write.counter) &&
         (!rules_.nonce || store.nonce == write.nonce) &&
         (!rules_.length || store.tokens.size() == write.before.size()) &&
         (!rules_.digest || store.tokens == write.before);
}

// A replica heals a store that has the beginning of the tokens it had written; else it has lost.
void ProtocolModel::answer_claim(ModelState& state, std::size_t who,
                                 const ModelRequest& claim) const {
  ModelReplica& replica = state.replicas[who];
  const std::string own = replica.tokens + replica.missing;
  replica.missing =
      begins_with(own, state.store.tokens) ? own.substr(state.store.tokens.size()) : "";
  replica.tokens = state.store.tokens;
  replica.holds = true;
  replica.counter = state.store.counter;
  replica.nonce = claim.nonce;
  replica.sent = {};
}

void ProtocolModel::answer_write(ModelState& state, std::size_t who, const ModelRequest& write,
                                 bool accepted) const {
  ModelReplica& replica = state.replicas[who];
  replica.sent = {};
  if (!accepted) {  // its tokens are kept: a claim may find that the store can be healed
    replica.holds = false;
    return;
  }
  replica.tokens = write.after();
  if (!replica.missing.empty()) replica.missing.erase(0, 1);
  replica.unacknowledged = replica.tokens;
}

void ProtocolModel::reach(ModelState next, const std::string& event, Fault fault) {
  if (!fault && !begins_with(next.store.tokens, next.acknowledged)) {
    fault = ProtocolFault::Kind::kGone;
  }
  if (fault) {
    std::optional<ProtocolFault>& first =
        *fault == ProtocolFault::Kind::kGone ? result_.gone : result_.foreign_write;
    if (!first) first = fault_after(*fault, event);
    return;  // events after a fault are no news
  }
  if (reached_.try_emplace(next.key(), Reached{now_, event}).second) {
    open_.push_back(std::move(next));
  }
}

ProtocolFault ProtocolModel::fault_after(ProtocolFault::Kind kind, const std::string& event) const {
  ProtocolFault fault{kind, {event}};
  for (std::string at = now_; !reached_.at(at).event.empty(); at = reached_.at(at).from) {
    fault.trace.push_back(reached_.at(at).event);
  }
  std::ranges::reverse(fault.trace);
  return fault;
}

}  // namespace

ProtocolSearch search_protocol(const ProtocolRules& rules, const ProtocolBounds& bounds) {
  return ProtocolModel(rules, bounds).search();
}

}  // namespace lintel::testing
