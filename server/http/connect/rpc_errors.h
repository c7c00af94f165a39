// Errors of calls, as each protocol's clients read them.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "server/http/connect/rpc_format.h"
#include "server/http/transport/http_message.h"

namespace lintel {

// Connect's JSON of an error: {"code": "not_found", "message": ..., "details": [...]}
// (https://connectrpc.com/docs/protocol#error-end-stream).
std::string connect_error_json(const grpc::Status& status);

// What ends a gRPC-Web answer: grpc-status, grpc-message and grpc-status-details-bin, a line each.
HttpHeaders grpc_trailers(const grpc::Status& status);

// retry-after, in seconds, where the status says when to try again.
HttpHeaders retry_after(const grpc::Status& status);

// An answer that is an error and nothing else, in the shape that a request of this format expects.
HttpAnswer rpc_refusal(const RpcFormat& format, int http_status, const grpc::Status& status);

}  // namespace lintel
