// SPDX-License-Identifier: Apache-2.0
// Logging: spdlog to standard error, as text or as one JSON object a line. Standard output is not
// touched. Prompts and generated texts are never logged at info and above.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace lintel {

struct LogOptions {
  std::string level = "info";
  bool json = false;
};

// Sets up spdlog's default logger and sends gRPC's own messages there. Called once, by main, before
// threads are started.
void set_up_logging(const LogOptions& options);

// The line on standard error with the reason why the program ends, in the log's format and at any
// log level. Needs no set_up_logging.
std::string last_words(const LogOptions& options, std::string_view message);

// Sets the level at run time: trace, debug, info, warning, error, critical or off. Thread-safe.
// Throws std::invalid_argument for another name.
void set_log_level(const std::string& level);
std::string log_level();

// Fields of a line after its message: keys of the JSON object, "key=value" in text.
class LogFields {
 public:
  using Value = std::variant<std::string, std::int64_t, double>;
  // `key` outlives the fields.
  void add(const char* key, std::string_view value) {
    fields_.emplace_back(key, std::string(value));
  }
  void add(const char* key, std::int64_t value) { fields_.emplace_back(key, value); }
  void add(const char* key, double value) { fields_.emplace_back(key, value); }
  const std::vector<std::pair<const char*, Value>>& all() const { return fields_; }

 private:
  std::vector<std::pair<const char*, Value>> fields_;
};

// Adds the fields to every line that its thread logs during its lifetime. `fields` outlives it.
class LogScope {
 public:
  explicit LogScope(const LogFields& fields);
  ~LogScope();
  LogScope(const LogScope&) = delete;
  LogScope& operator=(const LogScope&) = delete;

 private:
  const LogFields* const outer_;
};

// The ids of a call in the log: its request id and its trace.

// The client's id if it is 1 to 128 visible ASCII characters without quotes and backslashes, which
// no log reader can mistake for something else; else a new one of 128 random bits.
std::string request_id_from(std::string_view given);

// A W3C traceparent: "00-<trace id>-<parent id>-<flags>". Empty if there is none or an invalid one,
// which the standard requires to ignore.
struct TraceParent {
  std::string trace_id;   // 32 hexadecimal digits
  std::string parent_id;  // 16: the caller's span
};
TraceParent parse_traceparent(std::string_view text);

}  // namespace lintel
