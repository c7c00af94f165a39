// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/renamed_fields.h"

#include <vector>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/rpc/status.h"

namespace lintel {

grpc::Status with_field_names(const grpc::Status& status,
                              const std::function<std::string(const std::string&)>& name_of) {
  google::rpc::Status details;
  if (status.ok() || !details.ParseFromString(status.error_details())) return status;
  std::vector<FieldViolation> violations;
  google::rpc::ErrorInfo info;
  for (const auto& detail : details.details()) {
    google::rpc::BadRequest bad;
    if (detail.UnpackTo(&bad)) {
      for (const auto& violation : bad.field_violations()) {
        violations.push_back({name_of(violation.field()), violation.description()});
      }
    } else {
      detail.UnpackTo(&info);
    }
  }
  if (violations.empty()) return status;
  if (info.reason().empty()) return invalid_argument(violations);
  return invalid_argument(violations, info.reason().c_str());
}

}  // namespace lintel
