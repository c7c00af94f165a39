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

// RedisReply: the answer of a Redis server.

struct RedisReply {
  enum class Kind { kNil, kNumber, kText, kError, kList } kind = Kind::kNil;
  std::int64_t number = 0;
  std::string text{};  // of an error, too: its first word is the kind, e.g. "MOVED"
  std::vector<RedisReply> list{};

  bool is_error() const { return kind == Kind::kError; }
  // True if it is an error that begins with `word`.
  bool is_error(std::string_view word) const {
    return is_error() && std::string_view(text).substr(0, text.find(' ')) == word;
  }
  // The text at `i` in a list; empty if there is none.
  const std::string& at(std::size_t i) const;
  // The same as a number, which scripts send as text if it may need more than 53 bits.
  std::int64_t number_at(std::size_t i) const;
};

// The bounds of the reply to a request. The connection to a server that sends more is closed before
// that is in memory.
struct RedisReplyBounds {
  std::size_t bytes = std::size_t{64} << 10;  // on the wire, of any error, too
  std::size_t elements = 1024;                // of all its lists

  static constexpr std::size_t kLeastBytes = 4096;  // of any reply, for errors
};

// Parses the bytes of a connection into replies. Not thread-safe.
class RedisReplies {
 public:
  RedisReplies();
  ~RedisReplies();
  RedisReplies(const RedisReplies&) = delete;
  RedisReplies& operator=(const RedisReplies&) = delete;

  // Adds bytes. False: they are not of a Redis server.
  bool feed(std::string_view bytes);
  // The next complete reply. Nothing with an error(): the bytes are not of a Redis server, or the
  // reply is beyond the bounds.
  std::optional<RedisReply> next(const RedisReplyBounds& bounds);
  const std::string& error() const { return error_; }  // empty: none
  // True if there are bytes of an incomplete reply.
  bool has_bytes() const;

 private:
  struct redisReaderHolder;
  redisReaderHolder* reader_;
  std::size_t bytes_ = 0;  // of the reply that is being read, parsed so far
  std::string error_;
};

// A command in the form that is sent to a server.
std::string encode_redis_command(const std::vector<std::string>& words);

// Requests to Redis servers, and their answers.

// A script, which a server knows by its hash once it was loaded.
struct RedisScript {
  std::string text;
  std::string sha1;  // hexadecimal

  static RedisScript of(std::string text);
};

struct RedisAnswer {
  // False: no server answered in time. Its outcome is unknown.
  bool arrived = false;
  RedisReply reply{};
  // True if as many replicas as are required have a write, too.
  bool is_replicated = true;
};

struct RedisRequest {
  const RedisScript* script = nullptr;  // null: a command; outlives the client
  std::vector<std::string> keys{};      // of a script, all in one slot
  std::vector<std::string> words{};     // arguments of a script; a whole command
  int slot = 0;                         // of the server to ask
  bool is_write = false;                // waits for replicas; in the order of the requests
  RedisReplyBounds most{};              // of the reply
  // Once, on the client's thread; must not block.
  std::function<void(RedisAnswer)> done{};
};

// The scripts in scripts/*.lua, which servers run: each checks and writes in one go.

struct RedisScripts {
  // Scripts ..._when_full run on a full server, too: they make room, or release a session.
  RedisScript claim, create, write, write_when_full, check, find, read, list, sweep, state,
      drop_state, document, document_when_full;

  static const RedisScripts& get();
  std::vector<const RedisScript*> all() const;
};

// The text of scripts/NAME.lua; part of the program.
const char* redis_script_text(const char* name);

}  // namespace lintel
