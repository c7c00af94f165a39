// From the named state that a request begins with to the one it means, or the status that says why
// not.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "server/models/served_model.h"
#include "server/sessions/named_states.h"

namespace lintel {

// What a state has to be the same of to be gone on with: weights, attention, weight type.
std::string model_identity(const ServedModel& model);

// NOT_FOUND, also for another owner's, with the same text.
grpc::Status state_not_found(const std::string& name);

// The state of this name, of the caller or public. `model`: that the request names, or empty.
grpc::Status resolve_state(const std::string& name, const Owner& caller, const std::string& model,
                           const NamedStates& states, NamedStates::Shared* state);
// Whether the model can continue it, and with the adapter that the request names (empty: the
// state's).
grpc::Status check_state(const NamedState& state, const ServedModel& model,
                         const std::string& adapter);

}  // namespace lintel
