// SPDX-License-Identifier: Apache-2.0
// A document storage of each sort that an executable tests.
#pragma once

#include <cstdint>
#include <memory>

#include "server/sessions/storage/document_storage.h"
#include "tests/support/manual_clock.h"

namespace lintel::testing {

class AnyDocuments {
 public:
  explicit AnyDocuments(int sort);  // 0 to sorts() - 1
  ~AnyDocuments();

  static int sorts();
  // Closes it and opens it again, where it outlives that.
  void reopen();
  // True if it has set_owner_bytes(), which opens it again with that bound; false if it is in
  // memory.
  bool bounds_owners() const;
  void set_owner_bytes(std::uint64_t bytes);
  DocumentStorage& operator*() { return *storage_; }
  DocumentStorage* operator->() { return storage_.get(); }

  ManualClock clock;

 private:
  struct Place;

  const int sort_;
  std::uint64_t owner_bytes_ = 0;
  std::unique_ptr<Place> place_;
  std::unique_ptr<DocumentStorage> storage_;
};

}  // namespace lintel::testing
