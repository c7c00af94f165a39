// From the name and version in a request to the model they mean, or the status that says why there
// is none.
#pragma once

#include <grpcpp/support/status.h>

#include <cstdint>
#include <optional>
#include <string>

#include "server/models/model_registry.h"

namespace lintel {

// The model a call means, by its highest version or that one. Empty `name` stands for the only
// model loaded. On failure null and `status`, which names `field` of the request.
SharedModel resolve_model(const std::string& name, const ModelRegistry& models,
                          grpc::Status* status, const std::string& field = "model",
                          std::optional<std::int64_t> version = std::nullopt);

// The model that a request of the other protocol names, by its version or the highest, in the
// fields PREFIXname and PREFIXversion.
SharedModel resolve_version(const std::string& name, const std::string& version,
                            const std::string& prefix, const ModelRegistry& models,
                            grpc::Status* status);

// A name or version that an operator gives; `field` of the request is named when it is none.
grpc::Status check_model_name(const std::string& name, const std::string& field);
// The same of anything that is named like a model: `what`, "an adapter".
grpc::Status check_name(const std::string& name, const std::string& what, const std::string& field);
grpc::Status read_model_version(const std::string& text, const std::string& field,
                                std::optional<std::int64_t>* version);  // empty: nullopt

}  // namespace lintel
