#include "server/web/openai/routes.h"

namespace lintel {

void add_openai_routes(HttpRoutes&, InnerCalls&) {}

}  // namespace lintel
