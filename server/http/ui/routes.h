// SPDX-License-Identifier: Apache-2.0
// The page at / and its files.
#pragma once

#include "server/http/transport/http_routes.h"

namespace lintel {

void add_page_routes(HttpRoutes& routes);

}  // namespace lintel
