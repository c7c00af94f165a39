#include "server/http/openai/openai_error.h"

#include <string_view>
#include <utility>

#include "server/http/encoding/bounded_json.h"
#include "server/http/encoding/call_error.h"
#include "server/http/transport/http_status.h"

namespace lintel {
namespace {

// lintel.v1's fields, and what OpenAI calls them. Of others the name is the same, without the
// message that it is in.
constexpr std::pair<std::string_view, std::string_view> kMembers[] = {
    {"max_new_tokens", "max_tokens"}, {"num_samples", "n"},      {"top_log2_probs", "logprobs"},
    {"stop.strings", "stop"},         {"prompt.text", "prompt"}, {"prompt.tokens.ids", "prompt"},
};

std::string member_of(std::string_view field) {
  for (const auto& [ours, theirs] : kMembers) {
    if (field.substr(0, ours.size()) == ours) {
      return std::string(theirs) + std::string(field.substr(ours.size()));
    }
  }
  constexpr std::string_view kSampling = "sampling.";
  if (field.substr(0, kSampling.size()) == kSampling) field.remove_prefix(kSampling.size());
  return std::string(field);
}

const char* type_of(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    default:
      return http_status >= 500 ? "server_error" : "invalid_request_error";
  }
}

// What has no details is of the listener: a path that there is none of is no model.
std::string code_of(int http_status, const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAUTHENTICATED:
      return "invalid_api_key";
    case grpc::StatusCode::NOT_FOUND:
      return status.error_details().empty() ? "unknown_url" : "model_not_found";
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return http_status == 413 ? "request_too_large" : "rate_limit_exceeded";
    default:
      return "";
  }
}

HttpAnswer shaped(int http_status, const OpenAiError& error) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
  };
  const nlohmann::ordered_json json = {{"error",
                                        {{"message", error.message},
                                         {"type", type_of(http_status)},
                                         {"param", or_null(error.param)},
                                         {"code", or_null(error.code)}}}};
  return json_answer(http_status, dumped(json));
}

}  // namespace

HttpAnswer openai_answer(const OpenAiError& error) { return shaped(400, error); }

HttpAnswer openai_answer(const grpc::Status& status) {
  return openai_refusal({}, http_status_of(status.error_code()), status);
}

HttpAnswer openai_refusal(const HttpRequest&, int http_status, const grpc::Status& status) {
  const CallError details = read_call_error(status);
  OpenAiError error{status.error_message(), "", code_of(http_status, status)};
  if (!details.violations.empty()) {
    error.message.clear();
    for (const auto& [field, description] : details.violations) {
      error.message += (error.message.empty() ? "" : "; ") + member_of(field) + ": " + description;
    }
    const std::string member = member_of(details.violations.front().first);
    error.param = member.substr(0, member.find_first_of("[."));
  }
  HttpAnswer answer = shaped(http_status, error);
  add_retry_header(details, answer.headers);
  return answer;
}

}  // namespace lintel
