// SPDX-License-Identifier: Apache-2.0
// Routes of llama.cpp's and vLLM's servers that show how a model reads a prompt.
#pragma once

#include "server/http/transport/body_work.h"
#include "server/http/transport/http_calls.h"
#include "server/http/transport/http_routes.h"

namespace lintel {

// /tokenize, /detokenize, /apply-template, /props and /v1/chat/completions/input_tokens. `calls`
// and `bodies` outlive the routes.
void add_prompt_routes(HttpRoutes& routes, HttpCalls& calls, BodyWork& bodies);

}  // namespace lintel
