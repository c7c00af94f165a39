#include "server/web/kserve/routes.h"

namespace lintel {

void add_kserve_routes(HttpRoutes&, InnerCalls&) {}

}  // namespace lintel
