// SPDX-License-Identifier: Apache-2.0
// A storage of each sort that an executable tests.
#pragma once

#include <cstddef>
#include <memory>

#include "server/sessions/storage/session_storage.h"
#include "tests/support/manual_clock.h"

namespace lintel::testing {

class AnyStorage {
 public:
  // sort: 0 to sorts() - 1; journal_bytes: of one that has a journal, before it is folded.
  explicit AnyStorage(int sort, std::size_t journal_bytes = 1 << 20);
  ~AnyStorage();

  static int sorts();
  // Closes it and opens it again, where it outlives that.
  void reopen();
  // True if its contents survive reopen().
  bool outlives_its_end() const;
  SessionStorage& operator*() { return *storage_; }
  SessionStorage* operator->() { return storage_.get(); }

  ManualClock clock;

 private:
  struct Place;

  const int sort_;
  const std::size_t journal_bytes_;
  std::unique_ptr<Place> place_;
  std::unique_ptr<SessionStorage> storage_;
};

}  // namespace lintel::testing
