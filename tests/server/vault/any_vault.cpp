#include "tests/server/vault/any_vault.h"

#include "server/sessions/storage/memory_vault.h"
#include "server/sessions/storage/sqlite/sqlite_vault.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

enum Sort { kMemory, kDisk, kSorts };

}  // namespace

struct AnyVault::Place {
  TemporaryDirectory directory;
};

AnyVault::AnyVault(int sort, std::size_t journal_bytes)
    : sort_(sort), journal_bytes_(journal_bytes), place_(std::make_unique<Place>()) {
  reopen();
}
AnyVault::~AnyVault() = default;

int AnyVault::sorts() { return kSorts; }
bool AnyVault::outlives_its_end() const { return sort_ != kMemory; }

void AnyVault::reopen() {
  if (sort_ == kMemory) {
    if (vault_ == nullptr) vault_ = std::make_unique<MemoryVault>(clock);
    return;
  }
  vault_.reset();
  SqliteVault::Options options;
  options.directory = place_->directory.path() / "store";
  options.commit_interval = {};
  options.journal_bytes = journal_bytes_;
  vault_ = std::make_unique<SqliteVault>(options, clock);
}

}  // namespace lintel::testing
