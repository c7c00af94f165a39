// SPDX-License-Identifier: Apache-2.0
// The Open Inference Protocol's REST calls, and Triton's generate.
#pragma once

#include "server/http/transport/body_work.h"
#include "server/http/transport/http_calls.h"
#include "server/http/transport/http_routes.h"

namespace lintel {

// `calls` and `bodies` outlive the routes.
void add_kserve_routes(HttpRoutes& routes, HttpCalls& calls, BodyWork& bodies);

}  // namespace lintel
