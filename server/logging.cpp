#include "server/logging.h"

#include <grpc/support/log.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace lintel {
namespace {

// {"time":"2024-01-31T12:00:00.000Z","level":"info","message":"..."}
class JsonFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    std::string_view level(spdlog::level::to_string_view(message.level).data(),
                           spdlog::level::to_string_view(message.level).size());
    const auto micros =
        std::chrono::duration_cast<std::chrono::microseconds>(message.time.time_since_epoch())
            .count();
    const std::time_t seconds = static_cast<std::time_t>(micros / 1'000'000);
    std::tm utc{};
    gmtime_r(&seconds, &utc);
    char time[32];
    std::strftime(time, sizeof(time), "%Y-%m-%dT%H:%M:%S", &utc);
    nlohmann::ordered_json line;
    line["time"] = fmt::format("{}.{:06}Z", time, micros % 1'000'000);
    line["level"] = level;
    line["message"] = std::string_view(message.payload.data(), message.payload.size());
    // Text from outside may not be UTF-8; the line has to be JSON all the same.
    const std::string text =
        line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>();
  }
};

void log_from_grpc(gpr_log_func_args* args) {
  switch (args->severity) {
    case GPR_LOG_SEVERITY_DEBUG:
      spdlog::debug("grpc: {}", args->message);
      break;
    case GPR_LOG_SEVERITY_INFO:
      spdlog::debug("grpc: {}", args->message);
      break;
    case GPR_LOG_SEVERITY_ERROR:
      spdlog::warn("grpc: {}", args->message);
      break;
  }
}

}  // namespace

void set_up_logging(const ServerOptions::Logging& options) {
  auto logger =
      std::make_shared<spdlog::logger>("lintel", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(spdlog::level::from_str(options.level));
  if (options.json) {
    logger->set_formatter(std::make_unique<JsonFormatter>());
  } else {
    logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
  }
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
  gpr_set_log_function(&log_from_grpc);
}

}  // namespace lintel
