// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/storage/sqlite/sqlite_documents.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
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
constexpr std::size_t kPageBytes = 4096;
// Bytes of a document's rows and of the pages around them, in a transaction.
constexpr std::size_t kBytesAround = std::size_t{256} << 10;
constexpr std::size_t kSweptBytes = std::size_t{16} << 20;  // of bodies at a time, or one

// Values of the column `hidden`: shown; removed, but others continue it; removed, and its body is
// still to be emptied.
constexpr std::int64_t kShown = 0, kHidden = 1, kDropped = 2;

// Bodies are in a table of their own: other changes of a document do not write them again.
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

// Also made if it is missing: older databases of the same version have none.
constexpr char kUnfinishedTable[] = R"(
CREATE TABLE IF NOT EXISTS unfinished(id BLOB PRIMARY KEY, owner BLOB NOT NULL,
  runner BLOB NOT NULL) WITHOUT ROWID;
)";

std::int64_t document_micros(DocumentStorage::Time time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
}

// The hash of a row and its body, except for fields that change without them.
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

// Runs `step`, and classifies its failure.
template <typename Step, typename Broken, typename Full>
SessionError outcome_of(const Step& step, const Broken& broken, const Full& full) {
  try {
    return step();
  } catch (const std::bad_alloc&) {
    return SessionError::kStoreAway;
  } catch (const SqliteError& error) {
    if (error.code() == SQLITE_NOMEM) return SessionError::kStoreAway;
    return error.code() == SQLITE_FULL ? full(error.what()) : broken(error.what());
  } catch (const std::system_error& error) {
    return is_want_of_room(error) ? full(error.what()) : broken(error.what());
  } catch (const StorageError& error) {
    return broken(error.what());
  }
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
        dropped(connection, "SELECT id FROM document WHERE expires=? AND hidden=2 LIMIT ?"),
        // They have expired then, so a sweep finds them.
        let_go(connection, "UPDATE document SET expires=0 WHERE id=?"),
        leave_body(connection, "UPDATE document SET hidden=2, parent=x'', expires=0 WHERE id=?"),
        body_row(connection, "SELECT rowid, length(body) FROM body WHERE id=?"),
        keep(connection, "UPDATE document SET expires=max(expires,?) WHERE id=?"),
        child(connection, "SELECT 1 FROM document WHERE parent=? AND parent<>x'' LIMIT 1"),
        expired(
            connection,
            "SELECT id FROM document AS d WHERE expires<=? AND hidden<>2 AND NOT EXISTS(SELECT 1 "
            "FROM document AS c WHERE c.parent=d.id AND c.parent<>x'') LIMIT ?"),
        unfinished(connection,
                   "SELECT id, owner, runner FROM unfinished WHERE id>? ORDER BY id LIMIT ?"),
        begin(connection, "REPLACE INTO unfinished VALUES(?,?,?)"),
        settle(connection, "DELETE FROM unfinished WHERE id=?") {}

  SqliteStatement find, find_body, store, store_body, remove, remove_body, hide, dropped, let_go,
      leave_body, body_row, keep, child, expired, unfinished, begin, settle;
};

SqliteDocuments::SqliteDocuments(std::filesystem::path directory, const Clock& clock,
                                 Options options)
    : directory_(std::move(directory)),
      clock_(clock),
      options_(std::move(options)),
      began_(clock.wall_time()) {
  const MutexLock lock(mutex_);
  if (!SqliteConnection::exists(directory_ / "documents.db", options_.sqlite_vfs)) return;
  const auto fail = [this](const std::string& why) {
    throw StorageError("session store " + directory_.string() + ": documents.db: " + why);
  };
  try {
    open();
  } catch (const SqliteError& error) {
    fail(error.what());
  } catch (const std::system_error& error) {
    fail(error.what());
  }
  if (health_.state == Health::State::kBroken) fail(health_.why);
}

SqliteDocuments::~SqliteDocuments() {
  const MutexLock lock(mutex_);
  if (connection_ != nullptr && health_.state != Health::State::kBroken) {
    empty_log(/*cuts_log=*/false);
  }
  statements_ = nullptr;
}

void SqliteDocuments::open() {
  if (connection_ != nullptr) return;
  const std::filesystem::path file = directory_ / "documents.db";
  options_.open_file(file);  // sets its permissions
  auto connection = std::make_unique<SqliteConnection>(file, options_.sqlite_vfs);
  std::unique_ptr<StorageFile> reserve;
  std::unique_ptr<Statements> statements;
  std::map<std::string, std::int64_t> bytes_of;
  try {
    const std::int64_t application = connection->number("PRAGMA application_id");
    const std::int64_t version = connection->number("PRAGMA user_version");
    if (application == 0 && connection->number("SELECT count(*) FROM sqlite_schema") == 0) {
      connection->run(kDocumentTables);
    } else if (application != kDocumentsApplication || version != kDocumentsVersion) {
      throw StorageError("session store " + directory_.string() +
                         ": documents.db is of something else, or of another version");
    }
    connection->run(kUnfinishedTable);
    if (options_.owner_bytes > 0) {
      SqliteStatement each(*connection,
                           "SELECT d.owner, length(b.body) FROM document AS d JOIN body AS b ON "
                           "b.id=d.id WHERE d.hidden<>2");
      while (each.step()) {
        bytes_of[each.text(0)] += each.number(1) + std::int64_t{kDocumentBytes};
      }
    }
    statements = std::make_unique<Statements>(*connection);
    reserve = options_.open_file(directory_ / "documents.reserve");
  } catch (...) {
    connection->leave_alone();  // unchanged, as found or as a failed write left it
    throw;
  }
  bytes_of_ = std::move(bytes_of);
  statements_ = std::move(statements);
  connection_ = std::move(connection);
  reserve_ = std::move(reserve);
  // The present size; larger if the process was killed while it stored a large document.
  constexpr std::size_t kStep = std::size_t{64} << 10;
  std::byte last{};
  while (reserved_ < options_.reserve_bytes &&
         reserve_->read(reserved_ + kStep - 1, std::span(&last, 1), {}) == 1) {
    reserved_ += kStep;
  }
  cut_reserve(reserved_);
  empty_log(/*cuts_log=*/false);
  make_reserve(options_.reserve_bytes);
}

SessionError SqliteDocuments::break_off(const std::string& why) {
  health_ = {Health::State::kBroken, why};
  if (connection_ != nullptr) connection_->leave_alone();
  return SessionError::kStoreBroken;
}

void SqliteDocuments::note_full(const std::string& why) {
  if (health_.state == Health::State::kOk) health_ = {Health::State::kFull, why};
}

SqliteDocuments::Health SqliteDocuments::health() const {
  const MutexLock lock(mutex_);
  return health_;
}

SessionError SqliteDocuments::prepare() {
  if (health_.state == Health::State::kBroken) return SessionError::kStoreBroken;
  const SessionError error = outcome_of(
      [&]() REQUIRES(mutex_) {
        open();
        return SessionError::kNone;
      },
      [&](const char* why) REQUIRES(mutex_) { return break_off(why); },
      [&](const char* why) REQUIRES(mutex_) {
        note_full(why);
        return SessionError::kStoreFull;
      });
  const bool is_broken = health_.state == Health::State::kBroken;
  return is_broken ? SessionError::kStoreBroken : error;
}

template <typename Body>
SessionError SqliteDocuments::transact(const Body& body) {
  if (health_.state == Health::State::kBroken) return SessionError::kStoreBroken;
  changes_.clear();
  const SessionError error = outcome_of(
      [&]() REQUIRES(mutex_) {
        connection_->run("BEGIN IMMEDIATE");
        const SessionError wrong = body();
        if (wrong == SessionError::kNone) connection_->run("COMMIT");
        return wrong;
      },
      [&](const char* why) REQUIRES(mutex_) { return break_off(why); },
      [&](const char* why) REQUIRES(mutex_) {
        note_full(why);
        return SessionError::kStoreFull;
      });
  if (error != SessionError::kNone) {
    connection_->roll_back();
    return error;
  }
  for (const auto& [owner, bytes] : changes_) {
    std::int64_t& of_owner = bytes_of_[owner];
    of_owner += bytes;
    if (of_owner <= 0) bytes_of_.erase(owner);
  }
  return error;
}

bool SqliteDocuments::is_log_beyond(std::size_t bytes) const {
  return !is_log_known_ || connection_->log_bytes() > bytes;
}

bool SqliteDocuments::empty_log(bool cuts_log) {
  const auto checkpoint = [&](bool cuts) REQUIRES(mutex_) {
    if (health_.state == Health::State::kBroken) return false;
    const SessionError error = outcome_of(
        [&]() REQUIRES(mutex_) {
          connection_->checkpoint(cuts);
          is_log_known_ = true;
          return SessionError::kNone;
        },
        [&](const char* why) REQUIRES(mutex_) { return break_off(why); },
        [](const char*) { return SessionError::kStoreFull; });
    return error == SessionError::kNone;
  };
  if (checkpoint(cuts_log)) return true;
  cut_reserve(0);
  const bool is_emptied = checkpoint(/*cuts=*/true);
  make_reserve(options_.reserve_bytes);
  if (!is_emptied) note_full("there is no room to move the log into the database");
  return is_emptied;
}

bool SqliteDocuments::make_reserve(std::size_t bytes) {
  if (health_.state == Health::State::kBroken) return false;
  // Its pieces are whole, so that a part of it can be found again.
  constexpr std::size_t kStep = std::size_t{64} << 10;
  try {
    for (; reserved_ < bytes; reserved_ += kStep) {
      take_room(*reserve_, reserved_, reserved_ + kStep);
    }
    return true;
  } catch (const std::system_error& error) {
    if (!is_want_of_room(error)) break_off(error.what());
    cut_reserve(reserved_);
  }
  return false;
}

void SqliteDocuments::cut_reserve(std::size_t bytes) {
  reserved_ = std::min(reserved_, bytes);
  try {
    reserve_->cut(reserved_);
  } catch (const std::system_error&) {  // the rest of it is overwritten
  }
}

template <typename Body>
SessionError SqliteDocuments::add(std::size_t bytes, const Body& body) {
  if (const SessionError error = prepare(); error != SessionError::kNone) return error;
  // Bytes in the log: each page has a header.
  const std::size_t needed = bytes + bytes / 64 + kBytesAround;
  const std::size_t reserve = std::max(options_.reserve_bytes, needed + kBytesAround);
  const std::size_t most_before = options_.log_bytes - std::min(needed, options_.log_bytes);
  SessionError error = SessionError::kStoreFull;
  // The database has room for the whole log afterwards, with the reserve if necessary.
  if ((!is_log_beyond(most_before) || empty_log(/*cuts_log=*/false)) && make_reserve(reserve)) {
    error = transact(body);
  }
  const bool is_full = error == SessionError::kStoreFull && empty_log(/*cuts_log=*/true);
  if (is_full) {
    // Removed documents may have left so much room that the database does not grow.
    const bool has_room_within = free_bytes() >= needed;
    if (has_room_within) cut_reserve(0);
    if (has_room_within || make_reserve(reserve)) error = transact(body);
  }
  if (error == SessionError::kNone && health_.state == Health::State::kFull) health_ = {};
  if (error == SessionError::kStoreFull) note_full("there is no room on the disk");
  // The write is durable even if the log cannot be emptied.
  if (is_full || is_log_beyond(options_.log_bytes)) {
    empty_log(/*cuts_log=*/is_full);
    make_reserve(options_.reserve_bytes);
  }
  cut_reserve(options_.reserve_bytes);
  const bool is_broken = health_.state == Health::State::kBroken;
  return is_broken && error != SessionError::kNone ? SessionError::kStoreBroken : error;
}

template <typename Body>
SessionError SqliteDocuments::take_away(const Body& body) {
  if (const SessionError error = prepare(); error != SessionError::kNone) return error;
  SessionError error = transact(body);
  const bool is_full = error == SessionError::kStoreFull;
  if (is_full) {
    empty_log(/*cuts_log=*/true);
    error = transact(body);
    for (const std::size_t left : {reserved_ / 4 * 3, std::size_t{0}}) {
      if (error != SessionError::kStoreFull) break;
      cut_reserve(left);
      error = transact(body);
    }
  }
  if (is_full || is_log_beyond(options_.log_bytes)) {
    empty_log(/*cuts_log=*/is_full);
    make_reserve(options_.reserve_bytes);
  }
  return error;
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

std::size_t SqliteDocuments::free_bytes() {
  std::size_t bytes = 0;
  outcome_of(
      [&]() REQUIRES(mutex_) {
        bytes = static_cast<std::size_t>(connection_->number("PRAGMA freelist_count")) * kPageBytes;
        return SessionError::kNone;
      },
      [](const char*) { return SessionError::kStoreAway; },
      [](const char*) { return SessionError::kStoreAway; });
  return bytes;
}

std::size_t SqliteDocuments::body_bytes(const std::string& id) {
  SqliteStatement& row = statements_->body_row;
  const std::int64_t bytes = row.with(id).step() ? row.number(1) : 0;
  row.reset();
  return static_cast<std::size_t>(bytes);
}

void SqliteDocuments::count(const std::string& owner, std::int64_t bytes) {
  if (options_.owner_bytes > 0) changes_[owner] += bytes;
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
  if (const SessionError error = prepare(); error != SessionError::kNone) return error;
  std::size_t bytes_before = 0;
  const SessionError asked = read([&]() REQUIRES(mutex_) {
    bytes_before = body_bytes(next.id);
    return SessionError::kNone;
  });
  if (asked != SessionError::kNone) return asked;
  const SessionError error = add(next.body.size() + bytes_before, [&]() REQUIRES(mutex_) {
    SqliteStatement& find = statements_->find;
    const bool is_there = find.with(document.id).step() && find.number(3) != kDropped;
    const std::int64_t version = is_there ? find.number(2) : 0;
    const bool is_ours = !is_there || find.text(0) == document.owner;
    next.is_hidden = is_there && find.number(3) == kHidden;
    find.reset();
    if (version != document.version || !is_ours) return SessionError::kFenced;
    auto more = static_cast<std::int64_t>(next.body.size() + kDocumentBytes);
    if (is_there) {
      more -= static_cast<std::int64_t>(bytes_before + kDocumentBytes);
    } else if (options_.owner_bytes > 0) {
      const auto of_owner = bytes_of_.find(next.owner);
      const std::int64_t now = of_owner == bytes_of_.end() ? 0 : of_owner->second;
      if (static_cast<std::uint64_t>(now + more) > options_.owner_bytes) {
        return SessionError::kOwnerOutOfMemory;
      }
    }
    count(next.owner, more);
    const std::int64_t expires = document_micros(next.expires);
    if (!is_there && !next.parent.empty()) {
      const bool has_parent =
          find.with(next.parent).step() && find.text(0) == next.owner && find.number(3) == kShown;
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
    if (!find.with(id).step() || find.text(0) != owner || find.number(3) == kDropped) {
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
  return take_away([&]() REQUIRES(mutex_) {
    SqliteStatement& find = statements_->find;
    const bool is_there = find.with(id).step() && find.text(0) == owner && find.number(3) == kShown;
    find.reset();
    if (!is_there) return SessionError::kNotFound;
    if (is_continued(id)) {
      statements_->hide.with(id).run();
    } else {
      RemovalBounds bounds{.bytes = options_.piece_bytes};
      drop(id, bounds);
    }
    return SessionError::kNone;
  });
}

void SqliteDocuments::drop(std::string id, RemovalBounds& bounds) {
  while (true) {
    SqliteStatement& find = statements_->find;
    std::string owner, parent;
    if (find.with(id).step()) {
      owner = find.text(0);
      parent = find.text(1);
    }
    find.reset();
    const std::size_t bytes = body_bytes(id);
    count(owner, -static_cast<std::int64_t>(bytes + kDocumentBytes));
    if (bytes > bounds.bytes) {
      statements_->leave_body.with(id).run();
    } else {
      bounds.bytes -= bytes;
      statements_->remove.with(id).run();
      statements_->remove_body.with(id).run();
    }
    statements_->settle.with(id).run();
    if (bounds.documents > 0) --bounds.documents;
    if (parent.empty() || is_continued(parent)) return;
    const bool is_hidden = find.with(parent).step() && find.number(3) == kHidden;
    find.reset();
    if (!is_hidden) return;
    if (bounds.documents == 0) return statements_->let_go.with(parent).run();
    id = std::move(parent);
  }
}

bool SqliteDocuments::wipe(const std::string& id, std::size_t& wiped) {
  std::int64_t row = 0, bytes = 0;
  const SessionError found = read([&]() REQUIRES(mutex_) {
    SqliteStatement& body = statements_->body_row;
    if (body.with(id).step()) {
      row = body.number(0);
      bytes = body.number(1);
    }
    body.reset();
    return SessionError::kNone;
  });
  if (found != SessionError::kNone) return false;
  const auto piece = static_cast<std::int64_t>(options_.piece_bytes);
  for (std::int64_t at = 0; at < bytes; at += piece) {
    const SessionError emptied = take_away([&]() REQUIRES(mutex_) {
      connection_->zero_blob("body", "body", row, at, std::min(piece, bytes - at));
      return SessionError::kNone;
    });
    if (emptied != SessionError::kNone) return false;
    wiped += options_.piece_bytes;
  }
  const SessionError removed = take_away([&]() REQUIRES(mutex_) {
    // Its pages are zeros: they are freed without being written again.
    connection_->run("PRAGMA secure_delete=FAST");
    statements_->remove.with(id).run();
    statements_->remove_body.with(id).run();
    return SessionError::kNone;
  });
  outcome_of(
      [&]() REQUIRES(mutex_) {
        connection_->run("PRAGMA secure_delete=ON");
        return SessionError::kNone;
      },
      [&](const char* why) REQUIRES(mutex_) { return break_off(why); },
      [](const char*) { return SessionError::kNone; });
  return removed == SessionError::kNone;
}

std::size_t SqliteDocuments::sweep(std::size_t most) {
  const MutexLock lock(mutex_);
  if (connection_ == nullptr || health_.state == Health::State::kBroken) return 0;
  std::size_t swept = 0;
  const auto list = [&](SqliteStatement& some, std::int64_t until, std::size_t count)
                        REQUIRES(mutex_) {
                          std::vector<std::string> ids;
                          read([&]() REQUIRES(mutex_) {
                            some.with(until, static_cast<std::int64_t>(count));
                            while (some.step()) ids.push_back(some.text(0));
                            some.reset();
                            return SessionError::kNone;
                          });
                          return ids;
                        };
  // Bodies are removed first: they take most room.
  std::size_t bytes = 0;
  for (const std::string& id : list(statements_->dropped, 0, most)) {
    if (bytes >= kSweptBytes || !wipe(id, bytes)) return swept;
    ++swept;
  }
  while (swept < most && bytes < kSweptBytes) {
    const std::vector<std::string> ids =
        list(statements_->expired, document_micros(clock_.wall_time()),
             std::min(most - swept, RemovalBounds().documents));
    std::size_t taken = 0;
    const SessionError error = take_away([&]() REQUIRES(mutex_) {
      RemovalBounds bounds{.bytes = options_.piece_bytes};
      taken = 0;
      for (const std::string& id : ids) {
        if (taken > 0 && body_bytes(id) > bounds.bytes) break;
        drop(id, bounds);
        ++taken;
      }
      return SessionError::kNone;
    });
    if (error != SessionError::kNone || taken == 0) break;
    swept += taken;
    bytes += options_.piece_bytes;
  }
  return swept;
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
  take_away([&]() REQUIRES(mutex_) {
    statements_->settle.with(id).run();
    return SessionError::kNone;
  });
}

SessionError SqliteDocuments::secret(Secret& secret) {
  const MutexLock lock(mutex_);
  if (!secret_) {
    try {
      const std::unique_ptr<StorageFile> file = options_.open_file(directory_ / "documents.key");
      Secret bytes{};
      if (file->read(0, bytes, {}) != bytes.size()) {
        fill_with_random(bytes);
        file->write(0, bytes, {});
        file->sync();
      }
      secret_ = bytes;
    } catch (const std::system_error& error) {
      return is_want_of_room(error) ? SessionError::kStoreFull : SessionError::kStoreAway;
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
