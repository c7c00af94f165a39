#include "server/kserve/sequences.h"

#include "server/call/status.h"
#include "server/requests/request_checks.h"
#include "server/stream/refusals.h"

namespace lintel {

grpc::Status InferSequences::find(const Owner& owner, const ServedModel& model,
                                  const InferRequest& request, InferSequence& sequence) {
  if (request.sequence_id.empty()) return grpc::Status::OK;
  sequence = {
      owner, model.name, request.sequence_id, "", request.sequence_start, request.sequence_end};
  const auto known = names_.find(owner, model.name, request.sequence_id);
  if (!request.sequence_start) {
    if (!known || !context_.store.get(*known, owner)) {
      const bool unloaded =
          known && context_.store.absence(*known, owner) == SessionStore::Error::kUnloaded;
      return not_found("sequence", request.sequence_id,
                       unloaded ? "no such sequence: it ended when its model was unloaded or "
                                  "another version took its place"
                                : "no such sequence: not started, ended, or evicted when idle");
    }
    sequence.session_id = *known;
    return grpc::Status::OK;
  }
  Violations violations;
  check_session_length(request.max_tokens, "parameters[max_tokens]", model.transformer->config(),
                       violations);
  if (!violations.empty()) return violations.status();
  // A sequence that starts again forgets what it was.
  if (known && context_.store.remove(*known, owner) == SessionStore::Error::kBusy) {
    return session_busy(request.sequence_id);
  }
  const SessionStore::CreateResult created =
      context_.store.create(model.name, model.transformer, request.max_tokens, owner);
  if (created.error == SessionStore::Error::kNeedsMaxTokens) {
    return invalid_argument(
        {{"parameters[max_tokens]", "is needed: the state of this model grows with the sequence"}});
  }
  if (created.error != SessionStore::Error::kNone) {
    return store_refusal(created.error, created.bytes_needed, created.bytes_free,
                         context_.store.options(), /*session_id=*/"", owner);
  }
  sequence.session_id = created.info.id;
  // Two starts at once: the later one counts.
  const auto before = names_.put(owner, model.name, request.sequence_id, created.info.id);
  if (before) context_.store.remove_when_idle(*before, owner);
  return grpc::Status::OK;
}

void InferSequences::end(const InferSequence& sequence) noexcept {
  context_.store.remove_when_idle(sequence.session_id, sequence.owner);
  names_.forget(sequence.owner, sequence.model, sequence.name, sequence.session_id);
}

bool InferSequences::never_began(const InferSequence& sequence) const {
  if (!sequence.is_new) return false;
  const auto session = context_.store.get(sequence.session_id, sequence.owner);
  return session && !session->busy && session->num_values == 0;
}

void InferSequences::end_if_last(const InferSequence& sequence) noexcept {
  if (sequence.session_id.empty()) return;
  try {
    if (sequence.ends || never_began(sequence)) end(sequence);
  } catch (const std::bad_alloc&) {  // then it goes when it has been idle for long enough
  }
}

}  // namespace lintel
