#include "server/sessions/storage/redis/redis_scripts.h"

#include <string>

namespace lintel {
namespace {

RedisScript script_named(const char* name, bool when_full) {
  const std::string head = when_full ? "#!lua flags=allow-oom\n" : "#!lua\n";
  return RedisScript::of(head + redis_script_text("common") + redis_script_text(name));
}

}  // namespace

const RedisScripts& RedisScripts::get() {
  static const RedisScripts scripts{.claim = script_named("claim", true),
                                    .create = script_named("create", false),
                                    .write = script_named("write", false),
                                    .write_when_full = script_named("write", true),
                                    .check = script_named("check", true),
                                    .find = script_named("find", true),
                                    .read = script_named("read", true),
                                    .list = script_named("list", true),
                                    .sweep = script_named("sweep", true),
                                    .state = script_named("state", false),
                                    .drop_state = script_named("state", true)};
  return scripts;
}

std::vector<const RedisScript*> RedisScripts::all() const {
  return {&claim, &create, &write, &write_when_full, &check,     &find,
          &read,  &list,   &sweep, &state,           &drop_state};
}

}  // namespace lintel
