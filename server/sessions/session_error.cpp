// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/session_error.h"

namespace lintel {

const char* to_string(SessionError error) {
  switch (error) {
    case SessionError::kNone:
      return "done";
    case SessionError::kNotFound:
      return "not found";
    case SessionError::kHeld:
      return "held";
    case SessionError::kFenced:
      return "fenced";
    case SessionError::kRolledBack:
      return "rolled back";
    case SessionError::kDamaged:
      return "corrupt";
    case SessionError::kStoreFull:
      return "full";
    case SessionError::kStoreAway:
      return "unavailable";
    case SessionError::kStoreBroken:
      return "broken";
    default:
      return "refused";
  }
}

}  // namespace lintel
