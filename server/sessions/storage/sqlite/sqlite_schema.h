// SPDX-License-Identifier: Apache-2.0
// SqliteSchema: the tables of a storage's database. docs/session_storage.md describes them.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/sessions/storage/session_storage.h"
#include "server/sessions/storage/sqlite/sqlite_connection.h"
#include "server/sessions/storage/storage_records.h"

namespace lintel {

// Every row has a hash of all its fields, so that damage is found wherever it happens: SQLite
// itself checks the pages of its log alone. Not thread-safe. All functions throw SqliteError.
class SqliteSchema {
 public:
  static constexpr std::int64_t kVersion = 1;
  static constexpr std::int64_t kChunkTokens = 1024;

  struct StoredRow {
    SessionStorage::Row row;
    std::int64_t seq = 0;  // the last record of the journal that it includes
  };
  // The row of a session: `damaged` if it differs from the one that was written.
  struct Found {
    std::optional<StoredRow> stored;
    bool damaged = false;
  };

  // Makes the tables in an empty database. Throws StorageError for a database of another kind or
  // version.
  explicit SqliteSchema(SqliteConnection& connection);

  Found find(const SessionStorage::SessionId& id);
  // Stores a session: its row, with `states`, and its tokens from session.first() on. False, and
  // nothing written, if earlier tokens are damaged.
  bool store(const StorageSession& session, std::int64_t seq,
             const std::vector<SessionStorage::StateRef>& states);
  void remove(const SessionStorage::SessionId& id,
              const std::vector<SessionStorage::StateRef>& states);
  // Reads tokens [first, first + tokens.size()). Returns how many it has, from the first on; fewer
  // if one is missing or damaged.
  std::size_t read_tokens(const SessionStorage::SessionId& id, std::int64_t first,
                          std::span<std::int32_t> tokens);

  // Stored sessions of a model, by id, after `after`; `each` returns whether it wants more.
  void list(const std::string& model, const SessionStorage::SessionId& after,
            const std::optional<std::string>& owner,
            const std::function<bool(const SessionStorage::SessionId&)>& each);
  std::vector<SessionStorage::SessionId> expired(std::int64_t now_micros, std::size_t most);
  std::size_t count();
  // Sessions with a call in progress.
  std::vector<SessionStorage::SessionId> interrupted();
  void each_slot(const std::function<void(std::size_t bytes, std::uint64_t where,
                                          const SessionStorage::SessionId& id)>& each);

  // The place of a session in the order of expiry, for iterations.
  struct Expiring {
    std::int64_t micros = std::numeric_limits<std::int64_t>::min();
    SessionStorage::SessionId id{};
  };
  // The next ones after `after`, at most `most`, the longest unused first.
  std::vector<Expiring> by_expiry(const Expiring& after, std::size_t most);

  // The --session-expire, in seconds, of the rows when they were written or shortened; 0: unknown.
  std::int64_t noted_expiry();
  void note_expiry(std::int64_t seconds);

  // Records of the journal, in order of seq.
  struct Record {
    std::int64_t seq = 0;
    std::span<const std::byte> body;
    bool whole = false;         // unchanged since it was written
    std::uint32_t id_hash = 0;  // identifies the session of a damaged body
  };
  void each_record(const std::function<void(const Record&)>& each);
  std::int64_t last_seq();  // 0: none
  void append(std::int64_t seq, const SessionStorage::SessionId& id,
              std::span<const std::byte> body);
  void drop_records_before(std::int64_t seq);
  // The last record of the journal when it was last noted, before each checkpoint: the loss of a
  // page of the database with the last records would not be detected otherwise.
  std::int64_t noted_seq();
  void note_seq(std::int64_t seq);
  static std::uint32_t id_hash(const SessionStorage::SessionId& id);
  std::vector<SessionStorage::SessionId> with_id_hash(std::uint32_t hash);

  // Quarantines a session's records for inspection; or one record without a session.
  void quarantine(const SessionStorage::SessionId& id);
  void quarantine_record(std::int64_t seq);
  std::vector<SessionStorage::SessionId> quarantined();

 private:
  // A chunk: its tokens, and their position if it is not the chunk's beginning.
  struct Chunk {
    std::int64_t first = 0;
    std::vector<std::int32_t> tokens;
  };
  std::optional<Chunk> chunk(const SessionStorage::SessionId& id, std::int64_t first);
  void put_chunk(const SessionStorage::SessionId& id, const Chunk& chunk);

  SqliteConnection& connection_;
  struct Prepare {  // before the statements, which need the tables
    explicit Prepare(SqliteConnection& connection);
  } prepare_;
  SqliteStatement find_, store_, remove_, get_chunk_, put_chunk_, cut_chunks_, drop_chunks_,
      add_slot_, drop_slot_, append_, drop_records_;
};

}  // namespace lintel
