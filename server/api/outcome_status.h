// The status of a call from the outcome of its request.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "server/engine/token_sink.h"
#include "server/models/served_model.h"

namespace lintel {

// Why calls that run on the model are ended, or find no place, when its scheduler stops.
grpc::Status stopped_status(const ServedModel& model);

// The status of a call whose request ended so; session_id is empty where it had no session.
// is_stored: the session is in a store, too, which has it as it was.
grpc::Status outcome_status(RequestOutcome outcome, const ServedModel& model,
                            const std::string& session_id = "", bool is_stored = false);

}  // namespace lintel
