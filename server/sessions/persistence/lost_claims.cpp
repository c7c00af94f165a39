#include "server/sessions/persistence/lost_claims.h"

#include <memory>
#include <span>
#include <utility>

#include "server/sessions/persistence/vault_batch.h"

namespace lintel {

void LostClaims::add(std::string id, Owner owner, const SessionVault::Claim& claim) {
  book_->add({std::move(id), std::move(owner), claim});
}

void LostClaims::give_back(SessionVault& vault, const SessionVault::Row& row,
                           const SessionVault::Claim& claim) {
  const auto batch = std::make_shared<VaultBatch>();
  batch->add({.kind = SessionVault::Write::Kind::kRelease,
              .id = row.id,
              .claim = claim,
              .before = row.digest,
              .after = row.digest,
              .position = row.position},
             {});
  const auto done = [book = book_, batch, lost = Lost{row.id, row.owner, claim}](
                        std::span<const VaultOutcome> outcomes) {
    const VaultOutcome outcome = outcomes.front();
    if (outcome == VaultOutcome::kFull || outcome == VaultOutcome::kUnavailable) book->add(lost);
  };
  batch->commit(vault, done);
}

void LostClaims::give_back(SessionVault& vault) {
  std::vector<Lost> lost;
  {
    MutexLock lock(book_->mutex);
    lost.swap(book_->lost);
  }
  for (Lost& each : lost) {
    const Digest digest = vault.find(each.id, each.owner).row.digest;
    VaultBatch batch;
    batch.add({.kind = SessionVault::Write::Kind::kRelease,
               .id = each.id,
               .claim = each.claim,
               .before = digest,
               .after = digest},
              {});
    const VaultOutcome outcome = batch.commit_and_wait(vault);
    // A broken vault releases nothing before it is reopened, and then no session is held.
    if (outcome == VaultOutcome::kFull || outcome == VaultOutcome::kUnavailable) {
      add(std::move(each.id), std::move(each.owner), each.claim);
    }
  }
}

}  // namespace lintel
