#include "server/sessions/storage/session_storage.h"

namespace lintel {

const char* to_string(StorageOutcome outcome) {
  switch (outcome) {
    case StorageOutcome::kDone:
      return "done";
    case StorageOutcome::kNotFound:
      return "not found";
    case StorageOutcome::kHeld:
      return "held";
    case StorageOutcome::kFenced:
      return "fenced";
    case StorageOutcome::kRolledBack:
      return "rolled back";
    case StorageOutcome::kFull:
      return "full";
    case StorageOutcome::kUnavailable:
      return "unavailable";
    case StorageOutcome::kBroken:
      return "broken";
    case StorageOutcome::kCorrupt:
      return "corrupt";
  }
  return "unknown";
}

}  // namespace lintel
