// SPDX-License-Identifier: Apache-2.0
// The one place that makes grpc::Status. Every error carries google.rpc details in the trailer
// grpc-status-details-bin, so that a program can read what a person reads in the message. (But what
// gRPC refuses for us, strangers by their headers, has its code and message only.)
#pragma once

#include <google/protobuf/duration.pb.h>
#include <google/protobuf/timestamp.pb.h>
#include <grpcpp/support/status.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lintel {

// Times as protobuf has them.

// Writes a time to a Timestamp or Duration.
template <typename Wire>
void write_nanoseconds(std::chrono::nanoseconds time, Wire& wire) {
  wire.set_seconds(time.count() / 1'000'000'000);
  wire.set_nanos(static_cast<int>(time.count() % 1'000'000'000));
}

inline void write_duration(std::chrono::nanoseconds duration, google::protobuf::Duration& wire) {
  write_nanoseconds(duration, wire);
}

inline void write_time(std::chrono::system_clock::time_point time,
                       google::protobuf::Timestamp& wire) {
  write_nanoseconds(time.time_since_epoch(), wire);
}

// A field of a request that cannot be served as it is.
struct FieldViolation {
  std::string field;        // path in the request: "sampling.top_p", "given[2].position"
  std::string description;  // the value and the limit
};

// INVALID_ARGUMENT with google.rpc.BadRequest. REQUIRES: violations is not empty. Trailers have to
// stay small: at most 16 violations are listed, long texts are clipped.
grpc::Status invalid_argument(const std::vector<FieldViolation>& violations);
// The same with google.rpc.ErrorInfo: for what a program distinguishes by the reason.
grpc::Status invalid_argument(const std::vector<FieldViolation>& violations, const char* reason);

// The details of a status.
struct StatusDetails {
  std::string reason;                                   // of google.rpc.ErrorInfo; empty: none
  std::vector<FieldViolation> violations;               // of google.rpc.BadRequest
  std::size_t num_violations = 0;                       // also those beyond the 16 that are listed
  std::optional<std::chrono::nanoseconds> retry_after;  // when trying again may help
  std::string resource;      // the type of google.rpc.ResourceInfo: "model"; empty: none
  std::string precondition;  // the type of google.rpc.PreconditionFailure's first; empty: none
};
// Reads the details. grpc::Status has room for them as bytes alone, which are what gRPC sends;
// other protocols, and code that looks at a status, read them here.
StatusDetails read_status_details(const grpc::Status& status);
// "; and 4 fields more that are wrong", for a text with all `violations`; empty: they are all.
std::string more_violations(const StatusDetails& details);

// The same INVALID_ARGUMENT with each field as `renamed` has it, for clients of an API that has
// other names. Any other status as it is.
grpc::Status with_fields(const grpc::Status& status,
                         const std::function<std::string(const std::string&)>& renamed);

// NOT_FOUND with google.rpc.ResourceInfo. type: "model", "session" or "response".
grpc::Status not_found(std::string_view type, std::string_view name, std::string_view message);

// ABORTED with google.rpc.ResourceInfo and RetryInfo: the response is still in progress.
grpc::Status response_running(std::string_view id, std::chrono::milliseconds retry_after);

// ABORTED with google.rpc.ResourceInfo: the session is in use by another call.
grpc::Status session_busy(std::string_view id);
// The same with google.rpc.ErrorInfo SESSION_HELD: in use by a process that may be gone, so that
// asking again helps.
grpc::Status session_held(std::string_view id, std::string_view holder,
                          std::chrono::milliseconds held_for);

// ABORTED with google.rpc.ErrorInfo SESSION_FENCED: in the middle of the call another process took
// the session over, or the store lost its last tokens; a repeat by call_id resumes from what is
// stored.
grpc::Status session_fenced(std::string_view id);

// UNAVAILABLE with google.rpc.ErrorInfo CALL_MOVED: this server ends and has released the call.
// Repeated by its call_id it resumes, at once on another server of the store.
grpc::Status call_moved(std::string_view session_id);

// FAILED_PRECONDITION with google.rpc.PreconditionFailure about `subject`.
grpc::Status failed_precondition(std::string_view type, std::string_view subject,
                                 std::string_view message);

// Details of an error for programs, by name.
using ErrorFacts = std::vector<std::pair<std::string, std::string>>;
// FAILED_PRECONDITION with google.rpc.ErrorInfo: for errors that a program distinguishes by the
// reason.
grpc::Status wrong_state(const char* reason, std::string_view message, const ErrorFacts& facts);

// OUT_OF_RANGE with google.rpc.ErrorInfo: a position of a session that is not from `lowest` to
// `highest`.
grpc::Status out_of_range(std::string_view message, std::int64_t lowest, std::int64_t highest);

// DATA_LOSS with google.rpc.ErrorInfo: bytes that were received or stored are damaged, incomplete
// or too many.
grpc::Status data_loss(const char* reason, std::string_view message);

// RESOURCE_EXHAUSTED and UNAVAILABLE with google.rpc.RetryInfo.
grpc::Status resource_exhausted(std::string_view message, std::chrono::milliseconds retry_after);
grpc::Status unavailable(std::string_view message, std::chrono::milliseconds retry_after);
// The same with google.rpc.ErrorInfo STORE_BROKEN: the session store takes nothing until a restart.
grpc::Status store_broken(std::chrono::milliseconds retry_after);

// RESOURCE_EXHAUSTED with google.rpc.QuotaFailure and RetryInfo: an identity has or uses as much as
// it may. `limit` says how much that is.
grpc::Status quota_exceeded(
    std::string_view identity, std::string_view limit,
    std::chrono::milliseconds retry_after = std::chrono::milliseconds(1000));

// UNAUTHENTICATED and PERMISSION_DENIED with google.rpc.ErrorInfo.
grpc::Status unauthenticated(std::string_view message);
grpc::Status permission_denied(std::string_view message);

// INTERNAL with google.rpc.ResourceInfo of the session or model that failed.
grpc::Status internal_error(std::string_view type, std::string_view name, std::string_view message);

// UNAVAILABLE: the server takes nothing new, or ended what was running.
grpc::Status shutting_down();

grpc::Status cancelled() noexcept;
grpc::Status deadline_exceeded();

// RESOURCE_EXHAUSTED: the machine has no memory for the call. The end of a call must not need
// memory: where there is none for the text either, there is none.
grpc::Status out_of_memory() noexcept;
// The status for the exception that is being handled: out of memory, or INTERNAL, which is logged.
// REQUIRES: called from a handler.
grpc::Status status_of_exception() noexcept;
// The same status; its code alone where there is no memory for the rest.
grpc::Status copy_of(const grpc::Status& status) noexcept;

// "INVALID_ARGUMENT" for grpc::StatusCode::INVALID_ARGUMENT.
const char* code_name(int code);
// "not_found" for grpc::StatusCode::NOT_FOUND: the names of codes in JSON, which are Connect's
// (https://connectrpc.com/docs/protocol#error-codes): CANCELLED is "canceled".
std::string json_code_name(int code);
// "no_chat_template" for "NO_CHAT_TEMPLATE": names in JSON.
std::string in_lower_case(std::string name);

// A client's text for an error message: at most 64 bytes, unprintable ones as '?'.
std::string clip(std::string_view text);

}  // namespace lintel
