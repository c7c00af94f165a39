// Acknowledged: how far the journal was acknowledged, in a file next to the database.
#pragma once

#include <cstdint>
#include <memory>

#include "server/sessions/storage/sqlite/vault_file.h"

namespace lintel {

// SQLite ends its log at the first page whose checksum is wrong: rightly after a power loss, when
// a commit was cut short, but a bit that flips there later takes all commits after it along, and
// nothing says that there were any. This number does. It is written after each commit and not
// synced, so it is never ahead of what is durable, and costs a write into the page cache; after a
// power loss it may be behind. 16 bytes, little-endian: the number, XXH3-64 of it. Not thread-safe.
class Acknowledged {
 public:
  explicit Acknowledged(std::unique_ptr<VaultFile> file);

  // As the file was found; 0 where it says nothing, or was damaged itself.
  std::int64_t found() const { return found_; }
  // What cannot be noted is not: it only helps to tell.
  void note(std::int64_t seq) noexcept;

 private:
  const std::unique_ptr<VaultFile> file_;
  std::int64_t found_ = 0;
};

}  // namespace lintel
