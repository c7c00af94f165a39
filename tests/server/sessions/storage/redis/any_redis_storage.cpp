// SPDX-License-Identifier: Apache-2.0
#include "server/sessions/storage/redis/redis_storage.h"
#include "tests/server/redis_lab/redis_server.h"
#include "tests/server/sessions/storage/any_storage.h"

namespace lintel::testing {
namespace {

// One for all tests of the process.
RedisServer& shared_server() {
  static RedisServer server;
  return server;
}

}  // namespace

struct AnyStorage::Place {};

AnyStorage::AnyStorage(int sort, std::size_t journal_bytes)
    : sort_(sort), journal_bytes_(journal_bytes), place_(std::make_unique<Place>()) {
  shared_server().client()("FLUSHALL");
  reopen();
}
AnyStorage::~AnyStorage() = default;

int AnyStorage::sorts() { return 1; }
bool AnyStorage::outlives_its_end() const { return true; }

void AnyStorage::reopen() {
  storage_.reset();
  RedisStorage::Options options;
  options.redis.url.servers = {{"127.0.0.1", shared_server().port()}};
  options.swept_buckets = 4096;
  options.clock_difference = std::chrono::hours(24 * 365 * 200);  // the clock is the test's
  storage_ = std::make_unique<RedisStorage>(options, clock);
}

}  // namespace lintel::testing
