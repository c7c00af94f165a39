// TokenAllowance: how fast a request may be served.
#pragma once

#include <cstdint>

#include "server/core/clock.h"

namespace lintel {

// What a request's tokens are paid from. Its sequences pause while there is nothing to pay with.
class TokenAllowance {
 public:
  virtual ~TokenAllowance() = default;
  // For tokens read and produced since the last time; 0: only asks. Zero when the request may go
  // on; else it has to pause for this long, and then to ask again. Called by one thread at a time.
  virtual Duration pay(std::int64_t tokens) = 0;
};

}  // namespace lintel
