#include "server/sessions/storage/redis/redis_vault.h"
#include "tests/server/redis_lab/redis_server.h"
#include "tests/server/vault/any_vault.h"

namespace lintel::testing {
namespace {

// One for all tests of the process.
RedisServer& shared_server() {
  static RedisServer server;
  return server;
}

}  // namespace

struct AnyVault::Place {};

AnyVault::AnyVault(int sort, std::size_t journal_bytes)
    : sort_(sort), journal_bytes_(journal_bytes), place_(std::make_unique<Place>()) {
  shared_server().client()("FLUSHALL");
  reopen();
}
AnyVault::~AnyVault() = default;

int AnyVault::sorts() { return 1; }
bool AnyVault::outlives_its_end() const { return true; }

void AnyVault::reopen() {
  vault_.reset();
  RedisVault::Options options;
  options.redis.url.servers = {{"127.0.0.1", shared_server().port()}};
  options.swept_buckets = 4096;
  options.clock_difference = std::chrono::hours(24 * 365 * 200);  // the clock is the test's
  vault_ = std::make_unique<RedisVault>(options, clock);
}

}  // namespace lintel::testing
