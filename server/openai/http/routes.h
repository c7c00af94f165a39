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
  // Of completions; the services of chats and responses know it.
  bool refuses_unknown_members = false;
};

// `calls` and `bodies` outlive the routes.
void add_openai_routes(HttpRoutes& routes, HttpCalls& calls, BodyWork& bodies,
                       OpenAiOptions options);
// Those of llama.cpp's and vLLM's servers that show how a model reads a prompt, which the function
// above adds, too: /tokenize, /detokenize, /apply-template, /props and
// /v1/chat/completions/input_tokens.
void add_prompt_routes(HttpRoutes& routes, HttpCalls& calls, BodyWork& bodies);

}  // namespace lintel
