// SPDX-License-Identifier: Apache-2.0
// StatusDetails: what a gRPC status says, for errors of other shapes.
#pragma once

#include <grpcpp/support/status.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/http/transport/http_message.h"

namespace lintel {

struct StatusDetails {
  std::string reason;  // of google.rpc.ErrorInfo; empty: there is none
  std::vector<std::pair<std::string, std::string>> violations;  // field, and what is wrong with it
  std::optional<std::chrono::nanoseconds> retry_after;          // when trying again may help
  std::string resource;  // the type of google.rpc.ResourceInfo: "model"; empty: there is none
};

// From the details of google.rpc that the status carries.
StatusDetails read_status_details(const grpc::Status& status);

// Adds retry-after where the status has a time to try again.
void add_retry_header(const StatusDetails& error, HttpHeaders& headers);

}  // namespace lintel
