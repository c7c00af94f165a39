// SPDX-License-Identifier: Apache-2.0
// Messages from JSON, in both of the forms that requests have, without a budget.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/status.h>

#include <string>

#include "server/http/connect/rpc_json.h"

namespace lintel {

inline grpc::Status read_json(const std::string& json, google::protobuf::Message& message) {
  return read_json(json, /*budget=*/nullptr, message);
}
inline grpc::Status read_plain_json(const std::string& json, google::protobuf::Message& message) {
  return read_plain_json(json, /*budget=*/nullptr, message);
}

}  // namespace lintel
