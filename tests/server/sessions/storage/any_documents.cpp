// SPDX-License-Identifier: Apache-2.0
#include "tests/server/sessions/storage/any_documents.h"

#include "server/sessions/storage/sqlite/sqlite_documents.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {

struct AnyDocuments::Place {
  TemporaryDirectory directory;
};

AnyDocuments::AnyDocuments(int sort) : sort_(sort), place_(std::make_unique<Place>()) { reopen(); }
AnyDocuments::~AnyDocuments() = default;

int AnyDocuments::sorts() { return 2; }

void AnyDocuments::reopen() {
  if (sort_ == 0) {
    if (storage_ == nullptr) {
      storage_ = std::make_unique<MemoryDocuments>(1 << 20, clock, owner_bytes_);
    }
    return;
  }
  storage_.reset();
  SqliteDocuments::Options options;
  options.owner_bytes = owner_bytes_;
  storage_ = std::make_unique<SqliteDocuments>(place_->directory.path(), clock, options);
}

bool AnyDocuments::bounds_owners() const { return true; }

void AnyDocuments::set_owner_bytes(std::uint64_t bytes) {
  owner_bytes_ = bytes;
  storage_.reset();
  reopen();
}

}  // namespace lintel::testing
