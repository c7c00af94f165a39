// SPDX-License-Identifier: Apache-2.0
// SqliteDocuments: documents in the directory of a SqliteStorage. docs/session_storage.md describes
// the files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/sessions/storage/document_storage.h"
#include "server/sessions/storage/sqlite/sqlite_connection.h"
#include "server/sessions/storage/sqlite/storage_file.h"

namespace lintel {

// A database of its own, made when the first document is stored. Each write is a transaction, which
// is on the disk on return. After a failed one, whose effect is unknown, nothing more is written
// until the storage is reopened (kStoreBroken). A full disk refuses new documents and versions
// (kStoreFull), but no removals: for those there is a reserve, and the room of removed documents is
// used again.
class SqliteDocuments final : public DocumentStorage {
 public:
  struct Options {
    std::uint64_t owner_bytes = 0;  // of each owner's documents, as kDocumentBytes; 0: any number
    std::size_t log_bytes = std::size_t{4} << 20;  // of the write-ahead log, then it is emptied
    // Reserved on the disk, to empty the log and to remove documents when there is no other room:
    // more than log_bytes.
    std::size_t reserve_bytes = std::size_t{8} << 20;
    // The most bytes of bodies that one transaction removes: larger ones are emptied in such pieces
    // first.
    std::size_t piece_bytes = std::size_t{1} << 20;
    // The file systems of tests.
    std::string sqlite_vfs;  // empty: the system's
    OpenStorageFile open_file = open_storage_file;
  };

  // The directory is used by this process only. Throws StorageError for a file of another kind.
  // `clock` outlives it.
  SqliteDocuments(std::filesystem::path directory, const Clock& clock, Options options);
  SqliteDocuments(std::filesystem::path directory, const Clock& clock)
      : SqliteDocuments(std::move(directory), clock, Options()) {}
  ~SqliteDocuments() override;

  bool waits() const override { return true; }
  SessionError put(Document& document) override EXCLUDES(mutex_);
  SessionError find(const std::string& id, const std::string& owner, std::optional<Time> keep_until,
                    Document& found) override EXCLUDES(mutex_);
  SessionError remove(const std::string& id, const std::string& owner) override EXCLUDES(mutex_);
  std::size_t sweep(std::size_t most) override EXCLUDES(mutex_);
  std::vector<Unfinished> unfinished(std::size_t most) override EXCLUDES(mutex_);
  void settle(const std::string& id) override EXCLUDES(mutex_);
  SessionError secret(Secret& secret) override EXCLUDES(mutex_);
  Health health() const override EXCLUDES(mutex_);
  // No other process writes here: any other one ended before this one began.
  void note_alive(const std::string& process) override EXCLUDES(mutex_);
  std::optional<Time> last_seen(const std::string& process) override EXCLUDES(mutex_);

 private:
  struct Statements;
  // The documents and bytes that one transaction may still remove.
  struct RemovalBounds {
    std::size_t documents = 64;
    std::size_t bytes = 0;  // of bodies
  };

  // Opens the database, or makes it. Throws SqliteError, std::system_error, StorageError.
  void open() REQUIRES(mutex_);
  // The same before a write; unless kNone is returned there can be none.
  SessionError prepare() REQUIRES(mutex_);
  // Runs `body` as one transaction, which is rolled back unless it returns kNone. It may run
  // several times.
  template <typename Body>
  SessionError transact(const Body& body) REQUIRES(mutex_);
  // The same for a body that writes `bytes` more, provided that the log can be moved into the
  // database afterwards.
  template <typename Body>
  SessionError add(std::size_t bytes, const Body& body) REQUIRES(mutex_);
  // The same for a body that removes, within bounds: a full disk has room for it.
  template <typename Body>
  SessionError take_away(const Body& body) REQUIRES(mutex_);
  template <typename Body>
  SessionError read(const Body& body) REQUIRES(mutex_);

  // Moves the log into the database, with the room of the reserve if necessary; cuts_log: and frees
  // the log's room. False: it stays in the log.
  bool empty_log(bool cuts_log) REQUIRES(mutex_);
  bool is_log_beyond(std::size_t bytes) const REQUIRES(mutex_);
  // Enlarges the reserve as far as there is room. True if it has `bytes` now.
  bool make_reserve(std::size_t bytes) REQUIRES(mutex_);
  void cut_reserve(std::size_t bytes) REQUIRES(mutex_);
  void note_full(const std::string& why) REQUIRES(mutex_);
  SessionError break_off(const std::string& why) REQUIRES(mutex_);

  bool is_continued(const std::string& id) REQUIRES(mutex_);
  std::size_t free_bytes() REQUIRES(mutex_);  // in free pages of the database
  std::size_t body_bytes(const std::string& id) REQUIRES(mutex_);
  // Removes a document, and hidden ones that only this one continued; those beyond the bounds are
  // left to sweep().
  void drop(std::string id, RemovalBounds& bounds) REQUIRES(mutex_);
  // Removes a document whose large body drop() has left; adds its bytes to `wiped`.
  bool wipe(const std::string& id, std::size_t& wiped) REQUIRES(mutex_);
  // Adds bytes to an owner's when the transaction is done.
  void count(const std::string& owner, std::int64_t bytes) REQUIRES(mutex_);

  const std::filesystem::path directory_;
  const Clock& clock_;
  const Options options_;
  const Time began_;
  mutable Mutex mutex_;
  std::unique_ptr<SqliteConnection> connection_ GUARDED_BY(mutex_);  // null: there is no file yet
  std::unique_ptr<Statements> statements_ GUARDED_BY(mutex_);
  std::unique_ptr<StorageFile> reserve_ GUARDED_BY(mutex_);  // null with connection_
  std::size_t reserved_ GUARDED_BY(mutex_) = 0;              // its bytes
  bool is_log_known_ GUARDED_BY(mutex_) = false;             // it was emptied since it was opened
  Health health_ GUARDED_BY(mutex_);
  // Bytes by owner, if they are bounded; and their changes by the open transaction.
  std::map<std::string, std::int64_t> bytes_of_ GUARDED_BY(mutex_), changes_ GUARDED_BY(mutex_);
  std::optional<Secret> secret_ GUARDED_BY(mutex_);
  std::string process_ GUARDED_BY(mutex_);       // this one
  std::string listed_until_ GUARDED_BY(mutex_);  // of the unfinished, in this round
};

}  // namespace lintel
