// RedisVault: claims, and what is read. redis_vault_writes.cpp has the writes, _states.cpp the
// states and what is removed.
#include "server/sessions/storage/redis/redis_vault.h"

#include <algorithm>
#include <utility>

#include "server/core/random_bytes.h"
#include "server/core/thread_failures.h"
#include "server/sessions/storage/redis/redis_bytes.h"
#include "server/sessions/storage/redis/redis_scripts.h"
#include "server/sessions/storage/vault_records.h"

namespace lintel {
namespace {

constexpr std::size_t kMostUnanswered = 10'000;
// Of a row, with the fields outside of it; list.lua ends after so many bytes of rows.
constexpr RedisReplyBounds kMostOfRow{kMostRedisRowBytes + RedisReplyBounds::kLeastBytes, 16};
constexpr std::size_t kMostListed = std::size_t{1} << 20;
constexpr std::size_t kMostRows = 1000;

RedisOptions with_scripts(RedisOptions options) {
  options.scripts = RedisScripts::get().all();
  return options;
}

// A row whose position and digest are stored outside of it.
std::optional<SessionVault::Row> row_of(const std::string& row, std::int64_t position,
                                        const std::string& digest) {
  std::optional<SessionVault::Row> read = decode_row(std::as_bytes(std::span(row)));
  if (!read || digest.size() != sizeof(read->digest.bytes)) return std::nullopt;
  read->position = position;
  read->digest = digest_from(digest);
  return read;
}

}  // namespace

RedisVault::RedisVault(Options options, const Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      counts_(kRedisBuckets),
      client_(with_scripts(options_.redis)) {
  const RedisAnswer time = client_.ask_and_wait({.words = {"TIME"}});
  if (!time.arrived || time.reply.list.size() != 2) {
    throw RedisError("the server does not tell its time: " + time.reply.text);
  }
  boot_ = std::to_string(time.reply.number_at(0) * 1'000'000 + time.reply.number_at(1));
  count_sessions();
  renewer_ = std::thread([this] { renew_until_closed(); });
}

RedisVault::~RedisVault() {
  {
    MutexLock lock(mutex_);
    is_closing_ = true;
    closed_.notify_all();
  }
  if (renewer_.joinable()) renewer_.join();
  client_.stop();
}

std::string RedisVault::lease_in_ms() const {
  return std::to_string(
      std::chrono::duration_cast<std::chrono::milliseconds>(options_.lease).count());
}

VaultOutcome RedisVault::failure_of(const RedisAnswer& answer) {
  if (!answer.arrived) return VaultOutcome::kUnavailable;
  // What is there is not what our scripts have written, and will not be so later.
  const bool is_foreign = !answer.reply.is_error() || answer.reply.is_error("WRONGTYPE") ||
                          answer.reply.text.find("user_script") != std::string::npos;
  if (is_foreign && !answer.reply.is_error("OOM")) return VaultOutcome::kCorrupt;
  MutexLock lock(mutex_);
  if (answer.reply.is_error("OOM")) {
    is_full_ = true;
    return VaultOutcome::kFull;
  }
  if (answer.reply.is_error()) health_.why = answer.reply.text;
  return VaultOutcome::kUnavailable;
}

SessionVault::Opened RedisVault::open(const SessionId& id, const Owner& owner, const Digest* have) {
  Opened opened = ask_for(id, owner, nullptr, "");
  if (opened.outcome == VaultOutcome::kHeld) opened.row = {};
  if (have != nullptr && *have == opened.row.digest) opened.row.states.clear();
  return opened;
}

SessionVault::Opened RedisVault::open_at(const SessionId& id, const Owner& owner, const Digest& at,
                                         const std::string& call) {
  Opened opened = ask_for(id, owner, &at, call);
  if (opened.outcome != VaultOutcome::kHeld) return opened;
  if (opened.row.id.empty()) return find(id, owner);  // it is held here
  opened.outcome = VaultOutcome::kDone;
  return opened;
}

SessionVault::Opened RedisVault::ask_for(const SessionId& id, const Owner& owner, const Digest* at,
                                         const std::string& call) {
  Claim claim;
  fill_with_random(claim.nonce);
  {
    MutexLock lock(mutex_);
    const auto held = held_.find(id);
    const bool is_free =
        held == held_.end() ||
        (held->second.is_given_up && !held->second.is_writing() && !held->second.is_healing);
    if (!is_free || !opening_.insert(id).second) {
      // Of a call that ended for want of the store, and cannot give its claim back before that is
      // there again.
      if (client_.state().is_away) return {.outcome = VaultOutcome::kUnavailable};
      ++health_.claims_held;
      return {.outcome = VaultOutcome::kHeld, .holder = options_.replica_id};
    }
    if (held != held_.end()) held_.erase(held);
    if (const auto asked = unanswered_.extract(id)) claim = asked.mapped();
  }
  const RedisKeys keys(redis_bucket(id));
  const TimePoint asked_at = std::chrono::steady_clock::now();
  const RedisAnswer answer =
      client_.ask_and_wait({.script = &RedisScripts::get().claim,
                            .keys = {keys.session(id)},
                            .words = {owner, text_of(claim.nonce), options_.replica_id, boot_,
                                      lease_in_ms(), at == nullptr ? "" : text_of(at->bytes), call},
                            .slot = keys.slot,
                            .most = kMostOfRow});
  const RedisReply& reply = answer.reply;
  Opened opened;
  if (!answer.arrived || reply.list.empty()) {
    opened.outcome = failure_of(answer);
    MutexLock lock(mutex_);
    opening_.erase(id);
    const bool may_be_granted = opened.outcome != VaultOutcome::kCorrupt;
    if (may_be_granted && unanswered_.size() < kMostUnanswered) unanswered_.emplace(id, claim);
    return opened;
  }
  MutexLock lock(mutex_);
  opening_.erase(id);
  const std::string& word = reply.at(0);
  if (word == "NOT_FOUND" || word == "STALE") {
    opened.outcome = word == "STALE" ? VaultOutcome::kUnavailable : VaultOutcome::kNotFound;
    return opened;
  }
  std::optional<Row> row = row_of(reply.at(2), reply.number_at(3), reply.at(4));
  if (!row) {
    opened.outcome = VaultOutcome::kCorrupt;
    return opened;
  }
  opened.row = *std::move(row);
  if (word == "HELD") {
    ++health_.claims_held;
    opened.outcome = VaultOutcome::kHeld;
    opened.holder = reply.at(1);
    opened.held_for = std::chrono::milliseconds(std::max<std::int64_t>(reply.number_at(6), 1));
  } else if (word == "DONE") {
    ++health_.claims;
    claim.fence = static_cast<std::uint64_t>(reply.number_at(1));
    const auto lease = std::make_shared<ClaimLease>();
    auto [held, is_new] =
        held_.try_emplace(id, claim, opened.row, static_cast<int>(reply.number_at(5)), lease);
    prolong(held->second, asked_at);
    opened.claim = claim;
    opened.lease = lease;
  }
  return opened;
}

void RedisVault::prolong(HeldSession& held, TimePoint asked_at) {
  held.granted = std::max(held.granted, asked_at);
  const Duration margin = std::min<Duration>(std::chrono::seconds(1), options_.lease / 5);
  held.lease->prolong(asked_at + options_.lease - margin);
}

SessionVault::Opened RedisVault::find(const SessionId& id, const Owner& owner) {
  const RedisKeys keys(redis_bucket(id));
  const RedisAnswer answer = client_.ask_and_wait({.script = &RedisScripts::get().find,
                                                   .keys = {keys.session(id)},
                                                   .words = {owner, options_.replica_id, boot_},
                                                   .slot = keys.slot,
                                                   .most = kMostOfRow});
  const RedisReply& reply = answer.reply;
  if (!answer.arrived || reply.list.empty()) return {.outcome = failure_of(answer)};
  if (reply.at(0) != "DONE") return {.outcome = VaultOutcome::kNotFound};
  std::optional<Row> row = row_of(reply.at(1), reply.number_at(2), reply.at(3));
  if (!row) return {.outcome = VaultOutcome::kCorrupt};
  return {.row = *std::move(row),
          .holder = reply.at(4),
          .held_for = std::chrono::milliseconds(reply.number_at(5))};
}

VaultOutcome RedisVault::read_values(const SessionId& id, std::int64_t first,
                                     std::span<std::int32_t> values) {
  const RedisKeys keys(redis_bucket(id));
  const RedisAnswer answer =
      client_.ask_and_wait({.script = &RedisScripts::get().read,
                            .keys = {keys.session(id), keys.values(id)},
                            .words = {std::to_string(first), std::to_string(values.size())},
                            .slot = keys.slot,
                            .most = {values.size_bytes() + RedisReplyBounds::kLeastBytes, 3}});
  if (!answer.arrived || answer.reply.list.empty()) return failure_of(answer);
  if (answer.reply.at(0) != "DONE") return VaultOutcome::kNotFound;
  const bool is_whole =
      unpack_values(answer.reply.at(2), static_cast<int>(answer.reply.number_at(1)), values);
  return is_whole ? VaultOutcome::kDone : VaultOutcome::kCorrupt;
}

std::vector<SessionVault::Row> RedisVault::list(const std::string& model, const SessionId& after,
                                                std::size_t limit,
                                                const std::optional<Owner>& owner) {
  // Buckets that are asked at once; the first alone often suffices.
  constexpr int kMostAtOnce = 256;
  std::vector<Row> rows;
  int at_once = 1;
  for (int bucket = redis_bucket(after); bucket < kRedisBuckets && rows.size() < limit;) {
    const int end = std::min(bucket + at_once, kRedisBuckets);
    const auto request = [&](int each, const SessionId& from) {
      const RedisKeys keys(each);
      return RedisRequest{
          .script = &RedisScripts::get().list,
          .keys = {keys.ids},
          .words = {keys.prefix, from, std::to_string(std::min(limit - rows.size(), kMostRows)),
                    model, owner ? "1" : "0", owner.value_or("")},
          .slot = keys.slot,
          .most = {kMostListed + kMostOfRow.bytes,
                   1 + 3 * std::min(limit - rows.size(), kMostRows)}};
    };
    std::vector<RedisRequest> requests;
    for (int each = bucket; each < end; ++each) requests.push_back(request(each, after));
    std::vector<RedisAnswer> answers = ask_all(client_, std::move(requests));
    for (int each = bucket; each < end; ++each) {
      RedisAnswer answer = std::move(answers[static_cast<std::size_t>(each - bucket)]);
      while (rows.size() < limit) {
        const RedisReply& reply = answer.reply;
        for (std::size_t i = 1; i + 2 < reply.list.size() && rows.size() < limit; i += 3) {
          std::optional<Row> row = row_of(reply.at(i), reply.number_at(i + 1), reply.at(i + 2));
          if (row) rows.push_back(*std::move(row));
        }
        if (reply.at(0).empty()) break;
        answer = client_.ask_and_wait(request(each, reply.at(0)));
      }
    }
    bucket = end;
    at_once = std::min(at_once * 4, kMostAtOnce);
  }
  return rows;
}

void RedisVault::renew(std::span<const SessionId> busy, Done done) {
  done(std::vector<VaultOutcome>(busy.size(), VaultOutcome::kDone));
}

void RedisVault::renew_until_closed() {
  while (true) {
    survives(ServerThread::kRedisLeases, [this] {
      MutexLock order(sending_);
      std::vector<SentPtr> due;
      {
        MutexLock lock(mutex_);
        const TimePoint now = std::chrono::steady_clock::now();
        for (auto& [id, held] : held_) {
          if (held.is_writing() || held.is_healing || held.is_given_up ||
              now - held.granted < options_.lease / 3) {
            continue;
          }
          due.push_back(held.renewal());
          due.back()->began = now;
          due.back()->done = [](VaultOutcome) {};
        }
      }
      for (const SentPtr& sent : due) send(sent);
    });
    MutexLock lock(mutex_);
    if (is_closing_) return;
    closed_.wait_for(mutex_, options_.lease / 12);
  }
}

SessionVault::Health RedisVault::health() const {
  const RedisState redis = client_.state();
  MutexLock lock(mutex_);
  Health health = health_;
  health.is_shared = true;
  health.state = redis.is_away ? Health::State::kAway
                 : is_full_    ? Health::State::kFull
                               : Health::State::kOk;
  if (redis.is_away) health.why = redis.why;
  if (is_full_ && !redis.is_away) health.why = "the Redis server is full";
  health.reconnects = redis.reconnects;
  health.redirects = redis.redirects;
  health.short_waits = redis.short_waits;
  for (const std::size_t count : counts_) health.sessions += count;
  return health;
}

}  // namespace lintel
