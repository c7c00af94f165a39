// SPDX-License-Identifier: Apache-2.0
// The services of lintel.v1 over HTTP, as Connect, gRPC-Web and plain JSON have them.
#pragma once

#include "server/http/transport/body_work.h"
#include "server/http/transport/http_calls.h"
#include "server/http/transport/http_routes.h"

namespace lintel {

// POST /lintel.v1.Service/Method. `calls` and `bodies` outlive the routes.
void add_connect_routes(HttpRoutes& routes, HttpCalls& calls, BodyWork& bodies);

}  // namespace lintel
