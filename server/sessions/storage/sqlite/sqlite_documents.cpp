// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/storage/sqlite/sqlite_documents.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "server/core/random_bytes.h"
#include "server/sessions/digest.h"
#include "server/sessions/storage/sqlite/storage_file.h"

namespace lintel {
namespace {

constexpr std::int64_t kDocumentsApplication = 0x4C4E5444;  // "LNTD"
constexpr std::int64_t kDocumentsVersion = 1;
constexpr std::size_t kDocumentsLogBytes = std::size_t{8} << 20;

// Bodies lie apart: what else changes of a document does not write them again.
constexpr char kDocumentTables[] = R"(
BEGIN;
CREATE TABLE document(id BLOB PRIMARY KEY, owner BLOB NOT NULL, parent BLOB NOT NULL,
  version INTEGER NOT NULL, hidden INTEGER NOT NULL, expires INTEGER NOT NULL,
  hash BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX document_by_parent ON document(parent) WHERE parent<>x'';
CREATE INDEX document_by_expiry ON document(expires);
CREATE TABLE body(id BLOB PRIMARY KEY, body BLOB NOT NULL);
PRAGMA application_id=1280201796;
PRAGMA user_version=1;
COMMIT;
)";

// Made where it lacks, too: databases of the same version had none.
constexpr char kUnfinishedTable[] = R"(
CREATE TABLE IF NOT EXISTS unfinished(id BLOB PRIMARY KEY, owner BLOB NOT NULL,
  runner BLOB NOT NULL) WITHOUT ROWID;
)";

std::int64_t document_micros(DocumentStorage::Time time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
}

// Of all that a row and its body say, but for what changes without them.
std::string hash_of_document(const Document& document) {
  std::string text;
  const std::string version = std::to_string(document.version);
  for (const std::string* const each :
       {&document.id, &document.owner, &document.parent, &version, &document.body}) {
    text += std::to_string(each->size()) + ":" + *each;
  }
  const Digest digest = digest_of(std::as_bytes(std::span(text)));
  return {reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size()};
}

}  // namespace

struct SqliteDocuments::Statements {
  explicit Statements(SqliteConnection& connection)
      : find(connection,
             "SELECT owner, parent, version, hidden, expires, hash FROM document WHERE id=?"),
        find_body(connection, "SELECT body FROM body WHERE id=?"),
        store(connection, "REPLACE INTO document VALUES(?,?,?,?,?,?,?)"),
        store_body(connection, "REPLACE INTO body VALUES(?,?)"),
        remove(connection, "DELETE FROM document WHERE id=?"),
        remove_body(connection, "DELETE FROM body WHERE id=?"),
        hide(connection, "UPDATE document SET hidden=1 WHERE id=?"),
        keep(connection, "UPDATE document SET expires=max(expires,?) WHERE id=?"),
        child(connection, "SELECT 1 FROM document WHERE parent=? AND parent<>x'' LIMIT 1"),
        expired(connection,
                "SELECT id FROM document AS d WHERE expires<=? AND NOT EXISTS(SELECT 1 FROM "
                "document AS c WHERE c.parent=d.id AND c.parent<>x'') LIMIT ?"),
        unfinished(connection,
                   "SELECT id, owner, runner FROM unfinished WHERE id>? ORDER BY id LIMIT ?"),
        begin(connection, "REPLACE INTO unfinished VALUES(?,?,?)"),
        settle(connection, "DELETE FROM unfinished WHERE id=?") {}

  SqliteStatement find, find_body, store, store_body, remove, remove_body, hide, keep, child,
      expired, unfinished, begin, settle;
};

SqliteDocuments::SqliteDocuments(std::filesystem::path directory, const Clock& clock)
    : directory_(std::move(directory)), clock_(clock), began_(clock.wall_time()) {
  const MutexLock lock(mutex_);
  if (std::filesystem::exists(directory_ / "documents.db")) open();
}

SqliteDocuments::~SqliteDocuments() {
  const MutexLock lock(mutex_);
  statements_ = nullptr;
  if (connection_ == nullptr) return;
  if (is_broken_) {
    connection_->leave_alone();
    return;
  }
  try {
    connection_->checkpoint();
  } catch (const SqliteError&) {  // it stands in the log
  }
}

void SqliteDocuments::open() {
  if (connection_ != nullptr) return;
  const std::filesystem::path file = directory_ / "documents.db";
  try {
    open_storage_file(file);  // with its permissions
    auto connection = std::make_unique<SqliteConnection>(file, "");
    const std::int64_t application = connection->number("PRAGMA application_id");
    const std::int64_t version = connection->number("PRAGMA user_version");
    if (application == 0 && connection->number("SELECT count(*) FROM sqlite_schema") == 0) {
      connection->run(kDocumentTables);
    } else if (application != kDocumentsApplication || version != kDocumentsVersion) {
      connection->leave_alone();
      throw StorageError("session store " + directory_.string() +
                         ": documents.db is of something else, or of another version");
    }
    connection->run(kUnfinishedTable);
    statements_ = std::make_unique<Statements>(*connection);
    connection_ = std::move(connection);
  } catch (const SqliteError& error) {
    throw StorageError("session store " + directory_.string() + ": documents.db: " + error.what());
  }
}

template <typename Body>
SessionError SqliteDocuments::transact(const Body& body) {
  if (is_broken_) return SessionError::kStoreBroken;
  try {
    open();
    connection_->run("BEGIN IMMEDIATE");
    const SessionError error = body();
    if (error != SessionError::kNone) {
      connection_->roll_back();
      return error;
    }
    connection_->run("COMMIT");
    if (connection_->log_bytes() > kDocumentsLogBytes) connection_->checkpoint();
    return SessionError::kNone;
  } catch (const std::bad_alloc&) {
    connection_->roll_back();
    return SessionError::kStoreAway;
  } catch (const SqliteError& error) {
    connection_->roll_back();
    if (error.code() == SQLITE_FULL) return SessionError::kStoreFull;
    if (error.code() == SQLITE_NOMEM) return SessionError::kStoreAway;
  } catch (const StorageError&) {
  } catch (const std::system_error&) {
  }
  is_broken_ = connection_ != nullptr;
  return is_broken_ ? SessionError::kStoreBroken : SessionError::kStoreFull;
}

template <typename Body>
SessionError SqliteDocuments::read(const Body& body) {
  if (connection_ == nullptr) return SessionError::kNotFound;
  try {
    return body();
  } catch (const SqliteError& error) {
    const bool is_damaged = error.code() == SQLITE_CORRUPT || error.code() == SQLITE_NOTADB;
    return is_damaged ? SessionError::kDamaged : SessionError::kStoreAway;
  }
}

bool SqliteDocuments::is_continued(const std::string& id) {
  const bool found = statements_->child.with(id).step();
  statements_->child.reset();
  return found;
}

SessionError SqliteDocuments::put(Document& document) {
  const MutexLock lock(mutex_);
  Document next = document;
  ++next.version;
  const SessionError error = transact([&]() REQUIRES(mutex_) {
    SqliteStatement& find = statements_->find;
    const bool is_there = find.with(document.id).step();
    const std::int64_t version = is_there ? find.number(2) : 0;
    const bool is_ours = !is_there || find.text(0) == document.owner;
    next.is_hidden = is_there && find.number(3) != 0;
    find.reset();
    if (version != document.version || !is_ours) return SessionError::kFenced;
    const std::int64_t expires = document_micros(next.expires);
    if (!is_there && !next.parent.empty()) {
      const bool has_parent =
          find.with(next.parent).step() && find.text(0) == next.owner && find.number(3) == 0;
      find.reset();
      if (!has_parent) return SessionError::kNotFound;
      statements_->keep.with(expires, next.parent).run();
    }
    statements_->store
        .with(next.id, next.owner, next.parent, next.version, std::int64_t{next.is_hidden}, expires,
              hash_of_document(next))
        .run();
    statements_->store_body.with(next.id, next.body).run();
    if (!next.runner.empty()) {
      statements_->begin.with(next.id, next.owner, next.runner).run();
    } else if (is_there) {
      statements_->settle.with(next.id).run();
    }
    return SessionError::kNone;
  });
  if (error == SessionError::kNone) document = std::move(next);
  return error;
}

SessionError SqliteDocuments::find(const std::string& id, const std::string& owner,
                                   std::optional<Time>, Document& found) {
  const MutexLock lock(mutex_);
  return read([&]() REQUIRES(mutex_) {
    SqliteStatement& find = statements_->find;
    if (!find.with(id).step() || find.text(0) != owner) {
      find.reset();
      return SessionError::kNotFound;
    }
    Document document{.id = id, .owner = owner, .parent = find.text(1)};
    document.version = find.number(2);
    document.is_hidden = find.number(3) != 0;
    document.expires = Time(std::chrono::microseconds(find.number(4)));
    const std::string hash = find.text(5);
    find.reset();
    if (document.expires <= clock_.wall_time() && !is_continued(id)) {
      return SessionError::kNotFound;
    }
    SqliteStatement& body = statements_->find_body;
    if (body.with(id).step()) document.body = body.text(0);
    body.reset();
    if (hash_of_document(document) != hash) return SessionError::kDamaged;
    found = std::move(document);
    return SessionError::kNone;
  });
}

SessionError SqliteDocuments::remove(const std::string& id, const std::string& owner) {
  const MutexLock lock(mutex_);
  if (connection_ == nullptr) return SessionError::kNotFound;
  return transact([&]() REQUIRES(mutex_) {
    SqliteStatement& find = statements_->find;
    const bool is_there = find.with(id).step() && find.text(0) == owner && find.number(3) == 0;
    find.reset();
    if (!is_there) return SessionError::kNotFound;
    if (is_continued(id)) {
      statements_->hide.with(id).run();
    } else {
      drop(id);
    }
    return SessionError::kNone;
  });
}

void SqliteDocuments::drop(std::string id) {
  while (true) {
    SqliteStatement& find = statements_->find;
    std::string parent;
    if (find.with(id).step()) parent = find.text(1);
    find.reset();
    statements_->remove.with(id).run();
    statements_->remove_body.with(id).run();
    statements_->settle.with(id).run();
    if (parent.empty() || is_continued(parent)) return;
    const bool is_hidden = find.with(parent).step() && find.number(3) != 0;
    find.reset();
    if (!is_hidden) return;
    id = std::move(parent);
  }
}

std::size_t SqliteDocuments::sweep(std::size_t most) {
  const MutexLock lock(mutex_);
  if (connection_ == nullptr || is_broken_) return 0;
  std::vector<std::string> ids;
  read([&]() REQUIRES(mutex_) {
    SqliteStatement& expired = statements_->expired;
    expired.with(document_micros(clock_.wall_time()), static_cast<std::int64_t>(most));
    while (expired.step()) ids.push_back(expired.text(0));
    expired.reset();
    return SessionError::kNone;
  });
  if (ids.empty()) return 0;
  const SessionError error = transact([&]() REQUIRES(mutex_) {
    for (const std::string& id : ids) drop(id);
    return SessionError::kNone;
  });
  return error == SessionError::kNone ? ids.size() : 0;
}

std::vector<DocumentStorage::Unfinished> SqliteDocuments::unfinished(std::size_t most) {
  const MutexLock lock(mutex_);
  std::vector<Unfinished> found;
  read([&]() REQUIRES(mutex_) {
    SqliteStatement& rows = statements_->unfinished;
    rows.with(listed_until_, static_cast<std::int64_t>(most));
    while (rows.step()) found.push_back({rows.text(0), rows.text(1), rows.text(2)});
    rows.reset();
    return SessionError::kNone;
  });
  listed_until_ = found.size() < most ? "" : found.back().id;
  return found;
}

void SqliteDocuments::settle(const std::string& id) {
  const MutexLock lock(mutex_);
  if (connection_ == nullptr) return;
  transact([&]() REQUIRES(mutex_) {
    statements_->settle.with(id).run();
    return SessionError::kNone;
  });
}

SessionError SqliteDocuments::secret(Secret& secret) {
  const MutexLock lock(mutex_);
  if (!secret_) {
    try {
      const std::unique_ptr<StorageFile> file = open_storage_file(directory_ / "documents.key");
      Secret bytes{};
      if (file->read(0, bytes, {}) != bytes.size()) {
        fill_with_random(bytes);
        file->write(0, bytes, {});
        file->sync();
      }
      secret_ = bytes;
    } catch (const std::system_error& error) {
      return error.code().value() == ENOSPC ? SessionError::kStoreFull : SessionError::kStoreAway;
    }
  }
  secret = *secret_;
  return SessionError::kNone;
}

void SqliteDocuments::note_alive(const std::string& process) {
  const MutexLock lock(mutex_);
  process_ = process;
}

std::optional<DocumentStorage::Time> SqliteDocuments::last_seen(const std::string& process) {
  const MutexLock lock(mutex_);
  return process == process_ ? clock_.wall_time() : began_;
}

}  // namespace lintel
