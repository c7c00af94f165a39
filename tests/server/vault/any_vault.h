// A vault of each sort that an executable tests.
#pragma once

#include <cstddef>
#include <memory>

#include "server/sessions/storage/session_vault.h"
#include "tests/support/manual_clock.h"

namespace lintel::testing {

class AnyVault {
 public:
  // sort: 0 to sorts() - 1; journal_bytes: of one that has a journal, before it is folded.
  explicit AnyVault(int sort, std::size_t journal_bytes = 1 << 20);
  ~AnyVault();

  static int sorts();
  // Closes it and opens it again, where it outlives that.
  void reopen();
  // What reopen() does to it.
  bool outlives_its_end() const;
  SessionVault& operator*() { return *vault_; }
  SessionVault* operator->() { return vault_.get(); }

  ManualClock clock;

 private:
  struct Place;

  const int sort_;
  const std::size_t journal_bytes_;
  std::unique_ptr<Place> place_;
  std::unique_ptr<SessionVault> vault_;
};

}  // namespace lintel::testing
