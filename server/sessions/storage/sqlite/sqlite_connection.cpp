// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/storage/sqlite/sqlite_connection.h"

namespace lintel {

SqliteConnection::SqliteConnection(const std::filesystem::path& file, const std::string& vfs) {
  const int opened = sqlite3_open_v2(
      file.c_str(), &database_,
      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_NOFOLLOW,
      vfs.empty() ? nullptr : vfs.c_str());
  try {
    if (opened != SQLITE_OK) fail("open");
    sqlite3_extended_result_codes(database_, 1);
    // EXCLUSIVE before anything is read: the log's index is then in this process's memory, and no
    // second connection can get in. The caller chooses the times of checkpoints.
    constexpr char kSettings[] =
        "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
        "PRAGMA wal_autocheckpoint=0; PRAGMA mmap_size=0; PRAGMA cell_size_check=ON;"
        "PRAGMA secure_delete=ON; PRAGMA cache_size=-32768; PRAGMA temp_store=MEMORY;"
        "PRAGMA trusted_schema=OFF";
    // The first statement that reads the file: an error in the file appears here.
    if (sqlite3_exec(database_, kSettings, nullptr, nullptr, nullptr) != SQLITE_OK) {
      fail(file.filename().c_str());
    }
  } catch (...) {
    sqlite3_close(database_);
    throw;
  }
  sqlite3_wal_hook(database_, on_commit, this);
}

SqliteConnection::~SqliteConnection() { sqlite3_close(database_); }

int SqliteConnection::on_commit(void* self, sqlite3*, const char*, int pages) {
  static_cast<SqliteConnection*>(self)->log_pages_ = pages;
  return SQLITE_OK;
}

void SqliteConnection::fail(const char* doing) const {
  throw SqliteError(sqlite3_extended_errcode(database_),
                    std::string(doing) + ": " + sqlite3_errmsg(database_));
}

void SqliteConnection::run(const char* sql) {
  if (sqlite3_exec(database_, sql, nullptr, nullptr, nullptr) != SQLITE_OK) fail(sql);
}

std::int64_t SqliteConnection::number(const char* sql) {
  SqliteStatement statement(*this, sql);
  return statement.step() ? statement.number(0) : 0;
}

bool SqliteConnection::exists(const std::filesystem::path& file, const std::string& vfs) {
  sqlite3_vfs* const found = sqlite3_vfs_find(vfs.empty() ? nullptr : vfs.c_str());
  int is_there = 0;
  return found != nullptr &&
         found->xAccess(found, file.c_str(), SQLITE_ACCESS_EXISTS, &is_there) == SQLITE_OK &&
         is_there != 0;
}

void SqliteConnection::zero_blob(const char* table, const char* column, std::int64_t row,
                                 std::int64_t offset, std::int64_t bytes) {
  sqlite3_blob* blob = nullptr;
  if (sqlite3_blob_open(database_, "main", table, column, row, /*flags=*/1, &blob) != SQLITE_OK) {
    fail("open a blob");
  }
  const std::string zeros(static_cast<std::size_t>(bytes), '\0');
  const int written = sqlite3_blob_write(blob, zeros.data(), static_cast<int>(zeros.size()),
                                         static_cast<int>(offset));
  const int closed = sqlite3_blob_close(blob);
  if (written != SQLITE_OK || closed != SQLITE_OK) fail("write a blob");
}

void SqliteConnection::roll_back() noexcept {
  if (sqlite3_get_autocommit(database_) == 0) {
    sqlite3_exec(database_, "ROLLBACK", nullptr, nullptr, nullptr);
  }
}

std::size_t SqliteConnection::log_bytes() const {
  constexpr std::size_t kPageBytes = 4096;
  return static_cast<std::size_t>(log_pages_) * kPageBytes;
}

void SqliteConnection::checkpoint(bool cuts_log) {
  const int mode = cuts_log ? SQLITE_CHECKPOINT_TRUNCATE : SQLITE_CHECKPOINT_PASSIVE;
  if (sqlite3_wal_checkpoint_v2(database_, nullptr, mode, nullptr, nullptr) != SQLITE_OK) {
    fail("checkpoint");
  }
  log_pages_ = 0;
}

void SqliteConnection::leave_alone() {
  sqlite3_db_config(database_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
}

SqliteStatement::SqliteStatement(SqliteConnection& connection, const char* sql)
    : connection_(connection) {
  if (sqlite3_prepare_v3(connection.database_, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement_,
                         nullptr) != SQLITE_OK) {
    connection.fail(sql);
  }
}

bool SqliteStatement::step() {
  const int result = sqlite3_step(statement_);
  if (result == SQLITE_ROW) return true;
  if (result == SQLITE_DONE) return false;
  const std::string sql = sqlite3_sql(statement_);
  const SqliteError error(sqlite3_extended_errcode(connection_.database_),
                          sql + ": " + sqlite3_errmsg(connection_.database_));
  sqlite3_reset(statement_);
  throw error;
}

std::span<const std::byte> SqliteStatement::bytes(int column) const {
  const void* const data = sqlite3_column_blob(statement_, column);
  return {static_cast<const std::byte*>(data),
          static_cast<std::size_t>(sqlite3_column_bytes(statement_, column))};
}

std::string SqliteStatement::text(int column) const {
  const std::span<const std::byte> from = bytes(column);
  return {reinterpret_cast<const char*>(from.data()), from.size()};
}

void SqliteStatement::bind(int at, std::int64_t value) {
  sqlite3_bind_int64(statement_, at, value);
}

void SqliteStatement::bind(int at, std::span<const std::byte> bytes) {
  // A null pointer would bind NULL.
  sqlite3_bind_blob64(statement_, at, bytes.empty() ? "" : static_cast<const void*>(bytes.data()),
                      bytes.size(), SQLITE_STATIC);
}

}  // namespace lintel
