#include "server/api/outcome_status.h"

#include "server/api/refusals.h"
#include "server/grpc/transport/status.h"

namespace lintel {

grpc::Status stopped_status(const ServedModel& model) {
  return model.retired.load() ? model_unloaded(model.name) : shutting_down();
}

grpc::Status outcome_status(RequestOutcome outcome, const ServedModel& model,
                            const std::string& session_id, bool is_stored) {
  switch (outcome) {
    case RequestOutcome::kDone:
      return grpc::Status::OK;
    case RequestOutcome::kCancelled:
      return cancelled();
    case RequestOutcome::kDeadline:
      return deadline_exceeded();
    case RequestOutcome::kShutdown:
      return stopped_status(model);
    case RequestOutcome::kStoreFull:
      return stored_refusal({SessionError::kStoreFull}, session_id);
    case RequestOutcome::kStoreAway:
      return stored_refusal({SessionError::kStoreAway}, session_id);
    case RequestOutcome::kStoreBroken:
      return stored_refusal({SessionError::kStoreBroken}, session_id);
    case RequestOutcome::kStoreDamaged:
      return stored_refusal({SessionError::kDamaged}, session_id);
    case RequestOutcome::kFenced:
      return stored_refusal({SessionError::kFenced}, session_id);
    case RequestOutcome::kMoved:
      return call_moved(session_id);
    case RequestOutcome::kAdapterEnded:
      return adapter_unloaded(model.name);
    case RequestOutcome::kNonFinite:
      return non_finite(model.name, session_id, is_stored);
    case RequestOutcome::kInternal:
      return call_failed(model.name, session_id, is_stored);
  }
  return grpc::Status::OK;
}

}  // namespace lintel
