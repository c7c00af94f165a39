#include "server/admin_service.h"

#include <spdlog/spdlog.h>

#include <stdexcept>

#include "server/logging.h"
#include "server/service_call.h"

namespace lintel {

grpc::ServerUnaryReactor* AdminService::GetLogLevel(grpc::CallbackServerContext* call,
                                                    const v1::GetLogLevelRequest*,
                                                    v1::LogLevel* response) {
  return answer(context_, *call, Method::kGetLogLevel, [&](const Identity&) {
    response->set_level(log_level());
    return grpc::Status::OK;
  });
}

grpc::ServerUnaryReactor* AdminService::SetLogLevel(grpc::CallbackServerContext* call,
                                                    const v1::LogLevel* request,
                                                    v1::LogLevel* response) {
  return answer(context_, *call, Method::kSetLogLevel, [&](const Identity&) -> grpc::Status {
    try {
      set_log_level(request->level());
    } catch (const std::invalid_argument&) {
      return invalid_argument({{"level", "'" + clip(request->level()) +
                                             "' is not trace, debug, info, warning, error, "
                                             "critical or off"}});
    }
    spdlog::info("log level {}", log_level());
    response->set_level(log_level());
    return grpc::Status::OK;
  });
}

}  // namespace lintel
