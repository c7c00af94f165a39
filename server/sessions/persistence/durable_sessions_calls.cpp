// DurableSessions: what a call is to a session, and what there was before it.
#include <algorithm>
#include <span>
#include <utility>

#include "model/core/tensor.h"
#include "server/engine/request.h"
#include "server/sessions/persistence/durable_sessions.h"
#include "server/sessions/persistence/vault_batch.h"

namespace lintel {
namespace {

// Whether something else is asked for than the call was about that has this name.
bool differs(const CallTerms& terms, const Digest& request, std::uint64_t seed) {
  return terms.request != request || (terms.seed && *terms.seed != seed);
}

// Position of its first value after the prompt.
std::int64_t first_new_of(const StoredCall& call) {
  const auto behind = std::ranges::find_if(
      call.marks, [](const HistoryMark& mark) { return mark.source != ValueSource::kPrompt; });
  return behind == call.marks.end() ? call.start : behind->position;
}

// The first of the values [start, end) that a repeat needs: one to deliver again, or one from
// `least` on.
std::int64_t needed_from(const CallTerms& terms, std::int64_t start, std::int64_t first_new,
                         std::int64_t least, std::int64_t end) {
  const std::int64_t shown = std::max(terms.from_position, terms.echo_prompt ? start : first_new);
  return std::clamp(std::min(shown, least), start, end);
}

}  // namespace

SessionRefusal DurableSessions::open_call(SessionLease& lease, const SharedModel& model,
                                          const CallTerms& terms, OpenedCall& opened) {
  const std::string& id = lease.session_id();
  // Most calls are new to a session that stands where it did.
  SessionVault::Opened found =
      terms.expected_position
          ? vault_.find(id, lease.owner())
          : vault_.open_at(id, lease.owner(), lease.history()->extent().digest, terms.id);
  Cold cold;
  SessionRefusal refusal = look_at(std::move(found), cold);
  if (refusal) {
    lease.discard();
  } else {
    refusal = open_call(lease, model, terms, cold, opened);
  }
  // The running call has the claim, if there is one.
  if (cold.lease != nullptr && opened.call == nullptr) {
    lost_claims_.give_back(vault_, cold.row, cold.claim);
  }
  return refusal;
}

SessionRefusal DurableSessions::open_call(SessionLease& lease, const SharedModel& model,
                                          const CallTerms& terms, Cold& cold, OpenedCall& opened) {
  if (cold.held) return cold.held;
  if (cold.row.digest != lease.history()->extent().digest) {
    lease.discard();  // the vault is the truth, and brings it back
    return {SessionError::kStale};
  }
  if (!options_.takes_other_numerics &&
      (other_numerics(cold.row, cold.marks, model->numerics.hex) ||
       (cold.call && cold.call->numerics != model->numerics.hex))) {
    return {SessionError::kNumericsRefused, 0, 0, 0, cold.row.position};
  }
  const auto begin = [&](std::int64_t start, bool draws) {
    opened.start = start;
    opened.call = std::make_shared<DurableCall>(
        writer_, model,
        SessionVault::Opened{.row = cold.row, .claim = cold.claim, .lease = cold.lease}, terms,
        start, draws);
    lease.keep_with(opened.call);
  };
  // Where the last of a call's values may have stopped it, or what they are the beginning of, that
  // is to be found once more.
  const bool is_bytes = model->transformer->config().modality == ModalityKind::kBytes;
  const std::int64_t stops = is_bytes ? kMaxStopStringBytes : 1;
  const std::optional<StoredCall>& open = cold.call;
  const std::int64_t position = cold.row.position;
  if (open && !terms.id.empty() && open->id == terms.id) {
    if (differs(terms, open->request, open->seed)) return {SessionError::kCallDiffers};
    // What its client has seen may be more than what is stored, and would come out otherwise here.
    if (cold.row.durability != Durability::kToken && open->numerics != model->numerics.hex) {
      return {SessionError::kNumericsChanged, 0, 0, open->start, position};
    }
    begin(open->start, /*draws=*/true);
    const std::int64_t at =
        needed_from(terms, open->start, first_new_of(*open), position - stops, position);
    return run_again(lease, cold.row, open->start, at, open->seed, opened);
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
    CallTerms fresh = terms;
    fresh.expected_position.reset();
    return open_call(lease, model, fresh, opened);
  }
  const auto calls = decode_last_calls(cold.row.last_calls);
  if (!calls) return {SessionError::kDamaged};
  const auto known =
      terms.id.empty() ? calls->end() : std::ranges::find(*calls, terms.id, &LastCall::id);
  if (known == calls->end()) {
    if (terms.expected_position && *terms.expected_position != position) {
      return {SessionError::kPositionMismatch, 0, 0, -1, position, *terms.expected_position};
    }
    // Its client has values of it, and others have come since: it was forgotten, and is not new.
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
    // One that was cut off has met no stop; what may be the beginning of one is in bytes alone.
    const std::int64_t from = position - (known->finished || is_bytes ? stops : 0);
    const std::int64_t at = needed_from(terms, known->start, first_new_of(*known), from, position);
    const SessionRefusal refusal =
        run_again(lease, cold.row, known->start, at, known->result.seed, opened);
    if (refusal.error != SessionError::kOutOfRange) return refusal;
    // No state leads there any more: it is replayed from the store, but not run.
    lease.keep_with(nullptr);
    opened = {};
  }
  if (terms.log2_probs) return {SessionError::kNoProbabilities};
  std::optional<Digest> digest = lease.history()->digest_at(known->end);
  opened.past = PastCall::of(*this, cold.row, cold.marks, *known, digest, terms);
  if (opened.past != nullptr) return {};
  return {SessionError::kOutOfRange, 0, 0, cold.row.base, position};
}

bool DurableSessions::began_with(const std::string& id, const Owner& owner,
                                 const std::string& call_id) {
  Cold cold;
  if (call_id.empty() || look_up(id, owner, cold)) return false;
  if (cold.call && cold.call->start == 0) return cold.call->id == call_id;
  const auto calls = decode_last_calls(cold.row.last_calls);
  return calls && std::ranges::any_of(*calls, [&](const LastCall& call) {
           return call.start == 0 && call.id == call_id;
         });
}

SessionRefusal DurableSessions::run_again(SessionLease& lease, const SessionVault::Row& row,
                                          std::int64_t start, std::int64_t at, std::uint64_t seed,
                                          OpenedCall& opened) {
  opened.seed = seed;
  opened.start = start;
  opened.values = lease.history()->values(at, row.position);
  if (const SessionRefusal refusal = go_back(lease, row, at, std::nullopt)) return refusal;
  resumed_.fetch_add(1);
  replayed_resumed_.fetch_add(
      static_cast<std::uint64_t>(row.position - lease.sequence().next_position()));
  return {};
}

SessionRefusal DurableSessions::go_back(SessionLease& lease, const SessionVault::Row& row,
                                        std::int64_t position,
                                        const std::optional<Digest>& expected) {
  // The session's own state, where it is one of those, is nearer than what was stored before it.
  const std::int64_t own = lease.sequence().next_position();
  const std::int64_t least = std::max(lease.history()->base(), own <= position ? own + 1 : 1);
  std::vector<std::byte> state;
  SessionStore::StoredState stored;
  stored.num_values = read_state(row, least, position, state);
  stored.bytes = state;
  const SessionRefusal refusal = store_.rewind(lease, position, expected, &stored);
  zero_memory(std::span(state));
  return refusal;
}

VaultOutcome DurableSessions::read_past(const PastCall& past, std::int64_t first,
                                        std::span<std::int32_t> values) {
  const VaultOutcome read = vault_.read_values(past.session(), first, values);
  if (read != VaultOutcome::kDone) return read;
  // They are that call's where it is there still: what takes back a call's values forgets the call.
  const SessionVault::Opened found = vault_.find(past.session(), past.owner());
  if (found.outcome != VaultOutcome::kDone) return found.outcome;
  const auto calls = decode_last_calls(found.row.last_calls);
  const bool is_there = calls && std::ranges::any_of(*calls, [&](const LastCall& call) {
                          return encode_last_calls({call}) == encode_last_calls({past.call()});
                        });
  return is_there ? VaultOutcome::kDone : VaultOutcome::kNotFound;
}

}  // namespace lintel
