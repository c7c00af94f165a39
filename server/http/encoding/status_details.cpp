// SPDX-License-Identifier: Apache-2.0
#include "server/http/encoding/status_details.h"

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace lintel {

StatusDetails read_status_details(const grpc::Status& status) {
  StatusDetails error;
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return error;
  for (const auto& detail : details.details()) {
    google::rpc::BadRequest bad;
    google::rpc::RetryInfo retry;
    google::rpc::ErrorInfo info;
    google::rpc::ResourceInfo resource;
    if (detail.UnpackTo(&bad)) {
      for (const auto& violation : bad.field_violations()) {
        error.violations.emplace_back(violation.field(), violation.description());
      }
    } else if (detail.UnpackTo(&retry)) {
      error.retry_after = std::chrono::seconds(retry.retry_delay().seconds()) +
                          std::chrono::nanoseconds(retry.retry_delay().nanos());
    } else if (detail.UnpackTo(&info)) {
      error.reason = info.reason();
    } else if (detail.UnpackTo(&resource)) {
      error.resource = resource.resource_type();
    }
  }
  return error;
}

void add_retry_header(const StatusDetails& error, HttpHeaders& headers) {
  if (!error.retry_after) return;
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(*error.retry_after);
  headers.emplace_back("retry-after", std::to_string(seconds.count()));
}

}  // namespace lintel
