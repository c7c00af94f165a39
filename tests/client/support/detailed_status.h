// SPDX-License-Identifier: Apache-2.0
// Statuses as the server sends them, with details.
#pragma once

#include <grpcpp/support/status.h>

#include <chrono>
#include <optional>
#include <string>

namespace lintel::testing {

// A status with google.rpc details: a field violation, a resource, a delay.
grpc::Status detailed_status(grpc::StatusCode code, const std::string& message,
                             const std::string& field = "", const std::string& resource = "",
                             std::optional<std::chrono::milliseconds> retry = std::nullopt,
                             const std::string& description = "makes no sense",
                             const std::string& resource_type = "session");

}  // namespace lintel::testing
