// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/http/transport/body_work.h"
#include "server/http/transport/http_calls.h"
#include "server/http/transport/http_routes.h"
#include "server/openai/sealer.h"

namespace lintel {

// Anthropic's API: messages, the tokens of a request, and the list of models, whose path is also
// OpenAI's. REQUIRES: OpenAI's routes were added before. `calls` and `bodies` outlive the routes.
// secret: of the signatures of thinking.
void add_anthropic_routes(HttpRoutes& routes, HttpCalls& calls, BodyWork& bodies,
                          const Sealer::Secret& secret);

}  // namespace lintel
