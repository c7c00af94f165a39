// SPDX-License-Identifier: Apache-2.0
// Turns the parameters of a request into one the scheduler takes: state leased, model found, fields
// checked. Shared by all protocols, which differ only in how they answer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/api/lookup.h"
#include "server/api/params/generate_params.h"
#include "server/api/request_checks.h"
#include "server/api/service_context.h"
#include "server/core/request_memory.h"
#include "server/sessions/persistence/replayed_response.h"

namespace lintel {

class PersistentRequest;

// The objects that a request runs on.
struct GenerationTarget {
  SharedModel model;
  SessionLease lease;           // of the session that it continues; none: a one-shot call
  NamedStates::Shared initial;  // that a one-shot call begins with; null: nothing was seen yet
  AbsentModel absent = {};      // that has to be loaded before there is one
};

// A session's lease first, then the model that it knows: what is leased is neither closed nor
// evicted. Where there is a store it waits. The registry is asked unless `target` has that model
// already.
// kUnloaded also where the model takes no more requests and closes its sessions next. Refused where
// the session's model is absent.
SessionRefusal lease_session(const ServiceContext& context, const std::string& session_id,
                             const Owner& caller, GenerationTarget& target);

// Finds the session that `params` name, whose model has to be the one that they name, or that model
// and the state that a one-shot call begins with. Nothing is held where the model is absent.
grpc::Status find_target(const ServiceContext& context, const Owner& caller,
                         const api::GenerateParams& params, GenerationTarget& target);

struct PreparedGeneration {
  // The charge for what the request holds until it is over: made by the caller, and the last member
  // to be destroyed.
  RequestMemory::Charge memory;
  SharedModel model;
  CheckedGenerate checked;
  SessionLease lease;
  bool deadline_is_calls = false;  // the request's deadline is the RPC's, not its time_limit
  // The call on a session that outlives the process; null: it does not.
  std::shared_ptr<PersistentRequest> durable;
  // The answer that the call had when it was run; then there is no lease, and nothing is to run.
  std::shared_ptr<ReplayedResponse> past;
};

// A request on `target`, whose prompt is that of `params` or another; the session and model that
// `params` name are not looked at. Not OK: nothing is held. `deadline`: the call's. With a store it
// waits.
grpc::Status prepare_generation(const ServiceContext& context, const Owner& caller,
                                const api::GenerateParams& params, const api::Values& prompt,
                                std::optional<TimePoint> deadline, GenerationTarget target,
                                PreparedGeneration& out);

// Charges the answer, where the call's transport keeps it until it is whole. Not OK: as
// request_memory_refusal() about `field`. Before the request is submitted.
grpc::Status charge_kept_answer(RpcCall& call, const CallScope& scope,
                                const PreparedGeneration& prepared, const char* field);

// The call's deadline on the scheduler's clock; none when it is too far to matter.
std::optional<TimePoint> call_deadline(const RpcCall& call, const Clock& clock);

}  // namespace lintel
