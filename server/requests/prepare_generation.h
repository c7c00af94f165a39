// From a Generate request on the wire to one the scheduler takes: model found, fields checked,
// state leased. What both protocols do before they differ in how they answer.
#pragma once

#include <optional>

#include "lintel/v1/generation.pb.h"
#include "server/requests/request_checks.h"
#include "server/requests/service_context.h"

namespace lintel {

struct PreparedGeneration {
  SharedModel model;
  CheckedGenerate checked;
  SessionLease lease;
  bool deadline_is_calls = false;  // the request's deadline is the RPC's, not its time_limit
};

// Not OK: nothing is held. `deadline`: the call's. `model`: in place of the one that the request
// names, where it names no session.
grpc::Status prepare_generation(const ServiceContext& context, const Owner& caller,
                                const v1::GenerateRequest& wire, std::optional<TimePoint> deadline,
                                PreparedGeneration& out, const SharedModel& model = nullptr);

// The call's deadline on the scheduler's clock; none when it is too far to matter.
std::optional<TimePoint> call_deadline(const grpc::CallbackServerContext& call, const Clock& clock);

}  // namespace lintel
