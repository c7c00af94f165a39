// SPDX-License-Identifier: Apache-2.0
// Errors of fields with the names that an API has for them.
#pragma once

#include <grpcpp/support/status.h>

#include <functional>
#include <string>

namespace lintel {

// A status whose violations have the fields' names of `name_of`, in its message, too. One without
// violations stays.
grpc::Status with_field_names(const grpc::Status& status,
                              const std::function<std::string(const std::string&)>& name_of);

}  // namespace lintel
