// SPDX-License-Identifier: Apache-2.0
// A SqliteStorage on a TestDisk, with limits that are met soon.
#pragma once

#include <memory>

#include "server/sessions/storage/sqlite/sqlite_storage.h"
#include "tests/server/sessions/storage/test_disk.h"
#include "tests/support/manual_clock.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {

class DiskStorages {
 public:
  SqliteStorage::Options options_on(TestDisk& disk) const {
    SqliteStorage::Options options;
    options.directory = directory_.path();  // has the lock; the rest is on `disk`
    options.commit_interval = {};
    options.journal_bytes = 20'000;
    options.log_bytes = 60'000;
    options.slab_bytes = 20 * 8192;
    options.reserve_bytes = 128 << 10;
    options.sqlite_vfs = disk.vfs();
    options.open_file = disk.opener();
    return options;
  }
  std::unique_ptr<SqliteStorage> open(TestDisk& disk) const {
    return std::make_unique<SqliteStorage>(options_on(disk), clock_);
  }

 private:
  TemporaryDirectory directory_;
  ManualClock clock_;
};

}  // namespace lintel::testing
