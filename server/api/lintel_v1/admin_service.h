// SPDX-License-Identifier: Apache-2.0
// AdminService: an operator's calls to a running server.
#pragma once

#include "lintel/v1/admin.grpc.pb.h"
#include "server/api/handlers.h"
#include "server/api/service_context.h"

namespace lintel {

// Thread-safe.
class AdminService final : public HandlerService {
 public:
  explicit AdminService(const ServiceContext& context);

 private:
  grpc::Status get_log_level(CallScope& scope, const v1::GetLogLevelRequest& wire,
                             v1::LogLevel& response);
  grpc::Status set_log_level(CallScope& scope, const v1::LogLevel& wire, v1::LogLevel& response);
  Task<grpc::Status> load_model(Call call, v1::LoadModelRequest wire, v1::Model& response);
  Task<grpc::Status> unload_model(Call call, v1::UnloadModelRequest wire,
                                  v1::UnloadModelResponse& response);
  Task<grpc::Status> load_adapter(Call call, v1::LoadAdapterRequest wire, v1::Adapter& response);
  Task<grpc::Status> unload_adapter(Call call, v1::UnloadAdapterRequest wire,
                                    v1::UnloadAdapterResponse& response);
};

}  // namespace lintel
