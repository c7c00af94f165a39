// SPDX-License-Identifier: Apache-2.0
#include "server/openai/http/errors.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

#include "proto/fields/request_fields.h"
#include "server/http/encoding/bounded_json.h"
#include "server/http/encoding/server_sent_events.h"
#include "server/http/transport/response_head.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

// The member of a request that lintel.v1 calls `field`, or that contains it.
std::string member_of(std::string_view field) {
  const auto replaced = [field](std::string_view ours, std::string_view theirs) {
    return std::string(theirs) + std::string(field.substr(ours.size()));
  };
  const auto is_part_of = [field](std::string_view whole) {
    return field.starts_with(whole) && (field.size() == whole.size() ||
                                        field[whole.size()] == '.' || field[whole.size()] == '[');
  };
  for (const std::string_view form : {"prompt.text", "prompt.tokens.ids"}) {
    if (is_part_of(form)) return replaced(form, "prompt");
  }
  if (is_part_of("name")) return replaced("name", "model");  // of GetModelRequest
  if (is_part_of("ids")) return replaced("ids", "tokens");   // of DetokenizeRequest
  for (const RequestField& row : kRequestFields) {
    if (!row.completions.text.empty() && is_part_of(row.name)) {
      return replaced(row.name, row.completions.text);
    }
  }
  return std::string(field);
}

// Errors without details are the listener's: an unknown path is not an unknown model.
std::string code_of(int http_status, const grpc::Status& status, const StatusDetails& details) {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAUTHENTICATED:
      return "invalid_api_key";
    case grpc::StatusCode::NOT_FOUND:
      if (status.error_details().empty()) return "unknown_url";
      return (details.resource.empty() ? "model" : details.resource) + "_not_found";
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return http_status == 413 ? "request_too_large" : "rate_limit_exceeded";
    default:
      return "";
  }
}

HttpAnswer shaped(int http_status, const OpenAiError& error) {
  return json_answer(http_status, dumped(error_json(http_status, error)));
}

}  // namespace

const HttpProtocol& openai_protocol() {
  static const HttpProtocol protocol{
      .path = "/v1",
      .exposed_headers = {"lintel-schema-relaxed", "lintel-schema-closed", "lintel-chat-left-out"},
      .refuse = openai_refusal,
      .keep_alive = std::string(kServerSentComment)};
  return protocol;
}

HttpAnswer openai_answer(const OpenAiError& error) { return shaped(400, error); }

HttpAnswer openai_answer(const grpc::Status& status) {
  return openai_refusal({}, http_status_of(status.error_code()), status);
}

HttpAnswer openai_refusal(const HttpRequest&, int http_status, const grpc::Status& status) {
  const StatusDetails details = read_status_details(status);
  OpenAiError error{status.error_message(), "", code_of(http_status, status, details)};
  if (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT && !details.reason.empty()) {
    error.code = details.reason;  // "NO_CHAT_TEMPLATE"
    std::ranges::transform(error.code, error.code.begin(),
                           [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  }
  if (!details.violations.empty()) {
    error.message.clear();
    for (const auto& [field, description] : details.violations) {
      error.message += (error.message.empty() ? "" : "; ") + member_of(field) + ": " + description;
    }
    const std::string member = member_of(details.violations.front().field);
    error.param = member.substr(0, member.find_first_of("[."));
  }
  HttpAnswer answer = shaped(http_status, error);
  add_retry_header(details, answer.headers);
  return answer;
}

grpc::Status body_refusal(const JsonFailure& failure) {
  switch (failure.kind) {
    case JsonFailure::Kind::kNone:
    case JsonFailure::Kind::kTooLarge:
    case JsonFailure::Kind::kNoSpace:
      return grpc::Status::OK;
    default:
      return json_refusal(failure, "the body");
  }
}

}  // namespace lintel
