// RedisVault: what is written, and written again where a failover has lost it.
#include <algorithm>
#include <utility>

#include "server/core/random_bytes.h"
#include "server/core/thread_failures.h"
#include "server/sessions/storage/redis/redis_bytes.h"
#include "server/sessions/storage/redis/redis_scripts.h"
#include "server/sessions/storage/redis/redis_vault.h"
#include "server/sessions/storage/vault_records.h"
#include "server/sessions/storage/vault_session.h"

namespace lintel {
namespace {

using Kind = SessionVault::Write::Kind;

constexpr int kMostHeals = 3;
constexpr std::size_t kRowWord = 8;  // of the arguments of write.lua, from 0 on

std::string micros_of(std::chrono::system_clock::time_point time) {
  return std::to_string(
      std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count());
}

// The fields of a row that change with every value are stored outside of it.
std::string stored_row(SessionVault::Row row) {
  row.position = 0;
  row.digest = {};
  return text_of(encode_row(row));
}

// Outcomes of a commit's writes; `done` is called with the last of them. Where an exception
// prevented the report of one, its outcome is unknown.
struct CommitOutcomes {
  CommitOutcomes(std::size_t count, SessionVault::Done then)
      : outcomes(count, VaultOutcome::kUnavailable),
        reported(std::make_unique<std::atomic<bool>[]>(count)),
        left(count),
        done(std::move(then)) {}
  ~CommitOutcomes() {
    if (left > 0) survives(ServerThread::kRedis, [this] { done(outcomes); });
  }

  void tell(std::size_t i, VaultOutcome outcome) {
    if (reported[i].exchange(true)) return;
    outcomes[i] = outcome;
    if (left.fetch_sub(1) == 1) done(outcomes);
  }

  std::vector<VaultOutcome> outcomes;
  std::unique_ptr<std::atomic<bool>[]> reported;
  std::atomic<std::size_t> left;
  SessionVault::Done done;
};

bool gives_back(Kind kind) {
  return kind == Kind::kEnd || kind == Kind::kRelease || kind == Kind::kRemove;
}

// The arguments of write.lua from `what` to the values. row: empty: as it was.
void add_words(std::vector<std::string>& words, const char* what, bool is_history,
               const SessionVault::Row& row, bool with_row, std::int64_t first, int width,
               std::span<const std::int32_t> values) {
  const std::string stored = with_row ? stored_row(row) : "";
  words.insert(
      words.end(),
      {what, is_history ? text_of(row.digest.bytes) : "", std::to_string(row.position), stored,
       std::to_string(row.base), micros_of(row.expires), redis_state_names(row.states),
       std::to_string(first), std::to_string(width), pack_values(values, width)});
}

std::vector<std::string> keys_of_write(const SessionVault::SessionId& id) {
  const RedisKeys keys(redis_bucket(id));
  return {keys.session(id), keys.values(id), keys.garbage, keys.ids, keys.expiries};
}

}  // namespace

void RedisVault::commit(std::vector<Write> writes, Done done) {
  if (writes.empty()) return done({});
  const auto outcomes = std::make_shared<CommitOutcomes>(writes.size(), std::move(done));
  MutexLock order(sending_);
  for (std::size_t i = 0; i < writes.size();) {
    if (writes[i].kind == Kind::kCreate) {
      create(writes[i], [outcomes, i](VaultOutcome outcome) { outcomes->tell(i, outcome); });
      ++i;
      continue;
    }
    const Taken taken = take(std::span(writes).subspan(i));
    const auto report = [outcomes, i, count = taken.count](VaultOutcome outcome) {
      for (std::size_t each = i; each < i + count; ++each) outcomes->tell(each, outcome);
    };
    if (taken.sent != nullptr) {
      taken.sent->done = report;
      send(taken.sent);
    } else if (taken.known) {
      report(*taken.known);
    } else {
      check(writes[i], report);
    }
    i += taken.count;
  }
}

RedisVault::Taken RedisVault::take(std::span<Write> writes) {
  Taken taken;
  MutexLock lock(mutex_);
  const auto found = held_.find(writes.front().id);
  if (found == held_.end() || found->second.claim() != writes.front().claim) return taken;
  HeldSession& held = found->second;
  // What is committed together stands together: values are nothing without what says where they
  // come from.
  for (Write& write : writes) {
    const bool is_of_it = write.id == writes.front().id && write.claim == held.claim();
    if (taken.sent != nullptr && (!is_of_it || gives_back(taken.sent->kind))) break;
    if (write.kind == Kind::kCreate || (taken.sent != nullptr && write.kind == Kind::kRemove))
      break;
    // A release applies to the session as it is held, including writes whose outcome is unknown.
    if (write.kind == Kind::kRelease) write.before = write.after = held.row().digest;
    const bool may_stand = write.before != write.after && write.after == held.row().digest;
    if (may_stand) break;
    const VaultOutcome outcome = held.apply(write, &taken.sent);
    if (outcome == VaultOutcome::kDone) {
      taken.count = static_cast<std::size_t>(&write - writes.data()) + 1;
      continue;
    }
    if (taken.sent == nullptr) {
      taken.known = outcome;
      held.is_given_up |= write.kind == Kind::kRelease;
    }
    break;
  }
  if (taken.sent == nullptr) return taken;
  if (gives_back(taken.sent->kind)) held.lets_go(*taken.sent);
  taken.sent->began = std::chrono::steady_clock::now();
  return taken;
}

HeldSession* RedisVault::held_of(const HeldSession::Sent& sent) {
  const auto found = held_.find(sent.before.id);
  // Another claim is none of its.
  return found == held_.end() || found->second.claim() != sent.claim ? nullptr : &found->second;
}

void RedisVault::forget(const HeldSession::Sent& sent, std::vector<SentPtr>& waiting) {
  HeldSession* const held = held_of(sent);
  if (held == nullptr) return;
  waiting.swap(held->after_healing);
  held_.erase(sent.before.id);
}

void RedisVault::check(const Write& write, const Report& report) {
  const RedisKeys keys(redis_bucket(write.id));
  client_.ask({.script = &RedisScripts::get().check,
               .keys = {keys.session(write.id)},
               .words = {write.before == write.after ? "" : text_of(write.after.bytes)},
               .slot = keys.slot,
               .is_write = true,
               .done = [this, report](const RedisAnswer& answer) {
                 if (!answer.arrived || answer.reply.list.empty())
                   return report(failure_of(answer));
                 const std::string& word = answer.reply.at(0);
                 if (word == "FENCED") {
                   MutexLock lock(mutex_);
                   ++health_.fenced;
                 }
                 report(word == "DONE"        ? VaultOutcome::kDone
                        : word == "NOT_FOUND" ? VaultOutcome::kNotFound
                                              : VaultOutcome::kFenced);
               }});
}

void RedisVault::create(const Write& write, Report report) {
  const std::optional<VaultSession> made = VaultSession::created(write);
  if (!made) return report(VaultOutcome::kCorrupt);
  const Row& row = made->row();
  const std::vector<std::int32_t>& values = made->values();
  int width = 1;
  for (const std::int32_t value : values) {
    const auto bits = static_cast<std::uint32_t>(value);
    width = std::max(width, bits < 256 ? 1 : bits < 65536 ? 2 : 4);
  }
  const RedisKeys keys(redis_bucket(row.id));
  std::string stored = stored_row(row);
  if (stored.size() > kMostRedisRowBytes) return report(VaultOutcome::kFull);
  RedisRequest request{
      .script = &RedisScripts::get().create,
      .keys = {keys.session(row.id), keys.values(row.id), keys.ids, keys.expiries, keys.garbage},
      .words = {row.id, row.owner, row.model, text_of(row.digest.bytes),
                std::to_string(row.position), std::to_string(row.base), std::move(stored),
                std::to_string(width), pack_values(values, width), micros_of(row.expires),
                redis_state_names(row.states)},
      .slot = keys.slot,
      .is_write = true,
      .done = [this, report](const RedisAnswer& answer) {
        if (!answer.arrived || answer.reply.list.empty()) return report(failure_of(answer));
        if (answer.reply.at(0) != "DONE") return report(VaultOutcome::kFenced);
        {
          MutexLock lock(mutex_);
          ++health_.commits;
          ++health_.writes;
          is_full_ = false;
        }
        report(answer.is_replicated ? VaultOutcome::kDone : VaultOutcome::kUnavailable);
      }};
  if (row.states.empty()) return client_.ask(std::move(request));
  // First the states are marked as shared; where this process dies in between, a sweep finds the
  // marks that no row uses.
  std::vector<std::string> waiting = {"SADD", keys.garbage};
  for (const StateRef& state : row.states) {
    waiting.push_back(redis_state_name(state.where) + row.id);
  }
  const auto left = std::make_shared<std::atomic<std::size_t>>(row.states.size());
  const auto shared = std::make_shared<RedisRequest>(std::move(request));
  const auto is_lost = std::make_shared<std::atomic<bool>>(false);
  const auto then = [this, left, shared, is_lost, report](const RedisAnswer& answer) {
    if (!answer.arrived || answer.reply.is_error()) *is_lost = true;
    if (left->fetch_sub(1) != 1) return;
    if (*is_lost) return report(VaultOutcome::kUnavailable);
    client_.ask(std::move(*shared));
  };
  const std::vector<StateRef> states = row.states;
  client_.ask({.words = std::move(waiting),
               .slot = keys.slot,
               .is_write = true,
               .done = [this, states, then, id = row.id](const RedisAnswer& answer) {
                 for (const StateRef& state : states) {
                   if (!answer.arrived || answer.reply.is_error()) {
                     then(answer);
                     continue;
                   }
                   const RedisStateKeys of(state.where);
                   client_.ask({.script = &RedisScripts::get().state,
                                .keys = {of.bytes, of.sessions},
                                .words = {"share", id},
                                .slot = of.slot,
                                .is_write = true,
                                .done = then});
                 }
               }});
}

void RedisVault::send(const SentPtr& sent) {
  const SessionId& id = sent->before.id;
  const bool removes = sent->kind == Kind::kRemove;
  const bool releases = gives_back(sent->kind) && !removes;
  const bool with_row = sent->with_row && !removes;
  std::vector<std::string> words = {id, text_of(sent->nonce), std::to_string(sent->least),
                                    std::to_string(sent->number), lease_in_ms()};
  add_words(words,
            removes    ? "remove"
            : releases ? "release"
                       : "keep",
            sent->is_history, sent->after, with_row, sent->first, sent->width, sent->values);
  if (words[kRowWord].size() > kMostRedisRowBytes) {
    return refused(sent, VaultOutcome::kFull, /*may_stand=*/false);
  }
  std::string dropped;
  for (const std::uint64_t where : sent->dropped) dropped += redis_state_name(where);
  words.push_back(std::move(dropped));
  for (const Digest& digest : sent->befores) words.push_back(text_of(digest.bytes));
  std::vector<std::string> keys = keys_of_write(id);
  const bool names_states =
      !sent->dropped.empty() || !sent->before.states.empty() || !sent->after.states.empty();
  if (!removes) keys.resize(names_states ? 3 : 2);
  const bool makes_room = sent->kind != Kind::kValues && sent->kind != Kind::kBegin &&
                          (sent->values.empty() || releases);
  client_.ask(
      {.script = makes_room ? &RedisScripts::get().write_when_full : &RedisScripts::get().write,
       .keys = std::move(keys),
       .words = std::move(words),
       .slot = RedisKeys(redis_bucket(id)).slot,
       .is_write = true,
       .done = [this, sent](const RedisAnswer& answer) {
         const bool is_well = survives(ServerThread::kRedis, [&] { answered(sent, answer); });
         if (is_well) return;
         survives(ServerThread::kRedis,
                  [&] { refused(sent, VaultOutcome::kUnavailable, /*may_stand=*/true); });
       }});
}

void RedisVault::answered(const SentPtr& sent, const RedisAnswer& answer) {
  if (!answer.arrived || answer.reply.list.empty()) {
    return refused(sent, failure_of(answer), /*may_stand=*/!answer.arrived);
  }
  const std::string& word = answer.reply.at(0);
  if (word == "DONE") return stood(sent, answer);
  if (word == "BEHIND") return heal(sent, answer.reply);
  std::vector<SentPtr> waiting;
  if (word == "NOT_FOUND") {
    MutexLock lock(mutex_);
    forget(*sent, waiting);
  }
  const VaultOutcome outcome =
      word == "NOT_FOUND" ? VaultOutcome::kNotFound : VaultOutcome::kFenced;
  refused(sent, outcome, /*may_stand=*/false);
  for (const SentPtr& each : waiting) refused(each, outcome, /*may_stand=*/false);
}

void RedisVault::stood(const SentPtr& sent, const RedisAnswer& answer) {
  // Too few replicas have it: it stands, but may be lost, and is written again.
  if (!answer.is_replicated) return refused(sent, VaultOutcome::kUnavailable, /*may_stand=*/true);
  std::vector<SentPtr> waiting;  // none, but where the claim was released while it was healed
  std::vector<std::uint64_t> doomed;
  for (std::size_t i = 1; i < answer.reply.list.size(); ++i) {
    doomed.push_back(redis_state_where(answer.reply.at(i)));
  }
  {
    MutexLock lock(mutex_);
    is_full_ = is_full_ && sent->is_renewal;
    ++health_.commits;
    if (!sent->is_renewal) ++health_.writes;
    if (HeldSession* const held = held_of(*sent)) {
      held->stands(*sent);
      prolong(*held, sent->began);
      if (gives_back(sent->kind)) forget(*sent, waiting);
    }
  }
  for (const SentPtr& each : waiting) refused(each, VaultOutcome::kFenced, /*may_stand=*/false);
  drop_states(sent->before.id, std::move(doomed),
              [done = sent->done] { done(VaultOutcome::kDone); });
}

void RedisVault::refused(const SentPtr& sent, VaultOutcome outcome, bool may_stand) {
  std::vector<SentPtr> waiting;
  {
    MutexLock lock(mutex_);
    if (HeldSession* const held = held_of(*sent)) {
      held->is_refused(*sent, may_stand);
      held->is_given_up |= sent->kind == Kind::kRelease;
      // This server has no right to write any more; the claim is no use to keep.
      const bool is_final =
          outcome == VaultOutcome::kFenced || outcome == VaultOutcome::kRolledBack;
      if (is_final && gives_back(sent->kind)) forget(*sent, waiting);
    }
  }
  sent->done(outcome);
  for (const SentPtr& each : waiting) refused(each, outcome, /*may_stand=*/false);
}

void RedisVault::heal(const SentPtr& sent, const RedisReply& reply) {
  const SessionId& id = sent->before.id;
  const Digest digest = digest_from(reply.at(1));
  const bool is_open = reply.at(3) == "1";
  const auto fence = static_cast<std::uint64_t>(reply.number_at(6));
  std::optional<HeldSession::Missing> missing;
  std::array<std::byte, 16> nonce{};
  fill_with_random(nonce);
  VaultOutcome outcome = VaultOutcome::kFenced;
  bool is_sent_again = false;
  std::uint64_t fence_before = 0;
  {
    MutexLock lock(mutex_);
    if (HeldSession* const of = held_of(*sent)) {
      HeldSession& held = *of;
      fence_before = held.fence;
      if (held.is_healing) {
        held.after_healing.push_back(sent);
        return;
      }
      if (held.nonce != sent->nonce) {  // it was healed since this was sent
        sent->nonce = held.nonce;
        is_sent_again = sent->heals++ < kMostHeals;
      } else if (is_open && fence <= held.fence && sent->heals++ < kMostHeals) {
        missing = held.missing(*sent, digest);
        outcome = VaultOutcome::kRolledBack;
        held.is_healing = missing.has_value();
      }
    }
    if (!is_sent_again && !missing) {
      ++(outcome == VaultOutcome::kFenced ? health_.fenced : health_.rolled_back);
    }
  }
  if (is_sent_again) return send(sent);
  if (!missing) return refused(sent, outcome, /*may_stand=*/false);
  std::vector<std::string> words = {id, text_of(nonce), "0", std::to_string(sent->number - 1),
                                    lease_in_ms()};
  add_words(words, "heal", /*is_history=*/true, sent->before, /*with_row=*/true, missing->first,
            sent->width, missing->values);
  words.insert(words.end(), {"", options_.replica_id, boot_, text_of(sent->nonce),
                             std::to_string(fence_before), text_of(digest.bytes)});
  std::vector<std::string> keys = keys_of_write(id);
  keys.resize(3);
  client_.ask(
      {.script = &RedisScripts::get().write,
       .keys = std::move(keys),
       .words = std::move(words),
       .slot = RedisKeys(redis_bucket(id)).slot,
       .is_write = true,
       .done = [this, sent, nonce](const RedisAnswer& answer) { healed(sent, answer, nonce); }});
}

void RedisVault::healed(const SentPtr& sent, const RedisAnswer& answer,
                        const std::array<std::byte, 16>& nonce) {
  const bool is_done = answer.arrived && answer.reply.at(0) == "DONE";
  const bool is_lost = answer.arrived && answer.reply.at(0) == "BEHIND";
  std::vector<SentPtr> waiting;
  {
    MutexLock lock(mutex_);
    if (HeldSession* const held = held_of(*sent)) {
      held->is_healing = false;
      waiting.swap(held->after_healing);
      if (is_done) {
        held->nonce = nonce;
        held->fence = static_cast<std::uint64_t>(answer.reply.number_at(1));
      }
    }
    if (is_done) {
      ++health_.rolled_back;
      ++health_.healed;
    } else if (is_lost) {
      ++health_.fenced;
    }
  }
  if (is_done) {
    sent->nonce = nonce;
    sent->least = sent->number - 1;
    send(sent);
  } else {
    refused(sent, is_lost ? VaultOutcome::kFenced : failure_of(answer), /*may_stand=*/false);
  }
  for (const SentPtr& each : waiting) {
    if (is_done) each->nonce = nonce;
    if (is_done) {
      send(each);
    } else {
      refused(each, VaultOutcome::kUnavailable, /*may_stand=*/false);
    }
  }
}

}  // namespace lintel
