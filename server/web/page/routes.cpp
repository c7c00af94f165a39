#include "server/web/page/routes.h"

namespace lintel {

void add_page_routes(HttpRoutes&) {}

}  // namespace lintel
