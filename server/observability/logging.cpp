// SPDX-License-Identifier: Apache-2.0
#include "server/observability/logging.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>

#include "model/core/errors.h"

namespace lintel {
namespace {

// The sink is called by the thread that logs, so its fields are at hand when the line is written.
thread_local const LogFields* current_fields = nullptr;

// {"time":"2024-01-31T12:00:00.000000Z","level":"info","message":"...", fields...}
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
    if (current_fields != nullptr) {
      for (const auto& [key, value] : current_fields->all()) {
        std::visit([&line, key = key](const auto& v) { line[key] = v; }, value);
      }
    }
    // Text from outside may not be UTF-8; the line has to be JSON all the same.
    const std::string text =
        line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>();
  }
};

// The message, on one line.
class MessageFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    const std::string text = one_line({message.payload.data(), message.payload.size()});
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<spdlog::custom_flag_formatter> clone() const override {
    return std::make_unique<MessageFlag>();
  }
};

// The fields at the end of a line of text.
class FieldsFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg&, const std::tm&, spdlog::memory_buf_t& out) override {
    if (current_fields == nullptr) return;
    for (const auto& [key, value] : current_fields->all()) {
      const std::string text = one_line(
          std::visit([key = key](const auto& v) { return fmt::format(" {}={}", key, v); }, value));
      out.append(text.data(), text.data() + text.size());
    }
  }
  std::unique_ptr<spdlog::custom_flag_formatter> clone() const override {
    return std::make_unique<FieldsFlag>();
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

// protobuf logs each request that does not parse; the client receives an error, too.
void log_from_protobuf(google::protobuf::LogLevel, const char*, int, const std::string& message) {
  spdlog::debug("protobuf: {}", message);
}

}  // namespace

void set_up_logging(const LogOptions& options) {
  auto logger =
      std::make_shared<spdlog::logger>("lintel", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(spdlog::level::from_str(options.level));
  if (options.json) {
    logger->set_formatter(std::make_unique<JsonFormatter>());
  } else {
    auto formatter = std::make_unique<spdlog::pattern_formatter>();
    formatter->add_flag<MessageFlag>('&').add_flag<FieldsFlag>('*').set_pattern(
        "%Y-%m-%d %H:%M:%S.%e %^%l%$ %&%*");
    logger->set_formatter(std::move(formatter));
  }
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
  gpr_set_log_function(&log_from_grpc);
  google::protobuf::SetLogHandler(&log_from_protobuf);
}

std::string last_words(const LogOptions& options, std::string_view message) {
  if (!options.json) return "lintel-server: " + std::string(message) + "\n";
  spdlog::memory_buf_t line;
  JsonFormatter().format(
      spdlog::details::log_msg("lintel", spdlog::level::critical,
                               spdlog::string_view_t(message.data(), message.size())),
      line);
  return std::string(line.data(), line.size());
}

void set_log_level(const std::string& level) {
  const auto parsed = spdlog::level::from_str(level);
  // from_str takes unknown names for "off".
  if (parsed == spdlog::level::off && level != "off") {
    throw std::invalid_argument("'" + level + "' is not a log level");
  }
  spdlog::set_level(parsed);
}

std::string log_level() {
  const auto name = spdlog::level::to_string_view(spdlog::get_level());
  return std::string(name.data(), name.size());
}

LogScope::LogScope(const LogFields& fields) : outer_(current_fields) { current_fields = &fields; }

LogScope::~LogScope() { current_fields = outer_; }

namespace {

constexpr std::size_t kMaxIdBytes = 128;

bool is_id_character(char c) { return c > ' ' && c <= '~' && c != '"' && c != '\\'; }

bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_zero(std::string_view text) {
  return text.find_first_not_of('0') == std::string_view::npos;
}

// Ids have to differ, not to be secret.
std::uint64_t random_bits() {
  static thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return generator();
}

}  // namespace

std::string request_id_from(std::string_view given) {
  if (!given.empty() && given.size() <= kMaxIdBytes &&
      std::all_of(given.begin(), given.end(), &is_id_character)) {
    return std::string(given);
  }
  char id[33];
  std::snprintf(id, sizeof(id), "%016llx%016llx", static_cast<unsigned long long>(random_bits()),
                static_cast<unsigned long long>(random_bits()));
  return id;
}

TraceParent parse_traceparent(std::string_view text) {
  // version "-" trace-id "-" parent-id "-" flags; later versions may continue after another "-".
  constexpr std::size_t kLength = 55;
  if (text.size() < kLength || text[2] != '-' || text[35] != '-' || text[52] != '-') return {};
  const std::string_view version = text.substr(0, 2);
  const std::string_view trace = text.substr(3, 32);
  const std::string_view parent = text.substr(36, 16);
  if (!is_hex(version) || !is_hex(trace) || !is_hex(parent) || !is_hex(text.substr(53, 2))) {
    return {};
  }
  if (version == "ff" || is_zero(trace) || is_zero(parent)) return {};
  if (text.size() > kLength && (version == "00" || text[kLength] != '-')) return {};
  return {std::string(trace), std::string(parent)};
}

}  // namespace lintel
