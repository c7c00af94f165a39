#include "server/config/flags.h"

#include <iterator>

#include "server/config/log_flags.h"
#include "server/config/model_flags.h"
#include "server/config/port_flags.h"
#include "server/config/security_flags.h"
#include "server/config/session_store_flags.h"
#include "server/config/work_flags.h"

namespace lintel {

std::vector<Flag> server_flags() {
  struct Group {
    const char* heading;
    std::vector<Flag> flags;
  };
  Group groups[] = {
      {"Models", model_flags()},
      {"Network", network_flags()},
      {"HTTP", http_flags()},
      {"Security", security_flags()},
      {"Limits of one identity (a token's or certificate's name; else all callers together), 0: "
       "none",
       identity_flags()},
      {"Scheduling, for each model", scheduling_flags()},
      {"Sessions", session_flags()},
      {"Sessions that outlive the server", session_store_flags()},
      {"A session store that servers share", shared_store_flags()},
      {"Limits of one request", request_limit_flags()},
      {"Streaming", streaming_flags()},
      {"Logging, to standard error", logging_flags()},
      {"Monitoring", monitoring_flags()},
  };
  std::vector<Flag> all;
  for (Group& group : groups) {
    for (Flag& flag : group.flags) {
      flag.group = group.heading;
      all.push_back(std::move(flag));
    }
  }
  return all;
}

}  // namespace lintel
