// AdminService: what an operator does to a running server.
#pragma once

#include "lintel/v1/admin.grpc.pb.h"
#include "server/service_context.h"

namespace lintel {

// Thread-safe.
class AdminService final : public v1::AdminService::CallbackService {
 public:
  explicit AdminService(const ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* GetLogLevel(grpc::CallbackServerContext* call,
                                        const v1::GetLogLevelRequest* request,
                                        v1::LogLevel* response) override;
  grpc::ServerUnaryReactor* SetLogLevel(grpc::CallbackServerContext* call,
                                        const v1::LogLevel* request,
                                        v1::LogLevel* response) override;
  grpc::ServerUnaryReactor* LoadModel(grpc::CallbackServerContext* call,
                                      const v1::LoadModelRequest* request,
                                      v1::Model* response) override;
  grpc::ServerUnaryReactor* UnloadModel(grpc::CallbackServerContext* call,
                                        const v1::UnloadModelRequest* request,
                                        v1::UnloadModelResponse* response) override;

 private:
  const ServiceContext context_;
};

}  // namespace lintel
