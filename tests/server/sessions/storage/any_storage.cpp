// SPDX-License-Identifier: Apache-2.0
#include "tests/server/sessions/storage/any_storage.h"

#include "server/sessions/storage/memory_storage.h"
#include "server/sessions/storage/sqlite/sqlite_storage.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {
namespace {

enum Sort { kMemory, kDisk, kSorts };

}  // namespace

struct AnyStorage::Place {
  TemporaryDirectory directory;
};

AnyStorage::AnyStorage(int sort, std::size_t journal_bytes)
    : sort_(sort), journal_bytes_(journal_bytes), place_(std::make_unique<Place>()) {
  reopen();
}
AnyStorage::~AnyStorage() = default;

int AnyStorage::sorts() { return kSorts; }
bool AnyStorage::outlives_its_end() const { return sort_ != kMemory; }

void AnyStorage::reopen() {
  if (sort_ == kMemory) {
    if (storage_ == nullptr) storage_ = std::make_unique<MemoryStorage>(clock);
    return;
  }
  storage_.reset();
  SqliteStorage::Options options;
  options.directory = place_->directory.path() / "store";
  options.commit_interval = {};
  options.journal_bytes = journal_bytes_;
  storage_ = std::make_unique<SqliteStorage>(options, clock);
}

}  // namespace lintel::testing
