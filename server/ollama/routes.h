// SPDX-License-Identifier: Apache-2.0
// Ollama's API: /api/chat, /api/generate, /api/tags, /api/show, /api/ps, /api/version.
#pragma once

#include "server/http/transport/body_work.h"
#include "server/http/transport/http_calls.h"
#include "server/http/transport/http_routes.h"

namespace lintel {

// `calls` and `bodies` outlive the routes' answers. refuses_unknown_members: for members that the
// service of chats does not see; that has a rule of its own.
void add_ollama_routes(HttpRoutes& routes, HttpCalls& calls, BodyWork& bodies,
                       bool refuses_unknown_members);

}  // namespace lintel
