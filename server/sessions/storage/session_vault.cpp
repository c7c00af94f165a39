#include "server/sessions/storage/session_vault.h"

namespace lintel {

const char* to_string(VaultOutcome outcome) {
  switch (outcome) {
    case VaultOutcome::kDone:
      return "done";
    case VaultOutcome::kNotFound:
      return "not found";
    case VaultOutcome::kHeld:
      return "held";
    case VaultOutcome::kFenced:
      return "fenced";
    case VaultOutcome::kRolledBack:
      return "rolled back";
    case VaultOutcome::kFull:
      return "full";
    case VaultOutcome::kUnavailable:
      return "unavailable";
    case VaultOutcome::kBroken:
      return "broken";
    case VaultOutcome::kCorrupt:
      return "corrupt";
  }
  return "unknown";
}

}  // namespace lintel
