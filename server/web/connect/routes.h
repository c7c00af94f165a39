// The services of lintel.v1 over HTTP, as Connect, gRPC-Web and plain JSON have them.
#pragma once

#include "server/web/http_routes.h"
#include "server/web/inner_calls.h"

namespace lintel {

// POST /lintel.v1.Service/Method. `calls` outlives the routes.
void add_connect_routes(HttpRoutes& routes, InnerCalls& calls);

}  // namespace lintel
