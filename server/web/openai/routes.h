// /v1/models and /v1/completions, in OpenAI's shapes.
#pragma once

#include "server/web/http_routes.h"
#include "server/web/inner_calls.h"

namespace lintel {

// `calls` outlives the routes.
void add_openai_routes(HttpRoutes& routes, InnerCalls& calls);

}  // namespace lintel
