// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/status.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cassert>
#include <charconv>
#include <exception>
#include <new>
#include <utility>

#include "google/rpc/code.pb.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "model/core/errors.h"

namespace lintel {
namespace {

// The longest pause that RetryInfo asks of a client that waits for a held session.
constexpr std::chrono::milliseconds kMostHeldPause{1000};

// A peer accepts about 8 KB of trailers; the list has to stay well below.
constexpr std::size_t kMaxViolations = 16;
constexpr std::size_t kMaxTextBytes = 200;
constexpr std::size_t kMaxNameBytes = 64;

// Delays after which trying again may help.
constexpr std::chrono::milliseconds kMemoryRetry{1000};
constexpr std::chrono::milliseconds kDrainRetry{5000};

std::string clipped(std::string_view text, std::size_t max_bytes) {
  std::string out(text.substr(0, max_bytes));
  for (char& c : out) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  if (text.size() > max_bytes) out += "...";
  return out;
}

template <typename... Details>
grpc::Status with_detail(grpc::StatusCode code, const std::string& text,
                         const Details&... details) {
  const std::string message = one_line(text);  // it may quote the request or a file
  google::rpc::Status status;
  status.set_code(code);
  status.set_message(message);
  (status.add_details()->PackFrom(details), ...);
  return grpc::Status(code, message, status.SerializeAsString());
}

google::rpc::RetryInfo retry_info(std::chrono::milliseconds retry_after) {
  google::rpc::RetryInfo retry;
  write_duration(retry_after, *retry.mutable_retry_delay());
  return retry;
}

grpc::Status with_retry(grpc::StatusCode code, std::string_view message,
                        std::chrono::milliseconds retry_after) {
  return with_detail(code, std::string(message), retry_info(retry_after));
}

google::rpc::ErrorInfo error_info(const char* reason, const ErrorFacts& facts = {}) {
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain("lintel");
  for (const auto& [name, value] : facts) {
    (*info.mutable_metadata())[name] = clipped(value, kMaxTextBytes);
  }
  return info;
}

grpc::Status with_reason(grpc::StatusCode code, std::string_view message, const char* reason,
                         const ErrorFacts& facts = {}) {
  return with_detail(code, std::string(message), error_info(reason, facts));
}

google::rpc::ResourceInfo resource_info(std::string_view type, std::string_view name,
                                        std::string_view message) {
  google::rpc::ResourceInfo resource;
  resource.set_resource_type(std::string(type));
  resource.set_resource_name(clip(name));
  resource.set_description(std::string(message));
  return resource;
}

grpc::Status with_resource(grpc::StatusCode code, std::string_view type, std::string_view name,
                           std::string_view message) {
  return with_detail(code, std::string(message), resource_info(type, name, message));
}

std::string left_text(std::size_t left) {
  if (left == 0) return "";
  return "; and " + std::to_string(left) +
         (left == 1 ? " field more that is wrong" : " fields more that are wrong");
}

// "a: is wrong; b: is missing": as many as fit, then the fields of others, and the number of those
// that `bad` lacks.
std::string violations_text(const google::rpc::BadRequest& bad, std::size_t count) {
  constexpr std::size_t kDescribedBytes = 600, kNamedBytes = 800;
  std::string text;
  int listed = 0;
  for (; listed < bad.field_violations_size(); ++listed) {
    const auto& violation = bad.field_violations(listed);
    const std::string next = violation.field() + ": " + violation.description();
    if (listed > 0 && text.size() + next.size() > kDescribedBytes) break;
    text += (listed == 0 ? "" : "; ") + next;
  }
  bool is_first = true;
  for (; listed < bad.field_violations_size(); ++listed) {
    const std::string& field = bad.field_violations(listed).field();
    if (text.size() + field.size() > kNamedBytes) break;
    text += (std::exchange(is_first, false) ? "; also wrong: " : ", ") + field;
  }
  return text + left_text(count - static_cast<std::size_t>(listed));
}

}  // namespace

const char* code_name(int code) {
  // The text of a name lives as long as the process.
  return google::rpc::Code_IsValid(code)
             ? google::rpc::Code_Name(static_cast<google::rpc::Code>(code)).c_str()
             : "UNKNOWN";
}

std::string json_code_name(int code) {
  return code == grpc::StatusCode::CANCELLED ? "canceled" : in_lower_case(code_name(code));
}

std::string in_lower_case(std::string name) {
  std::ranges::transform(name, name.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return name;
}

std::string clip(std::string_view text) { return clipped(text, kMaxNameBytes); }

namespace {

google::rpc::BadRequest bad_request(const std::vector<FieldViolation>& violations) {
  assert(!violations.empty());
  google::rpc::BadRequest bad;
  for (std::size_t i = 0; i < std::min(violations.size(), kMaxViolations); ++i) {
    auto* const violation = bad.add_field_violations();
    violation->set_field(clipped(violations[i].field, kMaxTextBytes));
    violation->set_description(clipped(violations[i].description, kMaxTextBytes));
  }
  return bad;
}

// The name of the fact that counts the violations, where not all of them are listed.
constexpr const char* kViolations = "violations";

// `count`: of all violations. An empty reason: there is none.
grpc::Status refuse_fields(const std::vector<FieldViolation>& violations, std::size_t count,
                           const char* reason) {
  const google::rpc::BadRequest bad = bad_request(violations);
  const std::string text = violations_text(bad, count);
  ErrorFacts facts;
  if (count > static_cast<std::size_t>(bad.field_violations_size())) {
    facts.emplace_back(kViolations, std::to_string(count));
  }
  if (*reason == '\0' && facts.empty()) {
    return with_detail(grpc::StatusCode::INVALID_ARGUMENT, text, bad);
  }
  return with_detail(grpc::StatusCode::INVALID_ARGUMENT, text, bad, error_info(reason, facts));
}

}  // namespace

grpc::Status invalid_argument(const std::vector<FieldViolation>& violations, const char* reason) {
  return refuse_fields(violations, violations.size(), reason);
}

grpc::Status invalid_argument(const std::vector<FieldViolation>& violations) {
  return refuse_fields(violations, violations.size(), "");
}

StatusDetails read_status_details(const grpc::Status& status) {
  StatusDetails read;
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return read;
  for (const auto& detail : details.details()) {
    google::rpc::BadRequest bad;
    google::rpc::RetryInfo retry;
    google::rpc::ErrorInfo info;
    google::rpc::ResourceInfo resource;
    google::rpc::PreconditionFailure failure;
    if (detail.UnpackTo(&bad)) {
      for (const auto& violation : bad.field_violations()) {
        read.violations.push_back({violation.field(), violation.description()});
      }
    } else if (detail.UnpackTo(&retry)) {
      read.retry_after = std::chrono::seconds(retry.retry_delay().seconds()) +
                         std::chrono::nanoseconds(retry.retry_delay().nanos());
    } else if (detail.UnpackTo(&info)) {
      read.reason = info.reason();
      if (const auto count = info.metadata().find(kViolations); count != info.metadata().end()) {
        const std::string& text = count->second;
        std::from_chars(text.data(), text.data() + text.size(), read.num_violations);
      }
    } else if (detail.UnpackTo(&resource)) {
      read.resource = resource.resource_type();
    } else if (detail.UnpackTo(&failure) && failure.violations_size() > 0) {
      read.precondition = failure.violations(0).type();
    }
  }
  read.num_violations = std::max(read.num_violations, read.violations.size());
  return read;
}

std::string more_violations(const StatusDetails& details) {
  return left_text(details.num_violations - details.violations.size());
}

grpc::Status with_fields(const grpc::Status& status,
                         const std::function<std::string(const std::string&)>& renamed) {
  if (status.error_code() != grpc::StatusCode::INVALID_ARGUMENT) return status;
  StatusDetails details = read_status_details(status);
  if (details.violations.empty()) return status;
  for (FieldViolation& violation : details.violations) violation.field = renamed(violation.field);
  return refuse_fields(details.violations, details.num_violations, details.reason.c_str());
}

grpc::Status not_found(std::string_view type, std::string_view name, std::string_view message) {
  return with_resource(grpc::StatusCode::NOT_FOUND, type, name, message);
}

grpc::Status response_running(std::string_view id, std::chrono::milliseconds retry_after) {
  const std::string message = "response " + clip(id) + " is in progress";
  return with_detail(grpc::StatusCode::ABORTED, message, resource_info("response", id, message),
                     retry_info(retry_after));
}

grpc::Status session_busy(std::string_view id) {
  return with_resource(grpc::StatusCode::ABORTED, "session", id,
                       "session " + clip(id) + " is in use by another call");
}

grpc::Status session_held(std::string_view id, std::string_view holder,
                          std::chrono::milliseconds held_for) {
  std::string message = "session " + clip(id) + " is held by ";
  message += holder.empty() ? "another process" : "server " + clip(holder);
  message += held_for.count() > 0 ? " for at most " + std::to_string(held_for.count()) + " ms more"
                                  : " for now";
  ErrorFacts facts;
  if (!holder.empty()) facts.emplace_back("holder", clip(holder));
  if (held_for.count() <= 0) {
    return with_detail(grpc::StatusCode::ABORTED, message, resource_info("session", id, message),
                       error_info("SESSION_HELD", facts));
  }
  // The holder may finish long before its lease ends.
  const std::chrono::milliseconds again = std::min(held_for, kMostHeldPause);
  return with_detail(grpc::StatusCode::ABORTED, message, resource_info("session", id, message),
                     error_info("SESSION_HELD", facts), retry_info(again));
}

grpc::Status session_fenced(std::string_view id) {
  const std::string message = "session " + clip(id) +
                              " was taken over by another process during the call: repeated by its "
                              "call_id, the call resumes from what is stored";
  return with_detail(grpc::StatusCode::ABORTED, message, resource_info("session", id, message),
                     error_info("SESSION_FENCED"));
}

grpc::Status call_moved(std::string_view session_id) {
  const std::string message =
      "the server is shutting down: repeated by its call_id, the call resumes where it was";
  return with_detail(grpc::StatusCode::UNAVAILABLE, message,
                     resource_info("session", session_id, message), error_info("CALL_MOVED"));
}

grpc::Status failed_precondition(std::string_view type, std::string_view subject,
                                 std::string_view message) {
  google::rpc::PreconditionFailure failure;
  auto* const violation = failure.add_violations();
  violation->set_type(std::string(type));
  violation->set_subject(clip(subject));
  violation->set_description(std::string(message));
  return with_detail(grpc::StatusCode::FAILED_PRECONDITION, std::string(message), failure);
}

grpc::Status wrong_state(const char* reason, std::string_view message, const ErrorFacts& facts) {
  return with_reason(grpc::StatusCode::FAILED_PRECONDITION, message, reason, facts);
}

grpc::Status out_of_range(std::string_view message, std::int64_t lowest, std::int64_t highest) {
  return with_reason(grpc::StatusCode::OUT_OF_RANGE, message, "POSITION_OUT_OF_RANGE",
                     {{"lowest", std::to_string(lowest)}, {"highest", std::to_string(highest)}});
}

grpc::Status data_loss(const char* reason, std::string_view message) {
  return with_reason(grpc::StatusCode::DATA_LOSS, message, reason);
}

grpc::Status resource_exhausted(std::string_view message, std::chrono::milliseconds retry_after) {
  return with_retry(grpc::StatusCode::RESOURCE_EXHAUSTED, message, retry_after);
}

grpc::Status unavailable(std::string_view message, std::chrono::milliseconds retry_after) {
  return with_retry(grpc::StatusCode::UNAVAILABLE, message, retry_after);
}

grpc::Status store_broken(std::chrono::milliseconds retry_after) {
  return with_detail(grpc::StatusCode::UNAVAILABLE,
                     "the session store is broken: it needs a restart", error_info("STORE_BROKEN"),
                     retry_info(retry_after));
}

grpc::Status quota_exceeded(std::string_view identity, std::string_view limit,
                            std::chrono::milliseconds retry_after) {
  google::rpc::QuotaFailure failure;
  auto* const violation = failure.add_violations();
  violation->set_subject("identity:" + clip(identity));
  violation->set_description(std::string(limit));
  return with_detail(grpc::StatusCode::RESOURCE_EXHAUSTED,
                     "the quota is used up: " + std::string(limit), failure,
                     retry_info(retry_after));
}

grpc::Status unauthenticated(std::string_view message) {
  return with_reason(grpc::StatusCode::UNAUTHENTICATED, message, "TOKEN_NOT_ACCEPTED");
}

grpc::Status permission_denied(std::string_view message) {
  return with_reason(grpc::StatusCode::PERMISSION_DENIED, message, "ROLE_MISSING");
}

grpc::Status internal_error(std::string_view type, std::string_view name,
                            std::string_view message) {
  return with_resource(grpc::StatusCode::INTERNAL, type, name, message);
}

grpc::Status shutting_down() { return unavailable("the server is shutting down", kDrainRetry); }

grpc::Status cancelled() noexcept {
  try {
    return {grpc::StatusCode::CANCELLED, "the call was cancelled"};
  } catch (...) {
    return {grpc::StatusCode::CANCELLED, ""};
  }
}

grpc::Status deadline_exceeded() {
  return grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "the call's deadline passed");
}

grpc::Status out_of_memory() noexcept {
  try {
    return resource_exhausted("the machine is out of memory", kMemoryRetry);
  } catch (...) {
    return {grpc::StatusCode::RESOURCE_EXHAUSTED, ""};
  }
}

grpc::Status status_of_exception() noexcept {
  try {
    try {
      throw;
    } catch (const std::bad_alloc&) {
      return out_of_memory();
    } catch (const std::exception& error) {
      spdlog::error("a call failed: {}", error.what());
      return internal_error("server", "", error.what());
    }
  } catch (...) {
    return out_of_memory();
  }
}

grpc::Status copy_of(const grpc::Status& status) noexcept {
  try {
    return status;
  } catch (...) {
    return {status.error_code(), ""};
  }
}

}  // namespace lintel
