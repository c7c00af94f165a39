// Models in the Open Inference Protocol: metadata, configuration, statistics.
#pragma once

#include <google/protobuf/map.h>
#include <grpcpp/support/status.h>

#include <string>

#include "inference/grpc_service.pb.h"
#include "server/models/served_model.h"

namespace lintel {

void write_metadata(const ServedModel& model, inference::ModelMetadataResponse& metadata);
void write_config(const ServedModel& model, inference::ModelConfig& config);
void write_statistics(const ServedModel& model, inference::ModelStatistics& wire);

// What a request to load or unload says: the model, by name only, of the one repository.
using RepositoryParameters =
    google::protobuf::Map<std::string, inference::ModelRepositoryParameter>;
grpc::Status check_repository_request(const std::string& repository,
                                      const RepositoryParameters& parameters,
                                      const std::string& model, bool unloads);

}  // namespace lintel
