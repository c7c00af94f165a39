// SPDX-License-Identifier: Apache-2.0
// RedisStorage: claims and reads.
#include "server/sessions/storage/redis/redis_storage.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <future>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/core/random_bytes.h"
#include "server/core/threads.h"
#include "server/sessions/digest.h"
#include "server/sessions/storage/redis/redis_client.h"
#include "server/sessions/storage/redis/redis_protocol.h"
#include "server/sessions/storage/storage_records.h"

namespace lintel {

// Arguments and results of scripts, as bytes; many requests at once.

// The largest row that is stored, and accepted from a server.
inline constexpr std::size_t kMostRedisRowBytes = std::size_t{16} << 20;

std::string text_of(std::span<const std::byte> bytes);
Digest digest_from(const std::string& bytes);  // zeros if it is none

// Tokens as `width` bytes each, 1, 2 or 4, little-endian.
std::string pack_tokens(std::span<const std::int32_t> tokens, int width);
// False: `bytes` are not so many tokens of that width.
bool unpack_tokens(const std::string& bytes, int width, std::span<std::int32_t> tokens);

// Sends all requests and waits for the answers.
std::vector<RedisAnswer> ask_all(RedisClient& client, std::vector<RedisRequest> requests);

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Digest digest_from(const std::string& bytes) {
  Digest digest;
  if (bytes.size() == digest.bytes.size()) {
    std::ranges::copy(std::as_bytes(std::span(bytes)), digest.bytes.begin());
  }
  return digest;
}

std::string pack_tokens(std::span<const std::int32_t> tokens, int width) {
  std::string bytes;
  bytes.reserve(tokens.size() * static_cast<std::size_t>(width));
  for (const std::int32_t token : tokens) {
    for (int i = 0; i < width; ++i) {
      bytes.push_back(static_cast<char>(static_cast<std::uint32_t>(token) >> (8 * i)));
    }
  }
  return bytes;
}

bool unpack_tokens(const std::string& bytes, int width, std::span<std::int32_t> tokens) {
  if ((width != 1 && width != 2 && width != 4) ||
      bytes.size() != tokens.size() * static_cast<std::size_t>(width)) {
    return false;
  }
  std::size_t at = 0;
  for (std::int32_t& token : tokens) {
    std::uint32_t bits = 0;
    for (int i = 0; i < width; ++i) {
      bits |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[at++])) << (8 * i);
    }
    token = static_cast<std::int32_t>(bits);
  }
  return true;
}

std::vector<RedisAnswer> ask_all(RedisClient& client, std::vector<RedisRequest> requests) {
  std::vector<RedisAnswer> answers(requests.size());
  if (requests.empty()) return answers;
  std::atomic<std::size_t> left{requests.size()};
  std::promise<void> all;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].done = [&, i](RedisAnswer answer) {
      answers[i] = std::move(answer);
      if (left.fetch_sub(1) == 1) all.set_value();
    };
    client.ask(std::move(requests[i]));
  }
  all.get_future().wait();
  return answers;
}

namespace {

constexpr std::size_t kMostUnanswered = 10'000;
// The bounds of a row, with the fields outside of it; list.lua ends after so many bytes of rows.
constexpr RedisReplyBounds kMostOfRow{kMostRedisRowBytes + RedisReplyBounds::kLeastBytes, 16};
constexpr std::size_t kMostListed = std::size_t{1} << 20;
constexpr std::size_t kMostRows = 1000;

RedisOptions with_scripts(RedisOptions options) {
  options.scripts = RedisScripts::get().all();
  return options;
}

// A row whose position and digest are stored outside of it.
std::optional<SessionStorage::Row> row_of(const std::string& row, std::int64_t position,
                                          const std::string& digest) {
  std::optional<SessionStorage::Row> read = decode_row(std::as_bytes(std::span(row)));
  if (!read || digest.size() != sizeof(read->digest.bytes)) return std::nullopt;
  read->position = position;
  read->digest = digest_from(digest);
  return read;
}

}  // namespace

RedisStorage::RedisStorage(Options options, const Clock& clock)
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

RedisStorage::~RedisStorage() {
  {
    MutexLock lock(mutex_);
    is_closing_ = true;
    closed_.notify_all();
  }
  if (renewer_.joinable()) renewer_.join();
  client_.stop();
}

std::string RedisStorage::lease_in_ms() const {
  return std::to_string(
      std::chrono::duration_cast<std::chrono::milliseconds>(options_.lease).count());
}

SessionError RedisStorage::failure_of(const RedisAnswer& answer) {
  if (!answer.arrived) return SessionError::kStoreAway;
  // The stored data was not written by the server's scripts, and a repeat will not change that.
  const bool is_foreign = !answer.reply.is_error() || answer.reply.is_error("WRONGTYPE") ||
                          answer.reply.text.find("user_script") != std::string::npos;
  if (is_foreign && !answer.reply.is_error("OOM")) return SessionError::kDamaged;
  MutexLock lock(mutex_);
  if (answer.reply.is_error("OOM")) {
    is_full_ = true;
    return SessionError::kStoreFull;
  }
  if (answer.reply.is_error()) health_.why = answer.reply.text;
  return SessionError::kStoreAway;
}

SessionStorage::Opened RedisStorage::open(const SessionId& id, const Owner& owner,
                                          const Digest* have) {
  Opened opened = ask_for(id, owner, nullptr, "");
  if (opened.outcome == SessionError::kHeld) opened.row = {};
  if (have != nullptr && *have == opened.row.digest) opened.row.states.clear();
  return opened;
}

SessionStorage::Opened RedisStorage::open_at(const SessionId& id, const Owner& owner,
                                             const Digest& at, const std::string& call) {
  Opened opened = ask_for(id, owner, &at, call);
  if (opened.outcome != SessionError::kHeld) return opened;
  if (opened.row.id.empty()) return find(id, owner);  // held here
  opened.outcome = SessionError::kNone;
  return opened;
}

SessionStorage::Opened RedisStorage::ask_for(const SessionId& id, const Owner& owner,
                                             const Digest* at, const std::string& call) {
  Claim claim;
  fill_with_random(claim.nonce);
  {
    MutexLock lock(mutex_);
    const auto held = held_.find(id);
    const bool is_free =
        held == held_.end() ||
        (held->second.is_given_up && !held->second.is_writing() && !held->second.is_healing);
    if (!is_free || !opening_.insert(id).second) {
      // The claim of a call that ended without the store cannot be released before that is back.
      if (client_.state().is_away) return {.outcome = SessionError::kStoreAway};
      ++health_.claims_held;
      return {.outcome = SessionError::kHeld, .holder = options_.replica_id};
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
    const bool may_be_granted = opened.outcome != SessionError::kDamaged;
    if (may_be_granted && unanswered_.size() < kMostUnanswered) unanswered_.emplace(id, claim);
    return opened;
  }
  MutexLock lock(mutex_);
  opening_.erase(id);
  const std::string& word = reply.at(0);
  if (word == "NOT_FOUND" || word == "STALE") {
    opened.outcome = word == "STALE" ? SessionError::kStoreAway : SessionError::kNotFound;
    return opened;
  }
  std::optional<Row> row = row_of(reply.at(2), reply.number_at(3), reply.at(4));
  if (!row) {
    opened.outcome = SessionError::kDamaged;
    return opened;
  }
  opened.row = *std::move(row);
  if (word == "HELD") {
    ++health_.claims_held;
    opened.outcome = SessionError::kHeld;
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

void RedisStorage::prolong(HeldSession& held, TimePoint asked_at) {
  held.granted = std::max(held.granted, asked_at);
  const Duration margin = std::min<Duration>(std::chrono::seconds(1), options_.lease / 5);
  held.lease->prolong(asked_at + options_.lease - margin);
}

SessionStorage::Opened RedisStorage::find(const SessionId& id, const Owner& owner) {
  const RedisKeys keys(redis_bucket(id));
  const RedisAnswer answer = client_.ask_and_wait({.script = &RedisScripts::get().find,
                                                   .keys = {keys.session(id)},
                                                   .words = {owner, options_.replica_id, boot_},
                                                   .slot = keys.slot,
                                                   .most = kMostOfRow});
  const RedisReply& reply = answer.reply;
  if (!answer.arrived || reply.list.empty()) return {.outcome = failure_of(answer)};
  if (reply.at(0) != "DONE") return {.outcome = SessionError::kNotFound};
  std::optional<Row> row = row_of(reply.at(1), reply.number_at(2), reply.at(3));
  if (!row) return {.outcome = SessionError::kDamaged};
  return {.row = *std::move(row),
          .holder = reply.at(4),
          .held_for = std::chrono::milliseconds(reply.number_at(5))};
}

SessionError RedisStorage::read_tokens(const SessionId& id, std::int64_t first,
                                       std::span<std::int32_t> tokens) {
  const RedisKeys keys(redis_bucket(id));
  const RedisAnswer answer =
      client_.ask_and_wait({.script = &RedisScripts::get().read,
                            .keys = {keys.session(id), keys.tokens(id)},
                            .words = {std::to_string(first), std::to_string(tokens.size())},
                            .slot = keys.slot,
                            .most = {tokens.size_bytes() + RedisReplyBounds::kLeastBytes, 3}});
  if (!answer.arrived || answer.reply.list.empty()) return failure_of(answer);
  if (answer.reply.at(0) != "DONE") return SessionError::kNotFound;
  const bool is_whole =
      unpack_tokens(answer.reply.at(2), static_cast<int>(answer.reply.number_at(1)), tokens);
  return is_whole ? SessionError::kNone : SessionError::kDamaged;
}

std::vector<SessionStorage::Row> RedisStorage::list(const std::string& model,
                                                    const SessionId& after, std::size_t limit,
                                                    const std::optional<Owner>& owner) {
  return list_buckets(model, after, limit, owner, kRedisBuckets);
}

std::vector<SessionStorage::Row> RedisStorage::list_prefix(const std::string& prefix,
                                                           const SessionId& after,
                                                           std::size_t limit) {
  // The last id with the prefix is in the last bucket to list.
  std::vector<Row> rows = list_buckets(/*model=*/"", after, limit, std::nullopt,
                                       redis_bucket(prefix + "\x7f\x7f\x7f") + 1);
  std::erase_if(rows, [&](const Row& row) { return !row.id.starts_with(prefix); });
  return rows;
}

std::vector<SessionStorage::Row> RedisStorage::list_buckets(const std::string& model,
                                                            const SessionId& after,
                                                            std::size_t limit,
                                                            const std::optional<Owner>& owner,
                                                            int last) {
  // Buckets that are listed at once; the first alone often suffices.
  constexpr int kMostAtOnce = 256;
  std::vector<Row> rows;
  int at_once = 1;
  for (int bucket = redis_bucket(after); bucket < last && rows.size() < limit;) {
    const int end = std::min(bucket + at_once, last);
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

void RedisStorage::renew(std::span<const SessionId> busy, Done done) {
  done(std::vector<SessionError>(busy.size(), SessionError::kNone));
}

void RedisStorage::renew_until_closed() {
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
          due.back()->done = [](SessionError) {};
        }
      }
      for (const SentPtr& sent : due) send(sent);
    });
    MutexLock lock(mutex_);
    if (is_closing_) return;
    closed_.wait_for(mutex_, options_.lease / 12);
  }
}

SessionStorage::Health RedisStorage::health() const {
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

// RedisStorage: states and removals.

SessionError RedisStorage::put_state(const SessionId& id, std::span<const std::byte> state,
                                     StateRef* ref) {
  std::uint64_t where = 0;
  fill_with_random(std::as_writable_bytes(std::span(&where, 1)));
  {
    MutexLock lock(mutex_);
    const auto held = held_.find(id);
    if (held == held_.end()) return SessionError::kFenced;
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
  return SessionError::kNone;
}

SessionError RedisStorage::read_state(const StateRef& ref, std::span<std::byte> state) {
  const RedisStateKeys of(ref.where);
  const RedisAnswer answer =
      client_.ask_and_wait({.words = {"GET", of.bytes},
                            .slot = of.slot,
                            .most = {ref.bytes + RedisReplyBounds::kLeastBytes, 0}});
  if (!answer.arrived || answer.reply.is_error()) {
    const SessionError failed = failure_of(answer);
    if (failed != SessionError::kDamaged) return failed;
  }
  const auto bytes = std::as_bytes(std::span(answer.reply.text));
  if (bytes.size() != state.size() || digest_of(bytes) != ref.checksum) {
    MutexLock lock(mutex_);
    ++health_.states_lost;
    return SessionError::kDamaged;
  }
  std::ranges::copy(bytes, state.begin());
  return SessionError::kNone;
}

void RedisStorage::drop_states(const SessionId& id, std::vector<std::uint64_t> doomed,
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
                   }  // otherwise a sweep does it
                   if (left->fetch_sub(1) == 1) then();
                 }});
  }
}

void RedisStorage::count_sessions() {
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
  // Random, so that servers do not all begin with the same one.
  next_swept_ = static_cast<int>(std::random_device()() % kRedisBuckets);
}

std::size_t RedisStorage::sweep(std::size_t most) {
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

// RedisStorage: writes, and their repeats after a failover has lost them.

namespace {

using Kind = SessionStorage::Write::Kind;

constexpr int kMostHeals = 3;
constexpr std::size_t kRowWord = 8;  // of the arguments of write.lua, from 0 on

std::string micros_of(std::chrono::system_clock::time_point time) {
  return std::to_string(
      std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count());
}

// The fields of a row that change with every token are stored outside of it.
std::string stored_row(SessionStorage::Row row) {
  row.position = 0;
  row.digest = {};
  return text_of(encode_row(row));
}

// Outcomes of a commit's writes; `done` is called with the last of them. If an exception prevented
// the report of one, its outcome is unknown.
struct CommitOutcomes {
  CommitOutcomes(std::size_t count, SessionStorage::Done then)
      : outcomes(count, SessionError::kStoreAway),
        reported(std::make_unique<std::atomic<bool>[]>(count)),
        left(count),
        done(std::move(then)) {}
  ~CommitOutcomes() {
    if (left > 0) survives(ServerThread::kRedis, [this] { done(outcomes); });
  }

  void tell(std::size_t i, SessionError outcome) {
    if (reported[i].exchange(true)) return;
    outcomes[i] = outcome;
    if (left.fetch_sub(1) == 1) done(outcomes);
  }

  std::vector<SessionError> outcomes;
  std::unique_ptr<std::atomic<bool>[]> reported;
  std::atomic<std::size_t> left;
  SessionStorage::Done done;
};

bool gives_back(Kind kind) {
  return kind == Kind::kEnd || kind == Kind::kRelease || kind == Kind::kRemove;
}

// Adds the arguments of write.lua from `what` to the tokens. row: empty: unchanged.
void add_words(std::vector<std::string>& words, const char* what, bool is_history,
               const SessionStorage::Row& row, bool with_row, std::int64_t first, int width,
               std::span<const std::int32_t> tokens) {
  const std::string stored = with_row ? stored_row(row) : "";
  words.insert(
      words.end(),
      {what, is_history ? text_of(row.digest.bytes) : "", std::to_string(row.position), stored,
       std::to_string(row.base), micros_of(row.expires), redis_state_names(row.states),
       std::to_string(first), std::to_string(width), pack_tokens(tokens, width)});
}

std::vector<std::string> keys_of_write(const SessionStorage::SessionId& id) {
  const RedisKeys keys(redis_bucket(id));
  return {keys.session(id), keys.tokens(id), keys.garbage, keys.ids, keys.expiries};
}

}  // namespace

void RedisStorage::commit(std::vector<Write> writes, Done done) {
  if (writes.empty()) return done({});
  const auto outcomes = std::make_shared<CommitOutcomes>(writes.size(), std::move(done));
  MutexLock order(sending_);
  for (std::size_t i = 0; i < writes.size();) {
    if (writes[i].kind == Kind::kCreate) {
      create(writes[i], [outcomes, i](SessionError outcome) { outcomes->tell(i, outcome); });
      ++i;
      continue;
    }
    const Taken taken = take(std::span(writes).subspan(i));
    const auto report = [outcomes, i, count = taken.count](SessionError outcome) {
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

RedisStorage::Taken RedisStorage::take(std::span<Write> writes) {
  Taken taken;
  MutexLock lock(mutex_);
  const auto found = held_.find(writes.front().id);
  if (found == held_.end() || found->second.claim() != writes.front().claim) return taken;
  HeldSession& held = found->second;
  // Writes that are committed together are stored together: tokens need the marks with their
  // sources.
  for (Write& write : writes) {
    const bool is_of_it = write.id == writes.front().id && write.claim == held.claim();
    if (taken.sent != nullptr && (!is_of_it || gives_back(taken.sent->kind))) break;
    if (write.kind == Kind::kCreate || (taken.sent != nullptr && write.kind == Kind::kRemove))
      break;
    // A release applies to the session as it is held, including writes whose outcome is unknown.
    if (write.kind == Kind::kRelease) write.before = write.after = held.row().digest;
    const bool may_stand = write.before != write.after && write.after == held.row().digest;
    if (may_stand) break;
    const SessionError outcome = held.apply(write, &taken.sent);
    if (outcome == SessionError::kNone) {
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

HeldSession* RedisStorage::held_of(const HeldSession::Sent& sent) {
  const auto found = held_.find(sent.before.id);
  // A session with another claim is not the one it was sent for.
  return found == held_.end() || found->second.claim() != sent.claim ? nullptr : &found->second;
}

void RedisStorage::forget(const HeldSession::Sent& sent, std::vector<SentPtr>& waiting) {
  HeldSession* const held = held_of(sent);
  if (held == nullptr) return;
  waiting.swap(held->after_healing);
  held_.erase(sent.before.id);
}

void RedisStorage::check(const Write& write, const Report& report) {
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
                 report(word == "DONE"        ? SessionError::kNone
                        : word == "NOT_FOUND" ? SessionError::kNotFound
                                              : SessionError::kFenced);
               }});
}

void RedisStorage::create(const Write& write, Report report) {
  const std::optional<StorageSession> made = StorageSession::created(write);
  if (!made) return report(SessionError::kDamaged);
  const Row& row = made->row();
  const std::vector<std::int32_t>& tokens = made->tokens();
  int width = 1;
  for (const std::int32_t token : tokens) {
    const auto bits = static_cast<std::uint32_t>(token);
    width = std::max(width, bits < 256 ? 1 : bits < 65536 ? 2 : 4);
  }
  const RedisKeys keys(redis_bucket(row.id));
  std::string stored = stored_row(row);
  if (stored.size() > kMostRedisRowBytes) return report(SessionError::kStoreFull);
  RedisRequest request{
      .script = &RedisScripts::get().create,
      .keys = {keys.session(row.id), keys.tokens(row.id), keys.ids, keys.expiries, keys.garbage},
      .words = {row.id, row.owner, row.model, text_of(row.digest.bytes),
                std::to_string(row.position), std::to_string(row.base), std::move(stored),
                std::to_string(width), pack_tokens(tokens, width), micros_of(row.expires),
                redis_state_names(row.states)},
      .slot = keys.slot,
      .is_write = true,
      .done = [this, report](const RedisAnswer& answer) {
        if (!answer.arrived || answer.reply.list.empty()) return report(failure_of(answer));
        if (answer.reply.at(0) != "DONE") return report(SessionError::kFenced);
        {
          MutexLock lock(mutex_);
          ++health_.commits;
          ++health_.writes;
          is_full_ = false;
        }
        report(answer.is_replicated ? SessionError::kNone : SessionError::kStoreAway);
      }};
  if (row.states.empty()) return client_.ask(std::move(request));
  // First the states are marked as shared; if this process ends in between, a sweep finds the marks
  // that no row uses.
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
    if (*is_lost) return report(SessionError::kStoreAway);
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

void RedisStorage::send(const SentPtr& sent) {
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
            sent->is_history, sent->after, with_row, sent->first, sent->width, sent->tokens);
  if (words[kRowWord].size() > kMostRedisRowBytes) {
    return refused(sent, SessionError::kStoreFull, /*may_stand=*/false);
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
                          (sent->tokens.empty() || releases);
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
                  [&] { refused(sent, SessionError::kStoreAway, /*may_stand=*/true); });
       }});
}

void RedisStorage::answered(const SentPtr& sent, const RedisAnswer& answer) {
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
  const SessionError outcome =
      word == "NOT_FOUND" ? SessionError::kNotFound : SessionError::kFenced;
  refused(sent, outcome, /*may_stand=*/false);
  for (const SentPtr& each : waiting) refused(each, outcome, /*may_stand=*/false);
}

void RedisStorage::stood(const SentPtr& sent, const RedisAnswer& answer) {
  // Too few replicas have it: it is stored, but may be lost, and is written again.
  if (!answer.is_replicated) return refused(sent, SessionError::kStoreAway, /*may_stand=*/true);
  std::vector<SentPtr> waiting;  // empty, unless the claim was released while it was healed
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
  for (const SentPtr& each : waiting) refused(each, SessionError::kFenced, /*may_stand=*/false);
  drop_states(sent->before.id, std::move(doomed),
              [done = sent->done] { done(SessionError::kNone); });
}

void RedisStorage::refused(const SentPtr& sent, SessionError outcome, bool may_stand) {
  std::vector<SentPtr> waiting;
  {
    MutexLock lock(mutex_);
    if (HeldSession* const held = held_of(*sent)) {
      held->is_refused(*sent, may_stand);
      held->is_given_up |= sent->kind == Kind::kRelease;
      // This server may no longer write; the claim is useless.
      const bool is_final =
          outcome == SessionError::kFenced || outcome == SessionError::kRolledBack;
      if (is_final && gives_back(sent->kind)) forget(*sent, waiting);
    }
  }
  sent->done(outcome);
  for (const SentPtr& each : waiting) refused(each, outcome, /*may_stand=*/false);
}

void RedisStorage::heal(const SentPtr& sent, const RedisReply& reply) {
  const SessionId& id = sent->before.id;
  const Digest digest = digest_from(reply.at(1));
  const bool is_open = reply.at(3) == "1";
  const auto fence = static_cast<std::uint64_t>(reply.number_at(6));
  std::optional<HeldSession::Missing> missing;
  std::array<std::byte, 16> nonce{};
  fill_with_random(nonce);
  SessionError outcome = SessionError::kFenced;
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
      if (held.nonce != sent->nonce) {  // healed since this was sent
        sent->nonce = held.nonce;
        is_sent_again = sent->heals++ < kMostHeals;
      } else if (is_open && fence <= held.fence && sent->heals++ < kMostHeals) {
        missing = held.missing(*sent, digest);
        outcome = SessionError::kRolledBack;
        held.is_healing = missing.has_value();
      }
    }
    if (!is_sent_again && !missing) {
      ++(outcome == SessionError::kFenced ? health_.fenced : health_.rolled_back);
    }
  }
  if (is_sent_again) return send(sent);
  if (!missing) return refused(sent, outcome, /*may_stand=*/false);
  std::vector<std::string> words = {id, text_of(nonce), "0", std::to_string(sent->number - 1),
                                    lease_in_ms()};
  add_words(words, "heal", /*is_history=*/true, sent->before, /*with_row=*/true, missing->first,
            sent->width, missing->tokens);
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

void RedisStorage::healed(const SentPtr& sent, const RedisAnswer& answer,
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
    refused(sent, is_lost ? SessionError::kFenced : failure_of(answer), /*may_stand=*/false);
  }
  for (const SentPtr& each : waiting) {
    if (is_done) each->nonce = nonce;
    if (is_done) {
      send(each);
    } else {
      refused(each, SessionError::kStoreAway, /*may_stand=*/false);
    }
  }
}

}  // namespace lintel
