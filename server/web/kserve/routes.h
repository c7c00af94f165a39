// The Open Inference Protocol's REST calls, and Triton's generate.
#pragma once

#include "server/web/http_routes.h"
#include "server/web/inner_calls.h"

namespace lintel {

// `calls` outlives the routes.
void add_kserve_routes(HttpRoutes& routes, InnerCalls& calls);

}  // namespace lintel
