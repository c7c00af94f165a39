// Calls that failed because no connection to the server came about.
#pragma once

#include <grpcpp/grpcpp.h>

#include <optional>
#include <string>

namespace lintel {

struct ConnectFailure {
  // Why, for people: "Connection refused". One line, without the address.
  std::string reason;
  // What one may try, where the failure looks like TLS on one side alone; else empty.
  std::string hint;
  // The reason is none that connect() gives. gRPC 1.51 now and then fails a first connection so,
  // which succeeds when it is tried again.
  bool odd = false;
};

// Nothing when the status has another cause: then the call may have reached the server.
// `encrypted`: how the call was to be made.
std::optional<ConnectFailure> connect_failure(const grpc::Status& status, bool encrypted);

// Whether gRPC says so of a connection that broke under a call; servers have other words.
bool is_lost_connection(const grpc::Status& status);

}  // namespace lintel
