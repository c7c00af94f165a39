// Work that may have to wait for the session store.
#pragma once

#include <grpcpp/support/status.h>

#include <functional>

#include "server/api/service_context.h"
#include "server/grpc/transport/call_scope.h"

namespace lintel {

// Has a thread of the store run `work`, whose lines of the log are the call's. RESOURCE_EXHAUSTED:
// too much waits, and it is not run. REQUIRES: there is a store.
grpc::Status run_by_store(const ServiceContext& context, const LogFields& log_fields,
                          std::function<void()> work);

// Of a session that was just made: what of it is to outlive the server does when this says OK;
// else it is gone again. Waits where there is a store.
grpc::Status keep_session(const ServiceContext& context, const Owner& owner, SessionInfo& info);

}  // namespace lintel
