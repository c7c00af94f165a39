// SPDX-License-Identifier: Apache-2.0
// BearerTokens: authenticates callers by tokens, from a file that holds only their hashes.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/core/file_stamp.h"
#include "server/core/mutex.h"
#include "server/security/identity.h"

namespace lintel {

// One token a line: NAME ROLES sha256:HEX, e.g.
//
//   # made by: lintel token new alice --roles generate,score
//   alice generate,score sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
//
// ROLES are of generate, score and admin. Empty lines and text after # are ignored. Several lines
// may have one name: an identity with several tokens, to exchange them one after the other. The
// hash is plain SHA-256: tokens have to be long and random, as `lintel token new` makes them.
//
// Constant after construction.
class BearerTokenTable {
 public:
  // Throws std::runtime_error naming `source` and the invalid line.
  BearerTokenTable(std::string_view text, const std::string& source);

  // The token's identity, if it is in the table. Compares with every entry, each in constant time,
  // so that its duration reveals nothing about the table.
  std::optional<Identity> find(std::string_view token) const;
  std::size_t size() const { return entries_.size(); }

 private:
  using Hash = std::array<unsigned char, 32>;
  struct Entry {
    Identity identity;
    Hash hash;
  };
  static Entry parse_line(const std::vector<std::string>& words);
  static Hash hash_of(std::string_view token);

  std::vector<Entry> entries_;
};

// The table of a file, read again when the file changes. Thread-safe. A removed token makes no new
// calls; its running calls continue.
class BearerTokens {
 public:
  // Throws std::runtime_error.
  explicit BearerTokens(std::filesystem::path file);

  std::optional<Identity> find(std::string_view token) const { return table()->find(token); }
  // Reads the file if it has changed. A file that is invalid or cannot be read is logged, once for
  // each change, and the table stays; it is tried again the next time. Returns true if there is a
  // new table.
  bool reload_if_changed() EXCLUDES(mutex_);

 private:
  std::shared_ptr<const BearerTokenTable> table() const EXCLUDES(mutex_);

  const std::filesystem::path file_;
  mutable Mutex mutex_;
  std::shared_ptr<const BearerTokenTable> table_ GUARDED_BY(mutex_);
  FileStamp stamp_ GUARDED_BY(mutex_);                  // of the file when it was read
  std::optional<FileStamp> failed_ GUARDED_BY(mutex_);  // of the file whose error was logged
};

// The token in an Authorization header, "Bearer TOKEN"; empty if it has none.
std::string_view bearer_token(std::string_view authorization);

}  // namespace lintel
