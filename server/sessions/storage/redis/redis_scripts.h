// The scripts in scripts/*.lua, which servers run: each checks and writes in one go.
#pragma once

#include <vector>

#include "server/sessions/storage/redis/redis_request.h"

namespace lintel {

struct RedisScripts {
  // What may run where a server is full: it makes room, or gives a session back.
  RedisScript claim, create, write, write_when_full, check, find, read, list, sweep, state,
      drop_state;

  static const RedisScripts& get();
  std::vector<const RedisScript*> all() const;
};

// The text of scripts/NAME.lua; part of the program.
const char* redis_script_text(const char* name);

}  // namespace lintel
