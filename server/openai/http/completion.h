// SPDX-License-Identifier: Apache-2.0
// One request of /v1/completions, from its body to its last byte.
#pragma once

#include "server/http/transport/http_calls.h"
#include "server/http/transport/http_message.h"
#include "server/openai/http/completion_request.h"

namespace lintel {

// Answers the exchange. `calls` outlives its answer.
void complete(SharedExchange exchange, HttpCalls& calls, CompletionRequest request);

}  // namespace lintel
