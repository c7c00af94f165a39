// SPDX-License-Identifier: Apache-2.0
// Messages from JSON, in both of the forms that requests have.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/status.h>

#include <string>

#include "server/http/connect/rpc_json.h"

namespace lintel {

template <auto to_bytes>
grpc::Status read_message(const std::string& json, google::protobuf::Message& message) {
  std::string bytes;
  grpc::Status read = to_bytes(json, message.GetDescriptor(), /*budget=*/nullptr, bytes);
  if (!read.ok() || message.ParseFromString(bytes)) return read;
  return {grpc::INVALID_ARGUMENT, "is no " + message.GetDescriptor()->full_name()};
}

inline grpc::Status read_json(const std::string& json, google::protobuf::Message& message) {
  return read_message<json_to_bytes>(json, message);
}
inline grpc::Status read_plain_json(const std::string& json, google::protobuf::Message& message) {
  return read_message<plain_json_to_bytes>(json, message);
}

}  // namespace lintel
