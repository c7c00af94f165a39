// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/storage/sqlite/sqlite_schema.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "server/sessions/storage/sqlite/storage_file.h"

namespace lintel {
namespace {

using SessionId = SessionStorage::SessionId;
using SchemaStateRef = SessionStorage::StateRef;

constexpr std::int64_t kApplication = 0x4C4E544C;  // "LNTL", as file(1) shows it

constexpr char kTables[] = R"(
BEGIN;
CREATE TABLE session(sid BLOB PRIMARY KEY, owner BLOB NOT NULL, model BLOB NOT NULL,
  expires INTEGER NOT NULL, interrupted INTEGER NOT NULL, seq INTEGER NOT NULL,
  body BLOB NOT NULL, hash INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX session_by_model ON session(model, sid);
CREATE INDEX session_by_owner ON session(model, owner, sid);
CREATE INDEX session_by_expiry ON session(expires);
CREATE INDEX open_call ON session(sid) WHERE interrupted;
CREATE TABLE history(sid BLOB, first INTEGER, tokens BLOB NOT NULL, hash INTEGER NOT NULL,
  PRIMARY KEY(sid, first)) WITHOUT ROWID;
CREATE TABLE slot(bytes INTEGER, place INTEGER, sid BLOB, position INTEGER,
  PRIMARY KEY(bytes, place, sid, position)) WITHOUT ROWID;
CREATE TABLE journal(seq INTEGER PRIMARY KEY, id_hash INTEGER NOT NULL, hash INTEGER NOT NULL,
  body BLOB NOT NULL);
CREATE TABLE quarantine(sid BLOB, seq INTEGER, body BLOB, PRIMARY KEY(sid, seq)) WITHOUT ROWID;
CREATE TABLE noted(what INTEGER PRIMARY KEY, seq INTEGER NOT NULL);
PRAGMA application_id=1280201804;
PRAGMA user_version=1;
COMMIT;
)";

// A hash of numbers and byte strings, each with its length: "ab", "c" is not "a", "bc".
class RowHash {
 public:
  RowHash() { XXH3_64bits_reset(&state_); }
  RowHash& add(std::span<const std::byte> bytes) {
    add(static_cast<std::int64_t>(bytes.size()));
    XXH3_64bits_update(&state_, bytes.data(), bytes.size());
    return *this;
  }
  RowHash& add(const std::string& text) { return add(std::as_bytes(std::span(text))); }
  RowHash& add(std::int64_t number) {
    XXH3_64bits_update(&state_, &number, sizeof(number));
    return *this;
  }
  std::int64_t value() const { return static_cast<std::int64_t>(XXH3_64bits_digest(&state_)); }

 private:
  XXH3_state_t state_;
};

std::int64_t micros_of(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
}

std::int64_t hash_of_session(const SessionStorage::Row& row, std::int64_t seq,
                             std::span<const std::byte> body) {
  return RowHash().add(row.id).add(seq).add(body).value();
}

std::int64_t hash_of_chunk(const SessionId& id, std::int64_t first,
                           std::span<const std::byte> bytes) {
  return RowHash().add(id).add(first).add(bytes).value();
}

std::int64_t hash_of_record(std::int64_t seq, std::int64_t id_hash,
                            std::span<const std::byte> body) {
  return RowHash().add(seq).add(id_hash).add(body).value();
}

std::int64_t chunk_start(std::int64_t position) {
  return position - position % SqliteSchema::kChunkTokens;
}

}  // namespace

SqliteSchema::Prepare::Prepare(SqliteConnection& connection) {
  static_assert(kApplication == 1280201804);
  const std::int64_t application = connection.number("PRAGMA application_id");
  const std::int64_t version = connection.number("PRAGMA user_version");
  if (connection.number("SELECT count(*) FROM sqlite_schema") == 0 && application == 0) {
    connection.run(kTables);
  } else if (application != kApplication) {
    throw StorageError("sessions.db is a database of something else");
  } else if (version != kVersion) {
    throw StorageError("sessions.db has version " + std::to_string(version) + ", not " +
                       std::to_string(kVersion) + ", which this program reads");
  }
}

SqliteSchema::SqliteSchema(SqliteConnection& connection)
    : connection_(connection),
      prepare_(connection),
      find_(connection,
            "SELECT seq, body, hash, owner, model, expires, interrupted FROM session WHERE sid=?"),
      store_(connection, "REPLACE INTO session VALUES(?,?,?,?,?,?,?,?)"),
      remove_(connection, "DELETE FROM session WHERE sid=?"),
      get_chunk_(connection, "SELECT tokens, hash FROM history WHERE sid=? AND first=?"),
      put_chunk_(connection, "REPLACE INTO history VALUES(?,?,?,?)"),
      cut_chunks_(connection, "DELETE FROM history WHERE sid=? AND first>=?"),
      drop_chunks_(connection, "DELETE FROM history WHERE sid=? AND first<?"),
      add_slot_(connection, "REPLACE INTO slot VALUES(?,?,?,?)"),
      drop_slot_(connection, "DELETE FROM slot WHERE bytes=? AND place=? AND sid=? AND position=?"),
      append_(connection, "INSERT INTO journal VALUES(?,?,?,?)"),
      drop_records_(connection, "DELETE FROM journal WHERE seq<?") {}

SqliteSchema::Found SqliteSchema::find(const SessionId& id) {
  Found found;
  if (!find_.with(id).step()) return found;
  const std::int64_t seq = find_.number(0);
  const std::span<const std::byte> body = find_.bytes(1);
  std::optional<SessionStorage::Row> row = decode_row(body);
  // Indexed fields are stored twice; the two have to agree.
  found.damaged = !row || row->id != id || find_.number(2) != hash_of_session(*row, seq, body) ||
                  find_.text(3) != row->owner || find_.text(4) != row->model ||
                  find_.number(5) != micros_of(row->expires) ||
                  find_.number(6) != (row->call.empty() ? 0 : 1);
  if (!found.damaged) found.stored = {*std::move(row), seq};
  find_.reset();
  return found;
}

bool SqliteSchema::store(const StorageSession& session, std::int64_t seq,
                         const std::vector<SchemaStateRef>& states) {
  const SessionStorage::Row& row = session.row();
  const std::vector<std::int32_t>& tokens = session.tokens();
  // The chunk in which the new tokens begin keeps its earlier ones.
  const std::int64_t first = session.first();
  Chunk next{chunk_start(first), {}};
  if (first > next.first && first > row.base) {
    const std::optional<Chunk> before = chunk(row.id, next.first);
    if (!before || before->first + static_cast<std::int64_t>(before->tokens.size()) < first) {
      return false;
    }
    next = *before;
    next.tokens.resize(static_cast<std::size_t>(first - next.first));
  } else {
    next.first = first;
  }
  cut_chunks_.with(row.id, chunk_start(first)).run();
  std::size_t taken = 0;
  while (taken < tokens.size() || !next.tokens.empty()) {
    const std::int64_t end = chunk_start(next.first) + kChunkTokens;
    const auto room = static_cast<std::size_t>(end - next.first) - next.tokens.size();
    const std::size_t count = std::min(room, tokens.size() - taken);
    const auto from = tokens.begin() + static_cast<std::ptrdiff_t>(taken);
    next.tokens.insert(next.tokens.end(), from, from + static_cast<std::ptrdiff_t>(count));
    put_chunk(row.id, next);
    taken += count;
    next = {end, {}};
  }
  drop_chunks_.with(row.id, chunk_start(row.base)).run();

  const StorageBytes body = encode_row(row);
  store_
      .with(row.id, row.owner, row.model, micros_of(row.expires),
            std::int64_t{row.call.empty() ? 0 : 1}, seq, std::span(body),
            hash_of_session(row, seq, body))
      .run();
  for (const SchemaStateRef& state : states) {
    if (std::ranges::find(row.states, state) != row.states.end()) continue;
    drop_slot_
        .with(static_cast<std::int64_t>(state.bytes), static_cast<std::int64_t>(state.where),
              row.id, state.position)
        .run();
  }
  for (const SchemaStateRef& state : row.states) {
    if (std::ranges::find(states, state) != states.end()) continue;
    add_slot_
        .with(static_cast<std::int64_t>(state.bytes), static_cast<std::int64_t>(state.where),
              row.id, state.position)
        .run();
  }
  return true;
}

void SqliteSchema::remove(const SessionId& id, const std::vector<SchemaStateRef>& states) {
  remove_.with(id).run();
  cut_chunks_.with(id, std::int64_t{0}).run();
  for (const SchemaStateRef& state : states) {
    drop_slot_
        .with(static_cast<std::int64_t>(state.bytes), static_cast<std::int64_t>(state.where), id,
              state.position)
        .run();
  }
}

std::optional<SqliteSchema::Chunk> SqliteSchema::chunk(const SessionId& id, std::int64_t first) {
  if (!get_chunk_.with(id, first).step()) return std::nullopt;
  const std::span<const std::byte> bytes = get_chunk_.bytes(0);
  const bool whole = bytes.size() > 2 && get_chunk_.number(1) == hash_of_chunk(id, first, bytes);
  std::optional<Chunk> chunk;
  if (whole) {
    const std::int64_t skipped =
        std::to_integer<std::int64_t>(bytes[0]) | std::to_integer<std::int64_t>(bytes[1]) << 8;
    if (auto tokens = decode_tokens(bytes.subspan(2))) chunk = {first + skipped, *tokens};
  }
  get_chunk_.reset();
  return chunk;
}

void SqliteSchema::put_chunk(const SessionId& id, const Chunk& chunk) {
  const std::int64_t first = chunk_start(chunk.first);
  const std::int64_t skipped = chunk.first - first;
  const StorageBytes tokens = encode_tokens(chunk.tokens);
  StorageBytes bytes = {static_cast<std::byte>(skipped & 0xff),
                        static_cast<std::byte>(skipped >> 8)};
  bytes.insert(bytes.end(), tokens.begin(), tokens.end());
  put_chunk_.with(id, first, std::span(bytes), hash_of_chunk(id, first, bytes)).run();
}

std::size_t SqliteSchema::read_tokens(const SessionId& id, std::int64_t first,
                                      std::span<std::int32_t> tokens) {
  std::size_t done = 0;
  while (done < tokens.size()) {
    const std::int64_t at = first + static_cast<std::int64_t>(done);
    const std::optional<Chunk> from = chunk(id, chunk_start(at));
    if (!from || from->first > at) break;
    const auto skipped = static_cast<std::size_t>(at - from->first);
    if (skipped >= from->tokens.size()) break;
    const std::size_t count = std::min(from->tokens.size() - skipped, tokens.size() - done);
    std::copy_n(from->tokens.begin() + static_cast<std::ptrdiff_t>(skipped), count,
                tokens.begin() + static_cast<std::ptrdiff_t>(done));
    done += count;
  }
  return done;
}

void SqliteSchema::list(const std::string& model, const SessionId& after,
                        const std::optional<std::string>& owner,
                        const std::function<bool(const SessionId&)>& each) {
  std::string sql = "SELECT sid FROM session WHERE sid>?1";
  if (!model.empty()) sql += " AND model=?2";
  if (owner) sql += " AND owner=?3";
  SqliteStatement rows(connection_, (sql + " ORDER BY sid").c_str());
  if (owner) {
    rows.with(after, model, *owner);
  } else if (!model.empty()) {
    rows.with(after, model);
  } else {
    rows.with(after);
  }
  while (rows.step() && each(rows.text(0))) {
  }
}

std::vector<SessionId> SqliteSchema::expired(std::int64_t now_micros, std::size_t most) {
  SqliteStatement rows(connection_, "SELECT sid FROM session WHERE expires<=? LIMIT ?");
  rows.with(now_micros, static_cast<std::int64_t>(most));
  std::vector<SessionId> ids;
  while (rows.step()) ids.push_back(rows.text(0));
  return ids;
}

std::vector<SessionId> SqliteSchema::interrupted() {
  SqliteStatement rows(connection_, "SELECT sid FROM session WHERE interrupted");
  std::vector<SessionId> ids;
  while (rows.step()) ids.push_back(rows.text(0));
  return ids;
}

void SqliteSchema::each_slot(
    const std::function<void(std::size_t, std::uint64_t, const SessionId&)>& each) {
  SqliteStatement rows(connection_, "SELECT bytes, place, sid FROM slot");
  while (rows.step()) {
    each(static_cast<std::size_t>(rows.number(0)), static_cast<std::uint64_t>(rows.number(1)),
         rows.text(2));
  }
}

std::vector<SqliteSchema::Expiring> SqliteSchema::by_expiry(const Expiring& after,
                                                            std::size_t most) {
  SqliteStatement rows(connection_,
                       "SELECT expires, sid FROM session WHERE (expires, sid)>(?,?) "
                       "ORDER BY expires, sid LIMIT ?");
  rows.with(after.micros, after.id, static_cast<std::int64_t>(most));
  std::vector<Expiring> found;
  while (rows.step()) found.push_back({rows.number(0), rows.text(1)});
  return found;
}

void SqliteSchema::each_record(const std::function<void(const Record&)>& each) {
  SqliteStatement rows(connection_, "SELECT seq, id_hash, hash, body FROM journal ORDER BY seq");
  while (rows.step()) {
    const std::span<const std::byte> body = rows.bytes(3);
    each({rows.number(0), body,
          rows.number(2) == hash_of_record(rows.number(0), rows.number(1), body),
          static_cast<std::uint32_t>(rows.number(1))});
  }
}

void SqliteSchema::append(std::int64_t seq, const SessionId& id, std::span<const std::byte> body) {
  const std::int64_t hash = id_hash(id);
  append_.with(seq, hash, hash_of_record(seq, hash, body), body).run();
}

void SqliteSchema::drop_records_before(std::int64_t seq) { drop_records_.with(seq).run(); }

std::uint32_t SqliteSchema::id_hash(const SessionId& id) {
  return static_cast<std::uint32_t>(RowHash().add(id).value());
}

std::vector<SessionId> SqliteSchema::with_id_hash(std::uint32_t hash) {
  SqliteStatement rows(connection_, "SELECT sid FROM session");
  std::vector<SessionId> ids;
  while (rows.step()) {
    if (id_hash(rows.text(0)) == hash) ids.push_back(rows.text(0));
  }
  return ids;
}

std::size_t SqliteSchema::count() {
  return static_cast<std::size_t>(connection_.number("SELECT count(*) FROM session"));
}

std::int64_t SqliteSchema::last_seq() { return connection_.number("SELECT max(seq) FROM journal"); }

std::int64_t SqliteSchema::noted_seq() {
  return connection_.number("SELECT seq FROM noted WHERE what=0");
}

void SqliteSchema::note_seq(std::int64_t seq) {
  SqliteStatement(connection_, "REPLACE INTO noted VALUES(0,?)").with(seq).run();
}

std::int64_t SqliteSchema::noted_expiry() {
  return connection_.number("SELECT seq FROM noted WHERE what=1");
}

void SqliteSchema::note_expiry(std::int64_t seconds) {
  SqliteStatement(connection_, "REPLACE INTO noted VALUES(1,?)").with(seconds).run();
}

void SqliteSchema::quarantine(const SessionId& id) {
  SqliteStatement(connection_, "INSERT OR IGNORE INTO quarantine VALUES(?,0,x'')").with(id).run();
  SqliteStatement(connection_,
                  "INSERT OR IGNORE INTO quarantine SELECT ?,seq,body FROM journal WHERE id_hash=?")
      .with(id, std::int64_t{id_hash(id)})
      .run();
}

void SqliteSchema::quarantine_record(std::int64_t seq) {
  SqliteStatement(connection_,
                  "INSERT OR IGNORE INTO quarantine SELECT x'',seq,body FROM journal WHERE seq=?")
      .with(seq)
      .run();
}

std::vector<SessionId> SqliteSchema::quarantined() {
  SqliteStatement rows(connection_, "SELECT DISTINCT sid FROM quarantine WHERE sid<>x''");
  std::vector<SessionId> ids;
  while (rows.step()) ids.push_back(rows.text(0));
  return ids;
}

}  // namespace lintel
