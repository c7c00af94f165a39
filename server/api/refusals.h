// SPDX-License-Identifier: Apache-2.0
// Statuses of calls that the store, the scheduler or a model refuses or ends.
#pragma once

#include <grpcpp/support/status.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "server/engine/scheduler.h"
#include "server/engine/token_sink.h"
#include "server/models/model_manager.h"
#include "server/models/model_registry.h"
#include "server/sessions/session_manager.h"

namespace lintel {

// The status of a call from the outcome of its request.

// The status of calls that are ended, or find no place, when the model's scheduler stops.
grpc::Status stopped_status(const ServedModel& model);

// The status of a call whose request ended so; session_id is empty where it had no session.
// is_stored: the session is in a store, too, which has it as it was.
grpc::Status outcome_status(RequestOutcome outcome, const ServedModel& model,
                            const std::string& session_id = "", bool is_stored = false);

// INTERNAL: the model produced NaN or infinity, and the session (empty: a one-shot call) is gone.
grpc::Status non_finite(std::string_view model, std::string_view session_id, bool is_stored);

// INTERNAL: the server failed, for want of memory most likely; a session it held is gone.
grpc::Status call_failed(std::string_view model, std::string_view session_id, bool is_stored);

// The store's refusals; OK where it is none.
grpc::Status store_refusal(const SessionRefusal& refusal, const SessionManager::Options& store,
                           std::string_view session_id, std::string_view owner);
// The refusals of sessions in a store: kModelMismatch to kStoreBroken.
grpc::Status stored_refusal(const SessionRefusal& refusal, std::string_view session_id);
// The status of a model or adapter that is not loaded or unloaded; OK: it is.
grpc::Status load_status(const std::optional<LoadRefusal>& refusal);
// The status of a request that the model's scheduler did not take; OK: it did.
grpc::Status submit_status(Scheduler::SubmitError error, const ServedModel& model);
// UNAVAILABLE: the model went, and what still ran on it with it.
grpc::Status model_unloaded(std::string_view model);
// The same of the adapter that the call ran with.
grpc::Status adapter_unloaded(std::string_view model);

}  // namespace lintel
