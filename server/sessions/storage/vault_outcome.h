// VaultOutcome: what became of something asked of a vault.
#pragma once

namespace lintel {

enum class VaultOutcome {
  kDone,
  kNotFound,    // also another owner's
  kHeld,        // by a call elsewhere
  kFenced,      // another process took it over
  kRolledBack,  // the store went back to before an acknowledged write
  kFull,
  kUnavailable,  // for now
  kBroken,       // until a restart: a write failed, and its effect is unknown
  kCorrupt,
};

const char* to_string(VaultOutcome outcome);  // as logs have it, e.g. "rolled back"

}  // namespace lintel
