// SPDX-License-Identifier: Apache-2.0
#include "server/api/kserve/sequences.h"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "model/core/sha256.h"
#include "server/api/handlers.h"
#include "server/api/lookup.h"
#include "server/api/refusals.h"
#include "server/api/request_checks.h"
#include "server/api/session_checks.h"
#include "server/rpc/status.h"

namespace lintel {

std::string SequenceName::id_prefix() const {
  constexpr std::size_t kDigits = 32;
  Sha256 hash;
  for (const std::string& part : {owner, model, name}) {
    hash.add_length(part.size());
    hash.add(part);
  }
  return hash.hex().substr(0, kDigits);
}

std::optional<std::string> StoredSequences::next(const SequenceName& name,
                                                 const std::string& after) const {
  const std::vector<SessionInfo> found =
      context_.persistent_sessions->list(name.model, after, /*limit=*/1, name.owner);
  if (found.empty() || !found.front().id.starts_with(name.id_prefix())) return std::nullopt;
  return found.front().id;
}

std::optional<std::string> StoredSequences::find(const SequenceName& name) {
  try_again();
  std::optional<std::string> id = next(name, name.id_prefix());
  while (id && has_ended(*id)) id = next(name, *id);
  return id;
}

SessionRefusal StoredSequences::remove(const SequenceName& name) {
  std::string after = name.id_prefix();
  while (const auto id = next(name, after)) {
    after = *id;
    const SessionRefusal refusal = context_.persistent_sessions->remove(*id, name.owner);
    if (refusal && refusal.error != SessionError::kNotFound) return refusal;
    MutexLock lock(mutex_);
    ended_.erase(*id);
  }
  return {};
}

void StoredSequences::end(const Owner& owner, const std::string& id) noexcept {
  try {
    {
      MutexLock lock(mutex_);
      ended_[id].owner = owner;
    }
    remove_later(id, owner);
  } catch (const std::bad_alloc&) {  // then it goes when it has not been used for long enough
  }
}

bool StoredSequences::has_ended(const std::string& id) const {
  MutexLock lock(mutex_);
  return ended_.contains(id);
}

void StoredSequences::remove_later(const std::string& id, const Owner& owner) {
  {
    MutexLock lock(mutex_);
    const auto found = ended_.find(id);
    if (found == ended_.end() || std::exchange(found->second.is_queued, true)) return;
  }
  context_.calls.hold();  // the server does not go before it
  const bool queued = context_.persistent_sessions->run([this, id, owner] {
    const SessionRefusal refusal = context_.persistent_sessions->remove(id, owner);
    {
      MutexLock lock(mutex_);
      const bool is_gone = !refusal || refusal.error == SessionError::kNotFound;
      const auto found = ended_.find(id);
      if (found != ended_.end()) found->second.is_queued = false;
      if (found != ended_.end() && is_gone) ended_.erase(found);
    }
    context_.calls.release();
  });
  if (queued) return;
  context_.calls.release();
  MutexLock lock(mutex_);
  const auto found = ended_.find(id);
  if (found != ended_.end()) found->second.is_queued = false;
}

void StoredSequences::try_again() {
  std::vector<std::pair<std::string, Owner>> waiting;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, ended] : ended_) {
      if (!ended.is_queued) waiting.emplace_back(id, ended.owner);
    }
  }
  for (const auto& [id, owner] : waiting) remove_later(id, owner);
}

namespace {

grpc::Status no_sequence(const SequenceName& sequence) {
  return not_found("sequence", sequence.name,
                   "no such sequence: not started, ended, or evicted when idle");
}

}  // namespace

// ---- SequenceNames

std::optional<std::string> SequenceNames::put(const SequenceName& name,
                                              const std::string& session_id) {
  MutexLock lock(mutex_);
  if (ids_.size() >= next_cleaning_) forget_evicted();
  const auto [found, is_new] = ids_.try_emplace(name, session_id);
  if (is_new) return std::nullopt;
  std::string before = session_id;
  before.swap(found->second);
  return before;
}

std::optional<std::string> SequenceNames::find(const SequenceName& name) const {
  MutexLock lock(mutex_);
  const auto found = ids_.find(name);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

void SequenceNames::forget(const SequenceName& name, const std::string& session_id) noexcept {
  MutexLock lock(mutex_);
  const auto found = ids_.find(name);
  if (found != ids_.end() && found->second == session_id) ids_.erase(found);
}

std::size_t SequenceNames::size() const {
  MutexLock lock(mutex_);
  return ids_.size();
}

void SequenceNames::forget_evicted() {
  std::erase_if(ids_,
                [this](const auto& entry) { return !store_.get(entry.second, entry.first.owner); });
  next_cleaning_ = std::max<std::size_t>(2 * ids_.size(), 64);
}

// ---- ClientSequences

grpc::Status ClientSequences::find(const Owner& owner, const TensorRequest& request,
                                   GenerationTarget& target, ClientSequence& sequence) {
  if (request.sequence_id.empty()) return grpc::Status::OK;
  sequence = {{owner, target.model->name, request.sequence_id},
              /*session_id=*/"",
              request.sequence_start,
              request.sequence_end};
  if (request.sequence_start) return start(request, target, sequence);
  const std::optional<std::string> known = id_of(sequence);
  return known ? resume(*known, target, sequence) : no_sequence(sequence);
}

std::optional<std::string> ClientSequences::id_of(ClientSequence& sequence) {
  if (auto known = names_.find(sequence)) return known;
  if (context_.persistent_sessions == nullptr) return std::nullopt;
  const KeyedMutex::Hold alone(stored_.starts(), sequence.id_prefix());
  std::optional<std::string> stored = stored_.find(sequence);
  sequence.is_stored = stored.has_value();
  return stored;
}

grpc::Status ClientSequences::resume(const std::string& id, GenerationTarget& target,
                                     ClientSequence& sequence) {
  const SessionRefusal refusal = lease_session(context_, id, sequence.owner, target);
  if (refusal.error == SessionError::kNotFound) return no_sequence(sequence);
  if (refusal.error == SessionError::kUnloaded) {
    return not_found("sequence", sequence.name,
                     "no such sequence: it ended when its model was unloaded or another version "
                     "took its place");
  }
  if (refusal) return store_refusal(refusal, context_.sessions.options(), id, sequence.owner);
  sequence.session_id = id;
  return grpc::Status::OK;
}

grpc::Status ClientSequences::start(const TensorRequest& request, GenerationTarget& target,
                                    ClientSequence& sequence) {
  Violations violations;
  const ModelConfig& config = target.model->transformer->config();
  SessionOptions options{.max_tokens = request.max_tokens};
  options.window = request.settings.window
                       ? check_window(*request.settings.window, config, violations)
                       : default_window(config, /*initial=*/nullptr);
  check_session_length(request.max_tokens, "parameters[max_tokens]",
                       options.window > 0 ? 0 : config.max_tokens(), violations);
  if (!violations.empty()) return violations.status();
  if (grpc::Status may = check_durability(
          request.durability, "parameters[lintel_durability]", context_.persistent_sessions,
          default_durability(context_.persistent_sessions), &options.durability);
      !may.ok()) {
    return may;
  }
  const std::string& adapter = request.settings.adapter;
  if (context_.persistent_sessions == nullptr) return start_new(adapter, options, target, sequence);
  const KeyedMutex::Hold alone(stored_.starts(), sequence.id_prefix());
  const std::optional<std::string> before = stored_.find(sequence);
  // A start that is repeated is the same call once more.
  if (before &&
      context_.persistent_sessions->began_with(*before, sequence.owner, request.settings.call_id)) {
    sequence.is_new = false;
    sequence.is_stored = true;
    return resume(*before, target, sequence);
  }
  return start_new(adapter, options, target, sequence);
}

grpc::Status ClientSequences::start_new(const std::string& adapter_name, SessionOptions options,
                                        GenerationTarget& target, ClientSequence& sequence) {
  SessionManager& store = context_.sessions;
  const Owner& owner = sequence.owner;
  const ServedModel& model = *target.model;
  SharedAdapter adapter;
  if (grpc::Status named = resolve_adapter(adapter_name, model, &adapter); !named.ok()) {
    return named;
  }
  // A sequence that starts again forgets what it was.
  const auto before = names_.find(sequence);
  if (before && store.remove(*before, owner).error == SessionError::kBusy) {
    return session_busy(sequence.name);
  }
  if (context_.persistent_sessions != nullptr) {
    const SessionRefusal refusal = stored_.remove(sequence);
    if (refusal.error == SessionError::kBusy) return session_busy(sequence.name);
    if (refusal) return store_refusal(refusal, store.options(), /*session_id=*/"", owner);
  }
  sequence.is_stored = options.durability != Durability::kNone;
  if (sequence.is_stored) options.id_prefix = sequence.id_prefix();
  SessionManager::CreateResult created =
      store.create(model.name, model.transformer, options, owner, std::move(adapter));
  if (created.refusal.error == SessionError::kNeedsMaxTokens) {
    return invalid_argument(
        {{"parameters[max_tokens]", "is needed: the state of this model grows with the sequence"}});
  }
  if (created.refusal) {
    return store_refusal(created.refusal, store.options(), /*session_id=*/"", owner);
  }
  if (grpc::Status kept = keep_session(context_, owner, created.info); !kept.ok()) return kept;
  const std::string& id = created.info.id;
  if (const auto refusal = lease_session(context_, id, owner, target)) {  // the model goes
    if (sequence.is_stored) {
      stored_.end(owner, id);
    } else {
      store.remove(id, owner);
    }
    return store_refusal(refusal, store.options(), id, owner);
  }
  sequence.session_id = id;
  if (sequence.is_stored) {
    if (before) names_.forget(sequence, *before);
    return grpc::Status::OK;
  }
  // The later one counts if two starts come at once.
  const auto other = names_.put(sequence, id);
  if (other) store.remove_when_idle(*other, owner);
  return grpc::Status::OK;
}

void ClientSequences::end(const ClientSequence& sequence) noexcept {
  if (sequence.session_id.empty()) return;
  if (sequence.is_stored) return stored_.end(sequence.owner, sequence.session_id);
  context_.sessions.remove_when_idle(sequence.session_id, sequence.owner);
  names_.forget(sequence, sequence.session_id);
}

bool ClientSequences::never_began(const ClientSequence& sequence) const {
  if (!sequence.is_new) return false;
  const auto session = context_.sessions.get(sequence.session_id, sequence.owner);
  return session && !session->busy && session->num_tokens == 0;
}

void ClientSequences::end_if_last(const ClientSequence& sequence, bool ended_well) noexcept {
  if (sequence.session_id.empty()) return;
  try {
    const bool ends = sequence.ends && (ended_well || !sequence.is_stored);
    if (ends || never_began(sequence)) end(sequence);
  } catch (const std::bad_alloc&) {  // then it goes when it has been idle for long enough
  }
}

}  // namespace lintel
