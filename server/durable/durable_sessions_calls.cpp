// DurableSessions: what a call is to a session, and what there was before it.
#include <algorithm>
#include <utility>

#include "server/durable/durable_sessions.h"
#include "server/durable/vault_batch.h"

namespace lintel {
namespace {

// Whether something else is asked for than the call was about that has this name.
bool differs(const CallTerms& terms, const Digest& request, std::uint64_t seed) {
  return terms.request != request || (terms.seed && *terms.seed != seed);
}

}  // namespace

SessionRefusal DurableSessions::open_call(SessionLease& lease, const SharedModel& model,
                                          const CallTerms& terms, OpenedCall& opened) {
  Cold cold;
  if (const SessionRefusal refusal = look_up(lease.session_id(), lease.owner(), cold)) {
    lease.discard();
    return refusal;
  }
  if (cold.row.digest != lease.history()->extent().digest) {
    lease.discard();  // the vault is the truth, and brings it back
    return {SessionError::kStoreAway};
  }
  if (!options_.takes_other_numerics &&
      (other_numerics(cold.row, cold.marks, model->numerics.hex) ||
       (cold.call && cold.call->numerics != model->numerics.hex))) {
    return {SessionError::kNumericsRefused, 0, 0, 0, cold.row.position};
  }
  const auto begin = [&](bool draws) {
    opened.call = std::make_shared<DurableCall>(writer_, model, cold.row, terms, draws);
    lease.keep_with(opened.call);
  };
  const std::optional<StoredCall>& open = cold.call;
  const std::int64_t position = cold.row.position;
  if (open && !terms.id.empty() && open->id == terms.id) {
    if (differs(terms, open->request, open->seed)) return {SessionError::kCallDiffers};
    // What its client has seen may be more than what is stored, and would come out otherwise here.
    if (cold.row.durability != Durability::kToken && open->numerics != model->numerics.hex) {
      return {SessionError::kNumericsChanged, 0, 0, open->start, position};
    }
    begin(/*draws=*/true);
    return run_again(lease, open->start, open->seed, opened);
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
    begin(/*draws=*/true);
    return {};
  }
  if (differs(terms, known->request, known->result.seed)) return {SessionError::kCallDiffers};
  const bool is_last = known + 1 == calls->end() && known->end == position;
  if (is_last && lease.history()->base() <= known->start) {
    begin(/*draws=*/!known->finished);
    const SessionRefusal refusal = run_again(lease, known->start, known->result.seed, opened);
    if (refusal.error != SessionError::kOutOfRange) return refusal;
    // No state leads there any more: it is told, but not run.
    lease.keep_with(nullptr);
    opened = {};
  }
  if (terms.log2_probs) return {SessionError::kNoProbabilities};
  opened.past = past_call(*known, *lease.history(), terms.echo_prompt, terms.from_position);
  if (opened.past) return {};
  return {SessionError::kOutOfRange, 0, 0, lease.history()->base(), position};
}

SessionRefusal DurableSessions::run_again(SessionLease& lease, std::int64_t start,
                                          std::uint64_t seed, OpenedCall& opened) {
  opened.seed = seed;
  opened.values = lease.history()->values(start, lease.history()->position());
  const SessionRefusal refusal = store_.rewind(lease, start);
  if (refusal) return refusal;
  resumed_.fetch_add(1);
  replayed_resumed_.fetch_add(opened.values.size());
  return refusal;
}

}  // namespace lintel
