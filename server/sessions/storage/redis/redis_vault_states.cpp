// RedisVault: states, and what is removed.
#include <algorithm>
#include <random>
#include <utility>

#include "server/core/random_bytes.h"
#include "server/sessions/storage/redis/redis_bytes.h"
#include "server/sessions/storage/redis/redis_scripts.h"
#include "server/sessions/storage/redis/redis_vault.h"

namespace lintel {

VaultOutcome RedisVault::put_state(const SessionId& id, std::span<const std::byte> state,
                                   StateRef* ref) {
  std::uint64_t where = 0;
  fill_with_random(std::as_writable_bytes(std::span(&where, 1)));
  {
    MutexLock lock(mutex_);
    const auto held = held_.find(id);
    if (held == held_.end()) return VaultOutcome::kFenced;
    held->second.put.insert(where);
  }
  const RedisKeys keys(redis_bucket(id));
  const RedisStateKeys of(where);
  RedisAnswer answer =
      client_.ask_and_wait({.words = {"SADD", keys.garbage, redis_state_name(where) + id},
                            .slot = keys.slot,
                            .is_write = true});
  if (answer.arrived && !answer.reply.is_error()) {
    answer = client_.ask_and_wait({.script = &RedisScripts::get().state,
                                   .keys = {of.bytes, of.sessions},
                                   .words = {"put", id, text_of(state)},
                                   .slot = of.slot,
                                   .is_write = true});
  }
  if (!answer.arrived || answer.reply.is_error()) return failure_of(answer);
  ref->where = where;
  ref->bytes = state.size();
  ref->checksum = digest_of(state);
  return VaultOutcome::kDone;
}

VaultOutcome RedisVault::read_state(const StateRef& ref, std::span<std::byte> state) {
  const RedisStateKeys of(ref.where);
  const RedisAnswer answer =
      client_.ask_and_wait({.words = {"GET", of.bytes},
                            .slot = of.slot,
                            .most = {ref.bytes + RedisReplyBounds::kLeastBytes, 0}});
  if (!answer.arrived || answer.reply.is_error()) {
    const VaultOutcome failed = failure_of(answer);
    if (failed != VaultOutcome::kCorrupt) return failed;
  }
  const auto bytes = std::as_bytes(std::span(answer.reply.text));
  if (bytes.size() != state.size() || digest_of(bytes) != ref.checksum) {
    MutexLock lock(mutex_);
    ++health_.states_lost;
    return VaultOutcome::kCorrupt;
  }
  std::ranges::copy(bytes, state.begin());
  return VaultOutcome::kDone;
}

void RedisVault::drop_states(const SessionId& id, std::vector<std::uint64_t> doomed,
                             std::function<void()> then) {
  if (doomed.empty()) return then();
  const RedisKeys keys(redis_bucket(id));
  const auto left = std::make_shared<std::atomic<std::size_t>>(doomed.size());
  for (const std::uint64_t where : doomed) {
    const RedisStateKeys of(where);
    client_.ask({.script = &RedisScripts::get().drop_state,
                 .keys = {of.bytes, of.sessions},
                 .words = {"drop", id},
                 .slot = of.slot,
                 .is_write = true,
                 .done = [this, left, then, id, where, keys](const RedisAnswer& answer) {
                   if (answer.arrived && !answer.reply.is_error()) {
                     client_.ask(
                         {.words = {"SREM", keys.garbage, "D" + redis_state_name(where) + id},
                          .slot = keys.slot,
                          .is_write = true,
                          .done = [](const RedisAnswer&) {}});
                   }  // else a sweep does it
                   if (left->fetch_sub(1) == 1) then();
                 }});
  }
}

void RedisVault::count_sessions() {
  std::vector<RedisRequest> requests;
  for (int bucket = 0; bucket < kRedisBuckets; ++bucket) {
    const RedisKeys keys(bucket);
    requests.push_back({.words = {"ZCARD", keys.ids}, .slot = keys.slot});
  }
  const std::vector<RedisAnswer> answers = ask_all(client_, std::move(requests));
  MutexLock lock(mutex_);
  for (std::size_t i = 0; i < answers.size(); ++i) {
    counts_[i] = static_cast<std::size_t>(std::max<std::int64_t>(answers[i].reply.number, 0));
  }
  // Many servers do not all begin with the same one.
  next_swept_ = static_cast<int>(std::random_device()() % kRedisBuckets);
}

std::size_t RedisVault::sweep(std::size_t most) {
  int first = 0;
  {
    MutexLock lock(mutex_);
    first = next_swept_;
    next_swept_ = (next_swept_ + options_.swept_buckets) % kRedisBuckets;
  }
  const auto micros =
      std::chrono::duration_cast<std::chrono::microseconds>(clock_.wall_time().time_since_epoch())
          .count();
  std::vector<RedisRequest> requests;
  for (int i = 0; i < options_.swept_buckets; ++i) {
    const RedisKeys keys((first + i) % kRedisBuckets);
    requests.push_back({.script = &RedisScripts::get().sweep,
                        .keys = {keys.ids, keys.expiries, keys.garbage},
                        .words = {keys.prefix, std::to_string(micros), std::to_string(most),
                                  std::to_string(options_.clock_difference.count())},
                        .slot = keys.slot,
                        .is_write = true});
  }
  const std::vector<RedisAnswer> answers = ask_all(client_, std::move(requests));
  std::size_t removed = 0;
  bool clocks_differ = false;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const RedisReply& reply = answers[i].reply;
    clocks_differ = clocks_differ || reply.at(0) == "CLOCK";
    if (!answers[i].arrived || reply.at(0) != "DONE") continue;
    removed += static_cast<std::size_t>(reply.number_at(2));
    const std::size_t bucket = (static_cast<std::size_t>(first) + i) % kRedisBuckets;
    {
      MutexLock lock(mutex_);
      counts_[bucket] = static_cast<std::size_t>(reply.number_at(1));
    }
    for (std::size_t at = 3; at < reply.list.size(); ++at) {
      const std::string& member = reply.at(at);
      if (member.size() <= 16) continue;
      drop_states(member.substr(16), {redis_state_where(member.substr(0, 16))}, [] {});
    }
  }
  MutexLock lock(mutex_);
  health_.clocks_differ = clocks_differ;
  return removed;
}

}  // namespace lintel
