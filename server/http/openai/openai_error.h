// Errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}}.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "server/http/transport/http_message.h"

namespace lintel {

struct OpenAiError {
  std::string message;
  std::string param;  // the member of the request that it is about; empty: of none
  std::string code;   // "model_not_found"; empty: none
};

// What is wrong with the request itself.
HttpAnswer openai_answer(const OpenAiError& error);
// The status of a call, with the fields named as in OpenAI's request.
HttpAnswer openai_answer(const grpc::Status& status);
// The same, with the HTTP status that the listener found.
HttpAnswer openai_refusal(const HttpRequest& request, int http_status, const grpc::Status& status);

}  // namespace lintel
