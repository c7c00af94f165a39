// VaultOutcome: what became of something asked of a vault.
#pragma once

namespace lintel {

enum class VaultOutcome {
  kDone,
  kNotFound,    // also another owner's
  kHeld,        // by a call elsewhere
  kFenced,      // somebody else took it over
  kRolledBack,  // the store went back behind what was written
  kFull,
  kUnavailable,  // for now
  kBroken,       // until a restart: a write failed of which nobody knows how far it came
  kCorrupt,
};

const char* to_string(VaultOutcome outcome);  // as logs have it, e.g. "rolled back"

}  // namespace lintel
