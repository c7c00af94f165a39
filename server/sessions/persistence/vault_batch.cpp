#include "server/sessions/persistence/vault_batch.h"

#include <algorithm>
#include <future>
#include <utility>

namespace lintel {

void VaultBatch::add(SessionVault::Write write, VaultBytes body) {
  bodies_.push_back(std::move(body));
  write.body = bodies_.back();
  writes_.push_back(std::move(write));
}

void VaultBatch::cut(std::size_t size) {
  writes_.resize(size);
  while (bodies_.size() > size) bodies_.pop_back();
}

void VaultBatch::commit(SessionVault& vault, SessionVault::Done done) {
  vault.commit(std::move(writes_), std::move(done));
}

VaultOutcome VaultBatch::commit_and_wait(SessionVault& vault) {
  std::promise<VaultOutcome> promise;
  commit(vault, [&](std::span<const VaultOutcome> outcomes) {
    const auto failed = std::ranges::find_if(
        outcomes, [](VaultOutcome outcome) { return outcome != VaultOutcome::kDone; });
    promise.set_value(failed == outcomes.end() ? VaultOutcome::kDone : *failed);
  });
  return promise.get_future().get();
}

SessionRefusal refusal_of(VaultOutcome outcome) {
  switch (outcome) {
    case VaultOutcome::kDone:
      return {};
    case VaultOutcome::kNotFound:
      return {SessionError::kNotFound};
    case VaultOutcome::kHeld:
      return {SessionError::kHeld};
    case VaultOutcome::kFull:
      return {SessionError::kStoreFull};
    case VaultOutcome::kBroken:
      return {SessionError::kStoreBroken};
    case VaultOutcome::kCorrupt:
      return {SessionError::kDamaged};
    case VaultOutcome::kFenced:
    case VaultOutcome::kRolledBack:
      return {SessionError::kFenced};
    case VaultOutcome::kUnavailable:
      break;
  }
  return {SessionError::kStoreAway};
}

SessionRefusal refusal_of(const SessionVault::Opened& opened) {
  SessionRefusal refusal = refusal_of(opened.outcome);
  refusal.holder = opened.holder;
  refusal.held_for = std::chrono::ceil<std::chrono::milliseconds>(opened.held_for);
  return refusal;
}

}  // namespace lintel
