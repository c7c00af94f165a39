// What is asked of Redis servers, and what comes of it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "server/sessions/storage/redis/redis_reply.h"

namespace lintel {

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

}  // namespace lintel
