// SPDX-License-Identifier: Apache-2.0
#include "server/openai/http/errors.h"

#include <string>
#include <string_view>

#include "proto/fields/field_names.h"
#include "server/http/encoding/json_bodies.h"
#include "server/http/encoding/server_sent_events.h"
#include "server/http/transport/response_head.h"
#include "server/rpc/status.h"

namespace lintel {
namespace {

// The member of a request that lintel.v1 calls `field`, or that contains it.
std::string member_of(const std::string& field, const MemberNames& names) {
  if (names.column == nullptr) return field;
  const auto replaced = [&](std::string_view ours, std::string_view theirs) {
    return std::string(theirs) + field.substr(ours.size());
  };
  for (const std::string_view form : {"prompt.text", "prompt.tokens.ids"}) {
    if (is_of_field(field, form)) return replaced(form, "prompt");
  }
  if (is_of_field(field, "name")) return replaced("name", "model");  // of GetModelRequest
  if (is_of_field(field, "ids")) return replaced("ids", "tokens");   // of DetokenizeRequest
  if (!names.field.empty() && is_of_field(field, names.field)) {
    return replaced(names.field, names.name);
  }
  return api_field(names.column, field);
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

HttpAnswer status_answer(int http_status, const grpc::Status& status, const MemberNames& names) {
  const StatusDetails details = read_status_details(status);
  OpenAiError error{status.error_message(), "", code_of(http_status, status, details)};
  if (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT && !details.reason.empty()) {
    error.code = in_lower_case(details.reason);  // "no_chat_template"
  }
  if (details.precondition == "SESSION_MEMORY") error.code = "context_length_exceeded";
  if (!details.violations.empty()) {
    error.message.clear();
    for (const auto& [field, description] : details.violations) {
      error.message +=
          (error.message.empty() ? "" : "; ") + member_of(field, names) + ": " + description;
    }
    error.message += more_violations(details);
    const std::string member = member_of(details.violations.front().field, names);
    error.param = member.substr(0, member.find_first_of("[.#/"));
  }
  HttpAnswer answer = shaped(http_status, error);
  add_retry_header(details, answer.headers);
  return answer;
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

HttpAnswer openai_answer(const grpc::Status& status, const MemberNames& names) {
  return status_answer(http_status_of(status.error_code()), status, names);
}

HttpAnswer openai_refusal(const HttpRequest&, int http_status, const grpc::Status& status) {
  return status_answer(http_status, status, {});
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
