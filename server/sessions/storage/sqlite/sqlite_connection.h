// SPDX-License-Identifier: Apache-2.0
// SqliteConnection and SqliteStatement: the functions of SQLite that the storage needs, with
// exceptions.
#pragma once

#include <sqlite3.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace lintel {

class SqliteError : public std::runtime_error {
 public:
  SqliteError(int code, const std::string& what) : std::runtime_error(what), code_(code) {}
  int code() const { return code_ & 0xff; }  // SQLITE_FULL, SQLITE_IOERR, ...

 private:
  const int code_;
};

// Not thread-safe. All throw SqliteError.
class SqliteConnection {
 public:
  // `vfs`: SQLite's name for a file system; empty: the system's.
  SqliteConnection(const std::filesystem::path& file, const std::string& vfs);
  ~SqliteConnection();
  SqliteConnection(const SqliteConnection&) = delete;
  SqliteConnection& operator=(const SqliteConnection&) = delete;

  // True if there is such a file. `vfs`: as above.
  static bool exists(const std::filesystem::path& file, const std::string& vfs);

  void run(const char* sql);
  std::int64_t number(const char* sql);  // the query's result
  // Overwrites bytes of a blob with zeros, in the transaction that is open.
  void zero_blob(const char* table, const char* column, std::int64_t row, std::int64_t offset,
                 std::int64_t bytes);
  void roll_back() noexcept;
  std::size_t log_bytes() const;  // of the write-ahead log since the last checkpoint
  // Moves the log into the database; `cuts_log`: and frees its room.
  void checkpoint(bool cuts_log = false);
  // Prevents writes on closing: after a failed write the file's content is unknown.
  void leave_alone();

 private:
  friend class SqliteStatement;
  [[noreturn]] void fail(const char* doing) const;
  static int on_commit(void* self, sqlite3*, const char*, int pages);

  sqlite3* database_ = nullptr;
  int log_pages_ = 0;
};

// A statement, prepared once. Blobs and texts that are bound, and those that are read, live until
// the next step or reset.
class SqliteStatement {
 public:
  SqliteStatement(SqliteConnection& connection, const char* sql);
  ~SqliteStatement() { sqlite3_finalize(statement_); }
  SqliteStatement(const SqliteStatement&) = delete;
  SqliteStatement& operator=(const SqliteStatement&) = delete;

  // Resets the statement and binds parameters, from the first on.
  template <typename... Values>
  SqliteStatement& with(const Values&... values) {
    sqlite3_reset(statement_);
    int at = 0;
    (bind(++at, values), ...);
    return *this;
  }
  bool step();  // true if there is a row
  void run() {  // for statements without rows
    step();
    sqlite3_reset(statement_);
  }
  void reset() { sqlite3_reset(statement_); }

  std::int64_t number(int column) const { return sqlite3_column_int64(statement_, column); }
  std::span<const std::byte> bytes(int column) const;
  std::string text(int column) const;

 private:
  void bind(int at, std::int64_t value);
  void bind(int at, std::span<const std::byte> bytes);
  void bind(int at, const std::string& bytes) { bind(at, std::as_bytes(std::span(bytes))); }

  SqliteConnection& connection_;
  sqlite3_stmt* statement_ = nullptr;
};

}  // namespace lintel
