// From the adapter that a request names to the one it means, or the status that says why not.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "server/models/served_model.h"
#include "server/sessions/lease.h"
#include "server/sessions/session_image.h"

namespace lintel {

// Null and OK for an empty name: the model as it is. NOT_FOUND names those there are.
grpc::Status resolve_adapter(const std::string& name, const ServedModel& model,
                             SharedAdapter* adapter);

// The adapter that an image's state was computed with, of the same weights.
grpc::Status resolve_adapter(const SessionImage& image, const ServedModel& model,
                             SharedAdapter* adapter);

// Whether a request that continues a session may name this adapter: the session's own, or none.
grpc::Status check_session_adapter(const std::string& name, const SessionLease& lease,
                                   const ServedModel& model);

}  // namespace lintel
