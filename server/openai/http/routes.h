// SPDX-License-Identifier: Apache-2.0
// Routes below /v1 in OpenAI's shapes: models, completions, chats, responses.
#pragma once

#include "server/http/transport/body_work.h"
#include "server/http/transport/http_calls.h"
#include "server/http/transport/http_message.h"
#include "server/http/transport/http_routes.h"

namespace lintel {

struct OpenAiOptions {
  ChatReasoningField reasoning = ChatReasoningField::kReasoningContent;
  // For completions; the services of chats and responses have their own.
  bool refuses_unknown_members = false;
};

// `calls` and `bodies` outlive the routes.
void add_openai_routes(HttpRoutes& routes, HttpCalls& calls, BodyWork& bodies,
                       OpenAiOptions options);
// Adds the routes of llama.cpp's and vLLM's servers that show how a model reads a prompt:
// /tokenize, /detokenize, /apply-template, /props and /v1/chat/completions/input_tokens. Called by
// the function above.
void add_prompt_routes(HttpRoutes& routes, HttpCalls& calls, BodyWork& bodies);

}  // namespace lintel
