// SPDX-License-Identifier: Apache-2.0
// /v1/responses, as OpenAI's API and Open Responses have it: lintel.v1.ResponseService over HTTP.
#pragma once

#include "server/http/transport/body_work.h"
#include "server/http/transport/http_calls.h"
#include "server/http/transport/http_routes.h"

namespace lintel {

// `calls` and `bodies` outlive the routes.
void add_response_routes(HttpRoutes& routes, HttpCalls& calls, BodyWork& bodies);

}  // namespace lintel
