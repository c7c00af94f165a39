// SPDX-License-Identifier: Apache-2.0
// SqliteDocuments: documents in a directory that a SqliteStorage has. docs/session_storage.md
// describes the files.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/core/clock.h"
#include "server/core/mutex.h"
#include "server/sessions/storage/document_storage.h"
#include "server/sessions/storage/sqlite/sqlite_connection.h"

namespace lintel {

// A database of its own, made when the first document is stored. Each write is a transaction, on
// the disk when it returns. After a failed one, whose effect is unknown, nothing more is written
// until the storage is reopened (kStoreBroken).
class SqliteDocuments final : public DocumentStorage {
 public:
  // The directory is this process's. Throws StorageError for a file that is none of it. `clock`
  // outlives it.
  SqliteDocuments(std::filesystem::path directory, const Clock& clock);
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
  // No other process writes here: one that is not this one was there before this one began.
  void note_alive(const std::string& process) override EXCLUDES(mutex_);
  std::optional<Time> last_seen(const std::string& process) override EXCLUDES(mutex_);

 private:
  struct Statements;

  // Opens the database, or makes it.
  void open() REQUIRES(mutex_);
  // Runs `body` as one transaction, which is taken back where it does not return kNone.
  template <typename Body>
  SessionError transact(const Body& body) REQUIRES(mutex_);
  template <typename Body>
  SessionError read(const Body& body) REQUIRES(mutex_);
  bool is_continued(const std::string& id) REQUIRES(mutex_);
  // With hidden ones that only this one continued.
  void drop(std::string id) REQUIRES(mutex_);

  const std::filesystem::path directory_;
  const Clock& clock_;
  const Time began_;
  Mutex mutex_;
  std::unique_ptr<SqliteConnection> connection_ GUARDED_BY(mutex_);  // null: there is no file yet
  std::unique_ptr<Statements> statements_ GUARDED_BY(mutex_);
  bool is_broken_ GUARDED_BY(mutex_) = false;
  std::optional<Secret> secret_ GUARDED_BY(mutex_);
  std::string process_ GUARDED_BY(mutex_);       // this one
  std::string listed_until_ GUARDED_BY(mutex_);  // of the unfinished, in this round
};

}  // namespace lintel
