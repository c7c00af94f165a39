// SPDX-License-Identifier: Apache-2.0
#include "tests/client/support/detailed_status.h"

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace lintel::testing {

grpc::Status detailed_status(grpc::StatusCode code, const std::string& message,
                             const std::string& field, const std::string& resource,
                             std::optional<std::chrono::milliseconds> retry,
                             const std::string& description, const std::string& resource_type) {
  google::rpc::Status rich;
  rich.set_code(code);
  rich.set_message(message);
  if (!field.empty()) {
    google::rpc::BadRequest bad_request;
    bad_request.add_field_violations()->set_field(field);
    bad_request.mutable_field_violations(0)->set_description(description);
    rich.add_details()->PackFrom(bad_request);
  }
  if (!resource.empty()) {
    google::rpc::ResourceInfo info;
    info.set_resource_type(resource_type);
    info.set_resource_name(resource);
    rich.add_details()->PackFrom(info);
  }
  if (retry) {
    google::rpc::RetryInfo info;
    info.mutable_retry_delay()->set_nanos(static_cast<int>(retry->count()) * 1'000'000);
    rich.add_details()->PackFrom(info);
  }
  return {code, message, rich.SerializeAsString()};
}

}  // namespace lintel::testing
