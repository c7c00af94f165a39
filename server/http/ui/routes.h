// The page at /, and what it is made of.
#pragma once

#include "server/http/transport/http_routes.h"

namespace lintel {

void add_page_routes(HttpRoutes& routes);

}  // namespace lintel
