// SPDX-License-Identifier: Apache-2.0
#include "server/ollama/protocol.h"

#include <nlohmann/json.hpp>

#include "server/http/encoding/json_bodies.h"
#include "server/http/transport/response_head.h"

namespace lintel {
namespace {

std::string error_text(const grpc::Status& status, const StatusDetails& details,
                       OllamaRoute route) {
  if (details.violations.empty()) {
    // Clients look for these words before they offer to pull a model.
    const bool is_model = details.resource == "model";
    return (is_model ? "model not found: " : "") + status.error_message();
  }
  std::string text;
  for (const auto& [field, description] : details.violations) {
    text += (text.empty() ? "" : "; ") + ollama_member(field, route) + ": " + description;
  }
  return text + more_violations(details);
}

std::string error_body(const grpc::Status& status, const StatusDetails& details,
                       OllamaRoute route) {
  return dumped(nlohmann::ordered_json{{"error", error_text(status, details, route)}});
}

HttpAnswer refusal_of(int http_status, const grpc::Status& status, OllamaRoute route) {
  const StatusDetails details = read_status_details(status);
  HttpAnswer answer = json_answer(http_status, error_body(status, details, route));
  add_retry_header(details, answer.headers);
  return answer;
}

}  // namespace

const HttpProtocol& ollama_protocol() {
  // The keep-alive is a line of its answer: StreamAnswer::head().
  static const HttpProtocol protocol{.path = "/api", .refuse = ollama_refusal};
  return protocol;
}

HttpAnswer ollama_answer(const grpc::Status& status, OllamaRoute route) {
  return refusal_of(http_status_of(status.error_code()), status, route);
}

HttpAnswer ollama_refusal(const HttpRequest&, int http_status, const grpc::Status& status) {
  return refusal_of(http_status, status, OllamaRoute::kChat);
}

std::string ollama_error(const grpc::Status& status, OllamaRoute route) {
  return error_body(status, read_status_details(status), route);
}

}  // namespace lintel
