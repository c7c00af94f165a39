#include "server/sessions/persistence/durable_sessions.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "server/models/model_registry.h"
#include "server/sessions/persistence/vault_batch.h"

namespace lintel {
namespace {

constexpr std::size_t kSweptAtOnce = 256;

}  // namespace

DurableSessions::DurableSessions(SessionVault& vault, SessionStore& store,
                                 const ModelRegistry& models, const Clock& clock,
                                 const Options& options)
    : vault_(vault),
      store_(store),
      models_(models),
      clock_(clock),
      options_(options),
      writer_(vault, lost_claims_, clock,
              {.interval = options.commit_interval,
               .lazy_interval = options.lazy_interval,
               .lazy_values = options.lazy_values,
               .patience = options.patience,
               .park_tokens = options.park_tokens,
               .expire_after = options.expire_after,
               .has_thread = options.threads > 0}),
      threads_(options.threads, options.queue) {}

DurableSessions::~DurableSessions() = default;

bool DurableSessions::run(std::function<void()> work) { return threads_.run(std::move(work)); }

DurableSessions::Stats DurableSessions::stats() const {
  return {.brought_from_slot = from_slot_.load(),
          .brought_from_values = from_values_.load(),
          .calls_resumed = resumed_.load(),
          .replayed_cold = replayed_cold_.load(),
          .replayed_rewound = replayed_rewound_.load(),
          .replayed_resumed = replayed_resumed_.load(),
          .numerics_changed = numerics_changed_.load(),
          .states_stored = states_stored_.load() + writer_.states_stored(),
          .queued = threads_.queued()};
}

std::chrono::system_clock::time_point DurableSessions::expiry(const SessionOptions& session) const {
  const bool has_own = session.expire_after.count() > 0;
  return clock_.wall_time() + (has_own ? session.expire_after : options_.expire_after);
}

SharedModel DurableSessions::model_of(const SessionVault::Row& row) const {
  const std::vector<SharedModel> ready = models_.ready();
  for (const SharedModel& model : std::views::reverse(ready)) {  // the highest version first
    if (model->name == row.model && model->transformer->fingerprint() == row.model_print) {
      return model;
    }
  }
  return nullptr;
}

void DurableSessions::tell_of_row(const SessionVault::Row& row, SessionInfo& info) const {
  info.expires = row.expires;
  if (const std::optional<StoredMarks> marks = decode_marks(row.marks)) {
    info.numerics_changed_at = marks->numerics_changed_at;
    info.numerics = marks->numerics.empty() ? row.numerics : marks->numerics;
    info.numerics_before = marks->numerics.empty() ? "" : row.numerics;
  }
  if (row.call.empty() || info.busy) return;
  if (const std::optional<StoredCall> call = decode_call(row.call)) {
    info.interrupted = {
        .call_id = call->id, .start_position = call->start, .stored_position = row.position};
  }
}

SessionInfo DurableSessions::info_of(const SessionVault::Row& row) const {
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
  info.num_values = row.position;
  info.digest = to_hex(row.digest);
  info.has_pending = row.position > 0;
  info.max_values = row.max_values;
  info.durability = row.durability;
  info.in_memory = false;
  info.created = row.created;
  info.last_used = row.used;
  tell_of_row(row, info);
  return info;
}

bool DurableSessions::has_expired(const SessionVault::Row& row) const {
  return row.expires <= clock_.wall_time();
}

std::optional<SessionInfo> DurableSessions::find(const std::string& id, const Owner& owner) {
  std::optional<SessionInfo> info = store_.get(id, owner);
  if (info && info->durability == Durability::kNone) return info;
  const SessionVault::Opened found = vault_.find(id, owner);
  const bool is_gone = found.outcome == VaultOutcome::kNotFound ||
                       (found.outcome == VaultOutcome::kDone && has_expired(found.row));
  if (is_gone && !(info && info->busy)) {  // a call that runs keeps it
    if (info) store_.remove(id, owner);    // a copy of nothing
    return std::nullopt;
  }
  if (found.outcome != VaultOutcome::kDone) return info;
  if (info && is_old(found.row, *info)) {
    store_.remove(id, owner);
    info.reset();
  }
  const bool is_held = !found.holder.empty();
  if (info) {
    info->busy = info->busy || is_held;
    tell_of_row(found.row, *info);
  } else {
    info = info_of(found.row);
    info->busy = is_held;
    if (is_held) info->interrupted.reset();
  }
  return info;
}

SessionRefusal DurableSessions::absence(const std::string& id, const Owner& owner) {
  const VaultOutcome outcome = vault_.find(id, owner).outcome;
  const bool is_known = outcome == VaultOutcome::kDone || outcome == VaultOutcome::kNotFound;
  return is_known ? store_.absence(id, owner) : refusal_of(outcome);
}

bool DurableSessions::is_old(const SessionVault::Row& row, const SessionInfo& info) const {
  return vault_.is_shared() && !info.busy && to_hex(row.digest) != info.digest;
}

std::vector<SessionInfo> DurableSessions::list(const std::string& model,
                                               const std::string& after_id, std::size_t limit,
                                               const std::optional<Owner>& owner) {
  std::vector<SessionInfo> all;
  std::string after = after_id;
  while (true) {
    const std::size_t wanted = limit - all.size();
    const std::vector<SessionVault::Row> rows = vault_.list(model, after, wanted, owner);
    std::vector<SessionInfo> here = store_.list(model, after, wanted, owner);
    auto next = here.begin();
    const auto take_here = [&] { all.push_back(std::move(*next++)); };
    for (const SessionVault::Row& row : rows) {
      while (next != here.end() && next->id < row.id) take_here();
      const bool is_here = next != here.end() && next->id == row.id;
      if (has_expired(row) && !(is_here && next->busy)) {
        if (is_here) ++next;
      } else if (is_here && is_old(row, *next)) {
        ++next;
        all.push_back(info_of(row));
      } else if (is_here) {
        take_here();
        tell_of_row(row, all.back());
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

std::size_t DurableSessions::sweep() {
  lost_claims_.give_back(vault_);
  return vault_.sweep(kSweptAtOnce);
}

VaultOutcome DurableSessions::commit_and_release(VaultBatch& batch, const std::string& id,
                                                 const Owner& owner,
                                                 const SessionVault::Claim& claim) {
  const VaultOutcome outcome = batch.commit_and_wait(vault_);
  // A broken vault releases nothing before it is reopened.
  if (outcome == VaultOutcome::kFull || outcome == VaultOutcome::kUnavailable)
    lost_claims_.add(id, owner, claim);
  return outcome;
}

}  // namespace lintel
