// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lintel {

// RedisReply: what a Redis server answered.

struct RedisReply {
  enum class Kind { kNil, kNumber, kText, kError, kList } kind = Kind::kNil;
  std::int64_t number = 0;
  std::string text{};  // of an error, too: its first word says which, e.g. "MOVED"
  std::vector<RedisReply> list{};

  bool is_error() const { return kind == Kind::kError; }
  // Whether it is an error that begins with `word`.
  bool is_error(std::string_view word) const {
    return is_error() && std::string_view(text).substr(0, text.find(' ')) == word;
  }
  // Of a list: the text at `i`; empty where there is none.
  const std::string& at(std::size_t i) const;
  // The same as a number, which scripts send as text where it may need more than 53 bits.
  std::int64_t number_at(std::size_t i) const;
};

// How large a reply may be, by what was asked. Of a server that sends more the connection is closed
// before that is in memory.
struct RedisReplyBounds {
  std::size_t bytes = std::size_t{64} << 10;  // on the wire, of any error, too
  std::size_t elements = 1024;                // of all its lists

  static constexpr std::size_t kLeastBytes = 4096;  // of any, for errors
};

// Replies from the bytes of a connection. Not thread-safe.
class RedisReplies {
 public:
  RedisReplies();
  ~RedisReplies();
  RedisReplies(const RedisReplies&) = delete;
  RedisReplies& operator=(const RedisReplies&) = delete;

  // False: these bytes are no Redis server's.
  bool feed(std::string_view bytes);
  // The next one that has come whole. Nothing, and error() says why: the bytes are no Redis
  // server's, or what has come of it is beyond the bounds.
  std::optional<RedisReply> next(const RedisReplyBounds& bounds);
  const std::string& error() const { return error_; }  // empty: none
  // Whether there are bytes that no reply has been made of.
  bool has_bytes() const;

 private:
  struct redisReaderHolder;
  redisReaderHolder* reader_;
  std::size_t bytes_ = 0;  // of the reply that is being read, parsed so far
  std::string error_;
};

// A command, as it goes to a server.
std::string encode_redis_command(const std::vector<std::string>& words);

// What is asked of Redis servers, and what comes of it.

// A script, which a server knows by its hash once it was loaded there.
struct RedisScript {
  std::string text;
  std::string sha1;  // hexadecimal

  static RedisScript of(std::string text);
};

struct RedisAnswer {
  // False: no server answered in time. Its outcome is unknown.
  bool arrived = false;
  RedisReply reply{};
  // Of a write: as many replicas as are asked for have it, too.
  bool is_replicated = true;
};

struct RedisRequest {
  const RedisScript* script = nullptr;  // null: a command; outlives the client
  std::vector<std::string> keys{};      // of a script: all in one slot
  std::vector<std::string> words{};     // arguments of a script; a whole command
  int slot = 0;                         // whose server is asked
  bool is_write = false;                // waits for replicas; in the order of the requests
  RedisReplyBounds most{};              // of its reply
  // Once, on the client's thread; must not block.
  std::function<void(RedisAnswer)> done{};
};

// The scripts in scripts/*.lua, which servers run: each checks and writes in one go.

struct RedisScripts {
  // What may run where a server is full: it makes room, or gives a session back.
  RedisScript claim, create, write, write_when_full, check, find, read, list, sweep, state,
      drop_state, document, document_when_full;

  static const RedisScripts& get();
  std::vector<const RedisScript*> all() const;
};

// The text of scripts/NAME.lua; part of the program.
const char* redis_script_text(const char* name);

}  // namespace lintel
