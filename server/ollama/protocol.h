// SPDX-License-Identifier: Apache-2.0
// Ollama's protocol beside its messages, and its errors as answers: {"error": TEXT}.
#pragma once

#include <grpcpp/support/status.h>

#include <string>
#include <string_view>

#include "server/http/transport/http_message.h"
#include "server/http/transport/http_routes.h"
#include "server/ollama/request.h"

namespace lintel {

// The version of Ollama whose API this is. Clients compare it with the lowest that they support.
inline constexpr std::string_view kOllamaVersion = "0.32.15";

const HttpProtocol& ollama_protocol();

// The status of a call, with the fields named as in Ollama's requests to the route.
HttpAnswer ollama_answer(const grpc::Status& status, OllamaRoute route);
// The same, with the HTTP status that the listener found.
HttpAnswer ollama_refusal(const HttpRequest& request, int http_status, const grpc::Status& status);
// {"error": TEXT} of a status, without a line end.
std::string ollama_error(const grpc::Status& status, OllamaRoute route);

}  // namespace lintel
