// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/persistence/persistent_sessions.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <new>
#include <ranges>
#include <span>
#include <utility>

#include "model/core/errors.h"
#include "model/core/state_bytes.h"
#include "model/core/tensor.h"
#include "model/lora/adapter.h"
#include "server/engine/request.h"
#include "server/models/model_registry.h"
#include "server/sessions/persistence/call_writer.h"

namespace lintel {
namespace {

constexpr std::size_t kSweptAtOnce = 256;

bool is_chat_state(const std::string& id) { return id.starts_with(kChatStateIdPrefix); }

}  // namespace

PersistentSessions::PersistentSessions(SessionStorage& storage, SessionManager& store,
                                       const ModelRegistry& models, const Clock& clock,
                                       const Options& options)
    : storage_(storage),
      sessions_(store),
      models_(models),
      clock_(clock),
      options_(options),
      writer_(storage, lost_claims_, clock,
              {.interval = options.commit_interval,
               .lazy_interval = options.lazy_interval,
               .lazy_tokens = options.lazy_tokens,
               .patience = options.patience,
               .park = options.park,
               .expire_after = options.expire_after,
               .has_thread = options.threads > 0}),
      threads_(options.threads, options.queue) {}

PersistentSessions::~PersistentSessions() = default;

bool PersistentSessions::run(std::function<void()> work) { return threads_.run(std::move(work)); }

PersistentSessions::Stats PersistentSessions::stats() const {
  return {.loaded_from_slot = from_slot_.load(),
          .loaded_from_tokens = from_tokens_.load(),
          .calls_resumed = resumed_.load(),
          .replayed_cold = replayed_cold_.load(),
          .replayed_rewound = replayed_rewound_.load(),
          .replayed_resumed = replayed_resumed_.load(),
          .numerics_changed = numerics_changed_.load(),
          .states_stored = states_stored_.load() + writer_.states_stored(),
          .queued = threads_.queued()};
}

std::chrono::system_clock::time_point PersistentSessions::expiry(
    const SessionOptions& session) const {
  const bool has_own = session.expire_after.count() > 0;
  return clock_.wall_time() + (has_own ? session.expire_after : options_.expire_after);
}

SharedModel PersistentSessions::model_of(const SessionStorage::Row& row) const {
  const std::vector<SharedModel> ready = models_.ready();
  for (const SharedModel& model : std::views::reverse(ready)) {  // the highest version first
    if (model->name == row.model && continues_on(row.model_print, *model->transformer)) {
      return model;
    }
  }
  return nullptr;
}

void PersistentSessions::add_row_info(const SessionStorage::Row& row, SessionInfo& info) const {
  info.expires = row.expires;
  if (const std::optional<StoredMarks> marks = decode_marks(row.marks)) {
    info.numerics_changed_at = marks->numerics_changed_at;
    const bool is_converted = info.in_memory && info.numerics == kUnknownNumerics;
    if (!is_converted) info.numerics = marks->numerics.empty() ? row.numerics : marks->numerics;
    info.numerics_before = marks->numerics.empty() ? "" : row.numerics;
  }
  if (row.call.empty() || info.busy) return;
  if (const std::optional<StoredCall> call = decode_call(row.call)) {
    info.interrupted = {
        .call_id = call->id, .start_position = call->start, .stored_position = row.position};
  }
}

SessionInfo PersistentSessions::info_of(const SessionStorage::Row& row) const {
  SessionInfo info;
  info.id = row.id;
  info.model = row.model;
  if (const SharedModel model = model_of(row)) info.transformer = model->transformer.get();
  info.oldest_position = row.base;
  if (const std::optional<StoredMarks> marks = decode_marks(row.marks)) {
    info.adapter = marks->adapter;
    info.window = marks->options.window;
    info.oldest_position = marks->oldest(row);
  }
  info.num_tokens = row.position;
  info.digest = to_hex(row.digest);
  info.has_pending = row.position > 0;
  info.max_tokens = row.max_tokens;
  info.durability = row.durability;
  info.in_memory = false;
  info.created = row.created;
  info.last_used = row.used;
  add_row_info(row, info);
  return info;
}

bool PersistentSessions::has_expired(const SessionStorage::Row& row) const {
  return row.expires <= clock_.wall_time();
}

std::optional<SessionInfo> PersistentSessions::find(const std::string& id, const Owner& owner) {
  if (is_chat_state(id)) return std::nullopt;
  std::optional<SessionInfo> info = sessions_.get(id, owner);
  if (info && info->durability == Durability::kNone) return info;
  const SessionStorage::Opened found = storage_.find(id, owner);
  const bool is_gone = found.outcome == SessionError::kNotFound ||
                       (found.outcome == SessionError::kNone && has_expired(found.row));
  if (is_gone && !(info && info->busy)) {   // a call that runs keeps it
    if (info) sessions_.remove(id, owner);  // a copy of a removed session
    return std::nullopt;
  }
  if (found.outcome != SessionError::kNone) return info;
  if (info && is_stale(found.row, *info)) {
    sessions_.remove(id, owner);
    info.reset();
  }
  const bool is_held = !found.holder.empty();
  if (info) {
    info->busy = info->busy || is_held;
    add_row_info(found.row, *info);
  } else {
    info = info_of(found.row);
    info->busy = is_held;
    if (is_held) info->interrupted.reset();
  }
  return info;
}

SessionRefusal PersistentSessions::absence(const std::string& id, const Owner& owner) {
  if (is_chat_state(id)) return {SessionError::kNotFound};
  const SessionError outcome = storage_.find(id, owner).outcome;
  const bool is_known = outcome == SessionError::kNone || outcome == SessionError::kNotFound;
  return is_known ? sessions_.absence(id, owner) : refusal_of(outcome);
}

bool PersistentSessions::is_stale(const SessionStorage::Row& row, const SessionInfo& info) const {
  return storage_.is_shared() && !info.busy && to_hex(row.digest) != info.digest;
}

std::vector<SessionInfo> PersistentSessions::list(const std::string& model,
                                                  const std::string& after_id, std::size_t limit,
                                                  const std::optional<Owner>& owner) {
  std::vector<SessionInfo> all;
  std::string after = after_id;
  while (true) {
    const std::size_t wanted = limit - all.size();
    const std::vector<SessionStorage::Row> rows = storage_.list(model, after, wanted, owner);
    std::vector<SessionInfo> here = sessions_.list(model, after, wanted, owner);
    auto next = here.begin();
    const auto take_here = [&] { all.push_back(std::move(*next++)); };
    for (const SessionStorage::Row& row : rows) {
      while (next != here.end() && next->id < row.id) take_here();
      const bool is_here = next != here.end() && next->id == row.id;
      if (is_chat_state(row.id)) continue;
      if (has_expired(row) && !(is_here && next->busy)) {
        if (is_here) ++next;
      } else if (is_here && is_stale(row, *next)) {
        ++next;
        all.push_back(info_of(row));
      } else if (is_here) {
        take_here();
        add_row_info(row, all.back());
      } else {
        all.push_back(info_of(row));
      }
    }
    const bool is_last = rows.size() < wanted;
    while (is_last && next != here.end()) take_here();
    if (all.size() > limit) all.erase(all.begin() + static_cast<std::ptrdiff_t>(limit), all.end());
    if (is_last || all.size() == limit) return all;
    after = rows.back().id;  // some had expired
  }
}

std::size_t PersistentSessions::sweep() {
  lost_claims_.give_back(storage_);
  return storage_.sweep(kSweptAtOnce);
}

SessionError PersistentSessions::commit_and_release(WriteBatch& batch, const std::string& id,
                                                    const Owner& owner,
                                                    const SessionStorage::Claim& claim) {
  const SessionError outcome = batch.commit_and_wait(storage_);
  // A broken storage releases nothing before it is reopened.
  if (outcome == SessionError::kStoreFull || outcome == SessionError::kStoreAway)
    lost_claims_.add(id, owner, claim);
  return outcome;
}

// PersistentSessions: opening calls, new, repeated and past.

namespace {

// True if the terms differ from the call with their id.
bool differs(const IdempotencyKey& terms, const Digest& request, std::uint64_t seed) {
  return terms.request != request || (terms.seed && *terms.seed != seed);
}

// The position of its first token after the prompt.
std::int64_t first_new_of(const StoredCall& call) {
  const auto behind = std::ranges::find_if(
      call.marks, [](const HistoryMark& mark) { return mark.source != TokenSource::kPrompt; });
  return behind == call.marks.end() ? call.start : behind->position;
}

// The first of the tokens [start, end) that a repeat needs: to deliver again, or from `least` on.
std::int64_t needed_from(const IdempotencyKey& terms, std::int64_t start, std::int64_t first_new,
                         std::int64_t least, std::int64_t end) {
  const std::int64_t shown = std::max(terms.from_position, terms.echo_prompt ? start : first_new);
  return std::clamp(std::min(shown, least), start, end);
}

}  // namespace

SessionRefusal PersistentSessions::open_call(SessionLease& lease, const SharedModel& model,
                                             const IdempotencyKey& terms, OpenedCall& opened) {
  const std::string id = lease.session_id();
  const Owner owner = lease.owner();
  return until_current([&]() -> SessionRefusal {
    if (!lease) {
      SessionManager::LeaseResult again = load_and_lease(id, owner);
      if (again.refusal) return again.refusal;
      lease = std::move(again.lease);
      // The model was replaced or reloaded: a repeat of the call runs with the new one.
      if (&lease.transformer() != model->transformer.get()) return {SessionError::kStoreAway};
    }
    const SessionRefusal refusal = try_open_call(lease, model, terms, opened);
    if (refusal.error == SessionError::kStale) lease = SessionLease();  // the old copy goes
    return refusal;
  });
}

SessionRefusal PersistentSessions::try_open_call(SessionLease& lease, const SharedModel& model,
                                                 const IdempotencyKey& terms, OpenedCall& opened) {
  const std::string& id = lease.session_id();
  // Most calls are new, and the session is at its last position.
  SessionStorage::Opened found =
      terms.expected_position
          ? storage_.find(id, lease.owner())
          : storage_.open_at(id, lease.owner(), lease.history()->extent().digest, terms.id);
  FoundSession stored;
  SessionRefusal refusal = decode_row(std::move(found), stored);
  if (refusal) {
    lease.discard();
  } else {
    refusal = open_call_of(lease, model, terms, stored, opened);
  }
  // The running call has the claim, if there is one.
  if (stored.lease != nullptr && opened.call == nullptr) {
    lost_claims_.give_back(storage_, stored.row, stored.claim);
  }
  return refusal;
}

SessionRefusal PersistentSessions::open_call_of(SessionLease& lease, const SharedModel& model,
                                                const IdempotencyKey& terms, FoundSession& stored,
                                                OpenedCall& opened) {
  if (stored.held) return stored.held;
  if (stored.row.digest != lease.history()->extent().digest) {
    lease.discard();
    return {SessionError::kStale};
  }
  if (!options_.takes_other_numerics &&
      (other_numerics(stored.row, stored.marks, model->numerics().hex) ||
       (stored.call && stored.call->numerics != model->numerics().hex))) {
    return {SessionError::kNumericsRefused, 0, 0, 0, stored.row.position};
  }
  const auto begin = [&](std::int64_t start, bool draws) {
    opened.start = start;
    opened.call = std::make_shared<PersistentRequest>(
        writer_, model,
        SessionStorage::Opened{.row = stored.row, .claim = stored.claim, .lease = stored.lease},
        terms, start, draws);
    lease.keep_with(opened.call);
  };
  // The first token of a possible stop at the end of the call, or of the beginning of one, which a
  // repeat has to find again.
  const std::optional<StoredCall>& open = stored.call;
  const std::int64_t position = stored.row.position;
  const std::int64_t stops_from = lease.history()->first_of_match(position);
  if (open && !terms.id.empty() && open->id == terms.id) {
    if (differs(terms, open->request, open->seed)) return {SessionError::kCallDiffers};
    // Its client may have seen tokens that are not stored, and that would differ here.
    if (stored.row.durability != Durability::kToken && open->numerics != model->numerics().hex) {
      return {SessionError::kNumericsChanged, 0, 0, open->start, position};
    }
    begin(open->start, /*draws=*/true);
    const std::int64_t at =
        needed_from(terms, open->start, first_new_of(*open), stops_from, position);
    return replay(lease, stored.row, open->start, at, open->seed, opened);
  }
  if (open) {
    if (!terms.expected_position) {
      return {SessionError::kCallInterrupted, 0, 0, open->start, position};
    }
    if (*terms.expected_position < open->start || *terms.expected_position > position) {
      return {SessionError::kPositionMismatch, 0, 0, open->start, position,
              *terms.expected_position};
    }
    const SessionRefusal refusal = rewind(lease, *terms.expected_position);
    if (refusal) return refusal;
    IdempotencyKey fresh = terms;
    fresh.expected_position.reset();
    return try_open_call(lease, model, fresh, opened);
  }
  const auto calls = decode_last_calls(stored.row.last_calls);
  if (!calls) return {SessionError::kDamaged};
  const auto known =
      terms.id.empty() ? calls->end() : std::ranges::find(*calls, terms.id, &LastCall::id);
  if (known == calls->end()) {
    if (terms.expected_position && *terms.expected_position != position) {
      return {SessionError::kPositionMismatch, 0, 0, -1, position, *terms.expected_position};
    }
    // The client has tokens of the call, and others came later: it was forgotten, and is not new.
    if (terms.from_position > 0 && terms.from_position < position) {
      return {SessionError::kPositionMismatch, 0, 0, -1, position, terms.from_position};
    }
    begin(position, /*draws=*/true);
    return {};
  }
  if (differs(terms, known->request, known->result.seed)) return {SessionError::kCallDiffers};
  const bool is_last = known + 1 == calls->end() && known->end == position;
  if (is_last && (!known->finished || terms.log2_probs)) {
    begin(known->start, /*draws=*/!known->finished);
    // A call that was cut off has met no stop; only text may have the beginning of one.
    const bool has_text = model->transformer->tokenizer() != nullptr;
    const std::int64_t from = known->finished || has_text ? stops_from : position;
    const std::int64_t at = needed_from(terms, known->start, first_new_of(*known), from, position);
    const SessionRefusal refusal =
        replay(lease, stored.row, known->start, at, known->result.seed, opened);
    if (refusal.error != SessionError::kOutOfRange) return refusal;
    // No state leads there any more: the call is replayed from the store, not run.
    lease.keep_with(nullptr);
    opened = {};
  }
  if (terms.log2_probs) return {SessionError::kNoProbabilities};
  std::optional<Digest> digest = lease.history()->digest_at(known->end);
  opened.past = ReplayedResponse::of(*this, stored.row, stored.marks, *known, digest, terms);
  if (opened.past != nullptr) return {};
  return {SessionError::kOutOfRange, 0, 0, stored.row.base, position};
}

bool PersistentSessions::began_with(const std::string& id, const Owner& owner,
                                    const std::string& call_id) {
  FoundSession stored;
  if (call_id.empty() || read_row(id, owner, stored)) return false;
  if (stored.call && stored.call->start == 0) return stored.call->id == call_id;
  const auto calls = decode_last_calls(stored.row.last_calls);
  return calls && std::ranges::any_of(*calls, [&](const LastCall& call) {
           return call.start == 0 && call.id == call_id;
         });
}

SessionRefusal PersistentSessions::replay(SessionLease& lease, const SessionStorage::Row& row,
                                          std::int64_t start, std::int64_t at, std::uint64_t seed,
                                          OpenedCall& opened) {
  opened.seed = seed;
  opened.start = start;
  opened.tokens = lease.history()->tokens(at, row.position);
  if (const SessionRefusal refusal = rewind(lease, row, at, std::nullopt)) return refusal;
  resumed_.fetch_add(1);
  replayed_resumed_.fetch_add(
      static_cast<std::uint64_t>(row.position - lease.sequence().next_position()));
  return {};
}

SessionRefusal PersistentSessions::rewind(SessionLease& lease, const SessionStorage::Row& row,
                                          std::int64_t position,
                                          const std::optional<Digest>& expected) {
  // The session's own state, if it is one of those, is nearer than states stored before it.
  const std::int64_t own = lease.sequence().next_position();
  const std::int64_t least = std::max(lease.history()->base(), own <= position ? own + 1 : 1);
  const PagedState saved = read_state(row, least, position);
  const SessionManager::StoredState stored{
      .num_tokens = saved.position, .bytes = saved.bytes, .pages = saved.pages};
  return sessions_.rewind(lease, position, expected, &stored);
}

SessionError PersistentSessions::read_past(const ReplayedResponse& past, std::int64_t first,
                                           std::span<std::int32_t> tokens) {
  const SessionError read = storage_.read_tokens(past.session(), first, tokens);
  if (read != SessionError::kNone) return read;
  // The tokens are the call's if it is still known: a rewind over a call's tokens forgets the call.
  const SessionStorage::Opened found = storage_.find(past.session(), past.owner());
  if (found.outcome != SessionError::kNone) return found.outcome;
  const auto calls = decode_last_calls(found.row.last_calls);
  const bool is_there = calls && std::ranges::any_of(*calls, [&](const LastCall& call) {
                          return encode_last_calls({call}) == encode_last_calls({past.call()});
                        });
  return is_there ? SessionError::kNone : SessionError::kNotFound;
}

// PersistentSessions: writes to sessions without a running call.

namespace {

using Kind = SessionStorage::Write::Kind;

// True if a state is stored that remains after a rewind to `position`.
bool keeps_state(const SessionStorage::Row& row, std::int64_t position) {
  return std::ranges::any_of(row.states, [&](const SessionStorage::StateRef& state) {
    return !state.is_pages && state.position <= position;
  });
}

}  // namespace

SessionRefusal PersistentSessions::persist(const std::string& id, const Owner& owner) {
  const std::optional<SessionOptions> made_as = sessions_.made_as(id, owner);
  if (!made_as) return sessions_.absence(id, owner);
  if (made_as->durability == Durability::kNone) return {};
  const std::optional<SessionInfo> info = sessions_.get(id, owner);
  if (!info) return sessions_.absence(id, owner);
  const SharedModel model = models_.find(info->model, info->transformer);
  if (model == nullptr) return {SessionError::kUnloaded};
  // Computing a state of few tokens takes no longer than reading it.
  const bool with_state =
      options_.park.pays(*model->transformer, info->num_tokens - 1, /*leaves_memory=*/false);
  SessionManager::ImageResult made = sessions_.image(id, owner, std::nullopt, /*with_history=*/true,
                                                     with_state, nullptr, /*in_pages=*/true);
  if (made.refusal) return made.refusal;
  SessionImage& image = made.image;
  NewSession created;
  SessionStorage::Row& row = created.row;
  row.id = id;
  row.owner = owner;
  row.model = image.model;
  row.model_print = stored_model_print(*model->transformer);
  row.numerics = model->numerics().hex;
  row.durability = made_as->durability;
  row.max_tokens = image.max_tokens;
  row.base = image.base;
  row.position = image.position;
  row.digest = image.digest;
  row.marks = encode_marks({.options = *made_as,
                            .adapter = image.adapter,
                            .adapter_fingerprint = image.adapter_fingerprint,
                            .base_digest = image.base_digest,
                            .numerics = info->numerics,
                            .numerics_changed_at = info->numerics_changed_at,
                            .marks = image.marks});
  row.created = info->created;
  row.used = info->last_used;
  row.expires = expiry(*made_as);
  created.tokens = std::move(image.tokens);
  const SessionError outcome = create_row(created);
  zero_memory(std::span(created.tokens));
  if (outcome != SessionError::kNone) return refusal_of(outcome);
  if (!image.state.empty()) {
    PagedState saved;
    saved.position = image.state_position;
    saved.pages_end = image.pages.empty() ? 0 : image.pages.back().end;
    saved.bytes = std::move(image.state);
    saved.pages = std::move(image.pages);
    const bool has_state = store_state(id, owner, saved);
    // The state is required if the history begins after its first token.
    if (!has_state && image.base > 0) {
      remove_row(id, owner);
      return {SessionError::kStoreFull};
    }
  }
  sessions_.set_stored(id, owner);
  return {};
}

SessionError PersistentSessions::create_row(const NewSession& created) {
  const SessionStorage::Row& row = created.row;
  WriteBatch batch;
  batch.add({.kind = Kind::kCreate, .id = row.id, .after = row.digest, .position = row.position},
            encode_new_session(created));
  return batch.commit_and_wait(storage_);
}

bool PersistentSessions::store_row(const NewSession& created, const PagedState& state) {
  const SessionStorage::Row& row = created.row;
  if (create_row(created) != SessionError::kNone) return false;
  if (store_state(row.id, row.owner, state)) return true;
  remove_row(row.id, row.owner);
  return false;
}

bool PersistentSessions::store_state(const std::string& id, const Owner& owner,
                                     const PagedState& state) {
  const SessionStorage::Opened opened = storage_.open(id, owner, nullptr);
  if (opened.outcome != SessionError::kNone) return false;
  StoredStates refs;
  const bool has_state = state.put(storage_, id, refs) == SessionError::kNone;
  SessionStorage::Write write{.kind = Kind::kState,
                              .id = id,
                              .claim = opened.claim,
                              .before = opened.row.digest,
                              .after = opened.row.digest,
                              .position = opened.row.position};
  WriteBatch batch;
  if (has_state) batch.add(write, encode_change({.states = std::move(refs)}));
  write.kind = Kind::kRelease;
  batch.add(write, {});
  const bool is_kept =
      commit_and_release(batch, id, owner, opened.claim) == SessionError::kNone && has_state;
  if (is_kept) states_stored_.fetch_add(1);
  return is_kept;
}

std::size_t PersistentSessions::store_idle_states(Duration most, const Transformer* model) {
  constexpr std::size_t kSessionsOfACommit = 64;
  const TimePoint until = clock_.now() + most;
  std::size_t stored = 0;
  const std::vector<SessionManager::Named> idle = sessions_.idle_stored(model);
  for (auto next = idle.begin(); next != idle.end() && clock_.now() < until;) {
    WriteBatch batch;
    std::size_t put = 0;
    for (; put < kSessionsOfACommit && next != idle.end() && clock_.now() < until; ++next) {
      if (store_idle_state(next->id, next->owner, batch)) ++put;
    }
    if (batch.empty()) continue;
    if (batch.commit_and_wait(storage_) != SessionError::kNone) break;
    stored += put;
  }
  states_stored_.fetch_add(stored);
  return stored;
}

bool PersistentSessions::store_idle_state(const std::string& id, const Owner& owner,
                                          WriteBatch& batch) {
  const std::optional<SessionInfo> info = sessions_.get(id, owner);
  const auto pays = [&](const SessionStorage::Row& row) {
    return options_.park.pays(*info->transformer, info->num_tokens - last_state_of(row.states),
                              /*leaves_memory=*/true);
  };
  if (!info || !pays({})) return false;
  const SessionStorage::Opened opened = storage_.open(id, owner, nullptr);
  if (opened.outcome != SessionError::kNone) return false;
  const SessionStorage::Row& row = opened.row;
  SessionStorage::Write write{.kind = Kind::kState,
                              .id = id,
                              .claim = opened.claim,
                              .before = row.digest,
                              .after = row.digest,
                              .position = row.position};
  StoredStates put;
  if (row.call.empty() && pays(row)) {
    SessionLease lease = sessions_.lease(id, owner).lease;
    const bool is_whole = lease && lease.history()->extent().digest == row.digest &&
                          lease.sequence().next_position() == row.position;
    if (is_whole) put = put_state(lease, row.states);
  }
  if (!put.empty()) {
    StoredStates states = row.states;
    add_states(states, put, last_state_of(states));
    batch.add(write, encode_change({.states = std::move(states)}));
  }
  write.kind = Kind::kRelease;
  batch.add(write, {});
  return !put.empty();
}

SessionRefusal PersistentSessions::remove(const std::string& id, const Owner& owner) {
  if (is_chat_state(id)) return {SessionError::kNotFound};
  const KeyedMutex::Hold alone(locks_, id);
  const std::optional<SessionInfo> info = sessions_.get(id, owner);
  const SessionRefusal refusal = sessions_.remove(id, owner);
  if (refusal.error == SessionError::kBusy) return busy_or_away(refusal);
  if (info && info->durability == Durability::kNone) return refusal;
  const SessionRefusal stored = remove_row(id, owner);
  return stored.error == SessionError::kNotFound && refusal ? refusal : stored;
}

SessionRefusal PersistentSessions::remove_row(const std::string& id, const Owner& owner) {
  const SessionStorage::Opened opened = storage_.open(id, owner, nullptr);
  if (opened.outcome != SessionError::kNone) return refusal_of(opened);
  WriteBatch batch;
  batch.add({.kind = Kind::kRemove,
             .id = id,
             .claim = opened.claim,
             .before = opened.row.digest,
             .after = opened.row.digest,
             .position = opened.row.position},
            {});
  const SessionError outcome = commit_and_release(batch, id, owner, opened.claim);
  if (outcome == SessionError::kNone && has_expired(opened.row)) return {SessionError::kNotFound};
  return refusal_of(outcome);
}

SessionManager::CreateResult PersistentSessions::rewind(const std::string& id, const Owner& owner,
                                                        std::int64_t position,
                                                        const std::optional<Digest>& expected) {
  SessionManager::CreateResult result;
  bool is_durable = true;
  result.refusal = until_current([&]() -> SessionRefusal {
    const SessionManager::LoadResult loaded = load(id, owner);
    if (loaded.refusal) return loaded.refusal;
    SessionManager::LeaseResult leased = load_and_lease(id, owner);
    if (!leased.lease) return leased.refusal;
    is_durable = leased.lease.durability() != Durability::kNone;
    return is_durable ? rewind(leased.lease, position, expected) : SessionRefusal();
  });
  if (!is_durable) return sessions_.rewind(id, owner, position, expected);
  if (result.refusal) return result;
  const std::optional<SessionInfo> info = find(id, owner);
  if (!info) {  // removed meanwhile
    result.refusal = sessions_.absence(id, owner);
    return result;
  }
  result.info = *info;
  return result;
}

StoredStates PersistentSessions::put_state(SessionLease& lease, const StoredStates& stored) {
  StoredStates refs;
  PagedState saved;
  saved.save(lease.sequence(), stored);
  return saved.put(storage_, lease.session_id(), refs) == SessionError::kNone ? refs
                                                                              : StoredStates();
}

SessionRefusal PersistentSessions::rewind(SessionLease& lease, std::int64_t position,
                                          const std::optional<Digest>& expected) {
  const SessionStorage::Opened opened = storage_.open(lease.session_id(), lease.owner(), nullptr);
  if (opened.outcome != SessionError::kNone) return refusal_of(opened);
  const SessionStorage::Row& row = opened.row;
  if (storage_.is_shared() && lease.history()->extent().digest != row.digest) {
    lost_claims_.give_back(storage_, row, opened.claim);
    lease.discard();
    return {SessionError::kStale};
  }
  const SessionRefusal refusal = rewind(lease, row, position, expected);
  const SessionHistory::Extent now = lease.history()->extent();
  SessionStorage::Write write{.kind = Kind::kRewind,
                              .id = row.id,
                              .claim = opened.claim,
                              .before = row.digest,
                              .after = now.digest,
                              .position = now.position};
  WriteBatch batch;
  StoredStates states;
  if (!refusal && row.base > 0 && !keeps_state(row, now.position)) {
    states = put_state(lease, {});
    if (states.empty()) {  // unchanged: no state would lead to the position
      lease.discard();
      write.after = row.digest;
      write.kind = Kind::kRelease;
      write.position = row.position;
      batch.add(write, {});
      commit_and_release(batch, row.id, row.owner, opened.claim);
      return {SessionError::kStoreFull};
    }
  }
  if (!refusal) {
    std::vector<LastCall> calls =
        decode_last_calls(row.last_calls).value_or(std::vector<LastCall>());
    std::erase_if(calls, [&](const LastCall& call) { return call.end > now.position; });
    StoredMarks marks = decode_marks(row.marks).value_or(StoredMarks());
    marks.marks = marks_of(marks.marks, row.base, *lease.history(), now.position);
    const std::optional<StoredCall> given_up =
        row.call.empty() ? std::nullopt : decode_call(row.call);
    if (given_up && given_up->start < now.position) note_numerics(*given_up, row, marks);
    replayed_rewound_.fetch_add(
        static_cast<std::uint64_t>(now.position - lease.sequence().next_position()));
    batch.add(write, encode_change({.last_calls = encode_last_calls(calls),
                                    .marks = encode_marks(marks),
                                    .used = clock_.wall_time(),
                                    .expires = expiry(marks.options)}));
    write.before = now.digest;
    write.kind = Kind::kState;
    if (!states.empty()) batch.add(write, encode_change({.states = std::move(states)}));
  } else {
    write.after = row.digest;
  }
  write.kind = Kind::kRelease;
  batch.add(write, {});
  const SessionError outcome = commit_and_release(batch, row.id, row.owner, opened.claim);
  if (outcome == SessionError::kNone) return refusal;
  lease.discard();  // the storage is authoritative
  return refusal_of(outcome);
}

// PersistentSessions: loading sessions into memory.

SessionRefusal PersistentSessions::read_row(const std::string& id, const Owner& owner,
                                            FoundSession& stored) {
  return decode_row(storage_.find(id, owner), stored);
}

SessionRefusal PersistentSessions::decode_row(SessionStorage::Opened found, FoundSession& stored) {
  if (found.outcome != SessionError::kNone) return refusal_of(found.outcome);
  if (!found.holder.empty()) {
    found.outcome = SessionError::kHeld;
    stored.held = refusal_of(found);
  }
  stored.row = std::move(found.row);
  stored.claim = found.claim;
  stored.lease = std::move(found.lease);
  if (has_expired(stored.row)) return {SessionError::kNotFound};
  std::optional<StoredMarks> marks = decode_marks(stored.row.marks);
  if (!marks) return {SessionError::kDamaged};
  stored.marks = *std::move(marks);
  stored.marks.options.max_tokens = stored.row.max_tokens;
  stored.marks.options.durability = stored.row.durability;
  stored.marks.options.numerics_changed_at = stored.marks.numerics_changed_at;
  if (!stored.row.call.empty()) {
    stored.call = decode_call(stored.row.call);
    if (!stored.call) return {SessionError::kDamaged};
  }
  stored.model = model_of(stored.row);
  if (stored.model != nullptr &&
      other_numerics(stored.row, stored.marks, stored.model->numerics().hex)) {
    stored.marks.options.numerics =
        stored.marks.numerics.empty() ? stored.row.numerics : stored.marks.numerics;
  }
  return {};
}

SessionRefusal PersistentSessions::busy_or_away(const SessionRefusal& refusal) const {
  const bool is_away = refusal.error == SessionError::kBusy &&
                       storage_.health().state == SessionStorage::Health::State::kAway;
  return is_away ? SessionRefusal{SessionError::kStoreAway} : refusal;
}

SessionManager::LoadResult PersistentSessions::load(const std::string& id, const Owner& owner) {
  if (sessions_.get(id, owner) && !find(id, owner)) {  // it has expired
    return {.pin = {}, .refusal = sessions_.absence(id, owner)};
  }
  return load_current(id, owner);
}

SessionManager::LeaseResult PersistentSessions::load_and_lease(const std::string& id,
                                                               const Owner& owner) {
  SessionManager::LeaseResult result;
  result.refusal = until_current([&]() -> SessionRefusal {
    SessionManager::LoadResult loaded;
    // A session in memory is used as it is: open_call() checks if it is stale, or has expired.
    if (const auto info = sessions_.get(id, owner); !info || info->busy) {
      loaded = load_current(id, owner);
      if (loaded.refusal) return loaded.refusal;
    }
    SessionManager::LeaseResult leased = sessions_.lease(id, owner);
    result.lease = std::move(leased.lease);
    // It was evicted, or another thread has dropped a stale copy.
    const bool has_gone = leased.refusal.error == SessionError::kNotFound;
    return has_gone ? SessionRefusal{SessionError::kStale} : busy_or_away(leased.refusal);
  });
  return result;
}

SessionManager::LoadResult PersistentSessions::load_current(const std::string& id,
                                                            const Owner& owner) {
  SessionManager::LoadResult result;
  if (is_chat_state(id)) {
    result.refusal = {SessionError::kNotFound};
    return result;
  }
  if (!storage_.is_shared()) result.pin = sessions_.pin(id, owner);
  if (result.pin) return result;
  const KeyedMutex::Hold alone(locks_, id);
  result.refusal = drop_if_stale(id, owner);
  if (result.refusal) return result;
  result.pin = sessions_.pin(id, owner);  // another thread may have loaded it
  if (!result.pin) {
    result.refusal = until_current([&] {
      SessionManager::LoadResult restored = restore(id, owner);
      result.pin = std::move(restored.pin);
      return restored.refusal;
    });
  }
  return result;
}

SessionRefusal PersistentSessions::drop_if_stale(const std::string& id, const Owner& owner) {
  const std::optional<SessionInfo> info = sessions_.get(id, owner);
  if (!info || !storage_.is_shared() || info->busy || info->durability == Durability::kNone) {
    return {};
  }
  const SessionStorage::Opened found = storage_.find(id, owner);
  const bool is_known =
      found.outcome == SessionError::kNone || found.outcome == SessionError::kNotFound;
  if (!is_known) return refusal_of(found.outcome);
  if (found.outcome == SessionError::kNone && !is_stale(found.row, *info)) return {};
  sessions_.remove(id, owner);
  return {};
}

SessionManager::LoadResult PersistentSessions::restore(const std::string& id, const Owner& owner) {
  SessionManager::LoadResult result;
  FoundSession stored;
  result.refusal = read_row(id, owner, stored);
  if (!result.refusal) result = restore_row(id, owner, stored);
  const SessionError error = result.refusal.error;
  const bool may_have_changed =
      storage_.is_shared() && (error == SessionError::kDamaged || error == SessionError::kNotFound);
  if (may_have_changed) {
    // A row that does not fit is damaged, unless another server has written it meanwhile.
    const SessionStorage::Opened now = storage_.find(id, owner);
    if (now.outcome == SessionError::kNone && now.row.digest != stored.row.digest) {
      return {.pin = {}, .refusal = {SessionError::kStale}};
    }
  }
  if (error == SessionError::kNotFound) result.refusal = sessions_.absence(id, owner);
  return result;
}

SessionManager::LoadResult PersistentSessions::restore_row(const std::string& id,
                                                           const Owner& owner,
                                                           const FoundSession& stored) {
  SessionManager::LoadResult result;
  const auto refused = [&](const SessionRefusal& refusal) {
    result.refusal = refusal;
    return std::move(result);
  };
  if (stored.model == nullptr) return refused({SessionError::kModelMismatch});
  SharedAdapter adapter;
  if (!stored.marks.adapter.empty()) {
    adapter = stored.model->adapters->find(stored.marks.adapter);
    if (adapter == nullptr || adapter->weights->fingerprint() != stored.marks.adapter_fingerprint) {
      return refused({SessionError::kModelMismatch});
    }
  }
  try {
    SessionImage image;
    if (const SessionRefusal refusal = read_image(stored, image)) return refused(refusal);
    const StoredSession origin{.id = id,
                               .options = stored.marks.options,
                               .created = stored.row.created,
                               .last_used = stored.row.used};
    result = sessions_.load(origin, stored.model->name, stored.model->transformer, image, owner,
                            std::move(adapter));
    if (result.refusal) return result;
    (image.state.empty() ? from_tokens_ : from_slot_).fetch_add(1);
    const std::int64_t idle_at = stored.call ? stored.call->start : stored.row.position;
    replayed_cold_.fetch_add(static_cast<std::uint64_t>(idle_at - image.state_position));
    if (!stored.marks.options.numerics.empty() && numerics_changed_.fetch_add(1) == 0) {
      spdlog::warn("the store has sessions that a machine of other bits computed");
    }
    zero(image);
  } catch (const ModelError& error) {
    // Another server may have written to a shared storage meanwhile.
    spdlog::log(storage_.is_shared() ? spdlog::level::warn : spdlog::level::err,
                "a session in the store is damaged: {}", error.what());
    return refused({SessionError::kDamaged});
  } catch (const std::bad_alloc&) {
    return refused({SessionError::kOutOfMemory});
  }
  return result;
}

SessionRefusal PersistentSessions::read_image(const FoundSession& stored, SessionImage& image) {
  const SessionStorage::Row& row = stored.row;
  image.model = row.model;
  image.max_tokens = row.max_tokens;
  image.window = stored.marks.options.window;
  image.base = stored.marks.oldest(row);
  image.position = row.position;
  image.digest = row.digest;
  image.base_digest =
      stored.marks.bases.empty() ? stored.marks.base_digest : stored.marks.bases.back().digest;
  // A repeated call may restart at its beginning; open_call() decides.
  const std::int64_t latest = stored.call ? stored.call->start : row.position;
  PagedState saved = read_state(row, image.base, latest);
  image.state_position = saved.position;
  image.state = std::move(saved.bytes);
  image.pages = std::move(saved.pages);
  if (image.state_position < image.base) {
    // The state is required: the tokens before the base are gone.
    if (row.base > 0) return {SessionError::kDamaged};
    image.base = 0;
    image.base_digest = stored.marks.base_digest;
  }
  image.marks = stored.marks.marks;
  if (stored.call) append_marks(*stored.call, row.base, row.position, image.marks);
  image.marks = marks_from(image.base, std::move(image.marks));
  // A store on the network is not trusted: room is made for no more than sessions may take in
  // memory.
  const std::int64_t count = row.position - image.base;
  const std::size_t most = sessions_.options().session_memory_bytes / sizeof(std::int32_t);
  if (count < 0 || static_cast<std::uint64_t>(count) > most) return {SessionError::kDamaged};
  image.tokens.resize(static_cast<std::size_t>(count));
  return refusal_of(storage_.read_tokens(row.id, image.base, image.tokens));
}

PagedState PersistentSessions::read_state(const SessionStorage::Row& row, std::int64_t least,
                                          std::int64_t most) {
  for (const SessionStorage::StateRef& ref : std::views::reverse(row.states)) {
    if (ref.is_pages || ref.position > most) continue;
    if (ref.position < least) break;
    PagedState saved;
    if (saved.read(storage_, row.states, ref, sessions_.options().session_memory_bytes)) {
      return saved;
    }
  }
  return {};
}

}  // namespace lintel
