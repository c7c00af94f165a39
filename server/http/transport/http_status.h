// HTTP status codes of gRPC's codes.
#pragma once

#include <string>

namespace lintel {

// The HTTP status of a gRPC code, as the Connect protocol has it
// (https://connectrpc.com/docs/protocol#error-codes).
int http_status_of(int grpc_code);
// "not_found" for NOT_FOUND: the code's name in Connect's JSON.
std::string connect_code_name(int grpc_code);
// "Not Found" for 404.
const char* http_reason(int http_status);

}  // namespace lintel
