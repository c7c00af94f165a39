// SPDX-License-Identifier: Apache-2.0
// /v1/responses over a WebSocket: each message is an event `response.create`, whose answer is the
// events of its response, one a message.
#pragma once

#include "server/http/transport/body_work.h"
#include "server/http/transport/http_calls.h"
#include "server/http/transport/http_routes.h"

namespace lintel {

// `calls` and `bodies` outlive the routes.
void add_responses_socket(HttpRoutes& routes, HttpCalls& calls, BodyWork& bodies);

}  // namespace lintel
