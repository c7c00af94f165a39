// SPDX-License-Identifier: Apache-2.0
#include "server/anthropic/errors.h"

#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/anthropic/message_request.h"
#include "server/http/encoding/json_bodies.h"
#include "server/http/transport/response_head.h"
#include "server/openai/http/errors.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

constexpr int kOverloaded = 529;

const char* anthropic_error_type(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 408:
    case 504:
      return "timeout_error";
    case kOverloaded:
      return "overloaded_error";
    default:
      return http_status >= 500 ? "api_error" : "invalid_request_error";
  }
}

// The whole numbers of a text, in their order.
std::vector<std::int64_t> numbers_of(std::string_view text) {
  std::vector<std::int64_t> numbers;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::int64_t number = 0;
    const auto read = std::from_chars(text.data() + i, text.data() + text.size(), number);
    if (read.ec != std::errc()) continue;
    numbers.push_back(number);
    i = static_cast<std::size_t>(read.ptr - text.data());
  }
  return numbers;
}

// Uses Anthropic's own words: programs that see them shorten the conversation.
std::optional<std::string> too_long_message(const StatusDetails& details) {
  if (details.reason != "CONTEXT_LENGTH_EXCEEDED" || details.violations.empty()) {
    return std::nullopt;
  }
  // "have N tokens, the model takes fewer than M"
  const std::vector<std::int64_t> numbers = numbers_of(details.violations.front().description);
  if (numbers.size() != 2) return std::nullopt;
  return "prompt is too long: " + std::to_string(numbers[0]) + " tokens > " +
         std::to_string(numbers[1] - 1) + " maximum";
}

HttpAnswer error_answer(const HttpRequest& request, int http_status, const grpc::Status& status,
                        bool is_of_body) {
  if (http_status == 503) http_status = kOverloaded;
  const StatusDetails details = read_status_details(status);
  std::string message = status.error_message();
  if (const std::optional<std::string> too_long = too_long_message(details)) {
    message = *too_long;
  } else if (!details.violations.empty()) {
    message.clear();
    for (const auto& [field, description] : details.violations) {
      message += (message.empty() ? "" : "; ") + (is_of_body ? field : message_member(field)) +
                 ": " + description;
    }
    message += more_violations(details);
  }
  nlohmann::ordered_json json = {
      {"type", "error"},
      {"error", {{"type", anthropic_error_type(http_status)}, {"message", message}}},
      {"request_id", request.request_id}};
  if (!details.reason.empty()) {  // "thread_unsupported_request"
    json["error"]["details"] = {{"error_code", in_lower_case(details.reason)}};
  }
  HttpAnswer answer = json_answer(http_status, dumped(json));
  answer.headers.emplace_back("request-id", request.request_id);
  add_retry_header(details, answer.headers);
  return answer;
}

HttpAnswer anthropic_refusal(const HttpRequest& request, int http_status,
                             const grpc::Status& status) {
  return error_answer(request, http_status, status, /*is_of_body=*/false);
}

HttpAnswer shared_models_refusal(const HttpRequest& request, int http_status,
                                 const grpc::Status& status) {
  return is_of_anthropic_client(request) ? anthropic_refusal(request, http_status, status)
                                         : openai_refusal(request, http_status, status);
}

}  // namespace

const HttpProtocol& messages_protocol() {
  static const HttpProtocol protocol{.path = "/v1/messages",
                                     .token_headers = {"authorization", "x-api-key"},
                                     .exposed_headers = {"request-id"},
                                     .refuse = anthropic_refusal,
                                     .keep_alive = "event: ping\ndata: {\"type\":\"ping\"}\n\n"};
  return protocol;
}

const HttpProtocol& shared_models_protocol() {
  static const HttpProtocol protocol{.path = "/v1/models",
                                     .token_headers = {"authorization", "x-api-key"},
                                     .refuse = shared_models_refusal};
  return protocol;
}

bool is_of_anthropic_client(const HttpRequest& request) {
  return !request.header("anthropic-version").empty();
}

HttpAnswer anthropic_answer(const HttpRequest& request, const grpc::Status& status,
                            bool is_of_body) {
  return error_answer(request, http_status_of(status.error_code()), status, is_of_body);
}

}  // namespace lintel
