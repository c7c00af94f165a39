// Checks of the fields that name a call and its repeats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lintel/v1/generation.pb.h"
#include "server/api/violations.h"
#include "server/sessions/lease.h"
#include "server/sessions/persistence/durable_call.h"

namespace lintel {

// Longest call_id.
inline constexpr std::size_t kMostCallIdBytes = 64;

// `prompt`: where it came in another form than the request's; else null. `lease`: of the session
// that the call continues; none: a one-shot call.
CallTerms check_call_terms(const v1::GenerateRequest& wire, const std::vector<std::int32_t>* prompt,
                           const SessionLease& lease, Violations& violations);
// Of a call on a session that nothing of outlives the process: kPositionMismatch.
SessionRefusal check_expected_position(const CallTerms& terms, std::int64_t num_values);

}  // namespace lintel
