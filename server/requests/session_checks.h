// Checks of what is asked of sessions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "lintel/v1/session.pb.h"
#include "model/config/config.h"
#include "server/requests/violations.h"

namespace lintel {

struct CheckedList {
  std::string after_id;
  std::size_t page_size = 100;
};
CheckedList check_list(const v1::ListSessionsRequest& wire, Violations& violations);

// An id that may be one; whose it is the store says.
void check_session_id(const std::string& id, Violations& violations);

// How many values a session shall hold at most, which a message carries as `field`; 0: the model's
// own limit, `most` (0: unbounded).
void check_session_length(std::int64_t max_tokens, const std::string& field, std::int64_t most,
                          Violations& violations);

}  // namespace lintel
